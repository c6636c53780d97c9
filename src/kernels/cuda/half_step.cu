#include "kernels/cuda/half_step.h"

#include <algorithm>
#include <bit>

#include "base/checked.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"
#include "kernels/cuda/half_step.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

bool gates_both(ProductEnd end) { return end == ProductEnd::kSilu || end == ProductEnd::kSquaredRelu; }
StoredBits bits_of(const StepProducts& call) { return stored_bits(call.kernel->format, GemmActivation::kBf16); }

/// Rounds and spans.
void cut_half_step(const Weight& w, HalfStepArgs& a) {
  a.k = static_cast<int>(w.k);
  a.batches = static_cast<int>(ceil_div(w.k, 32)), a.k_blocks = static_cast<int>(ceil_div(w.k, 64));
  a.groups = static_cast<int>(std::max<int64_t>(w.groups, 1));
  a.rounds = static_cast<int>(ceil_div(a.batches, kHalfStepWarps * kHalfBatches));
  constexpr int64_t kRoundSteps = 2 * kHalfBatches;
  const int64_t group_steps = w.groups > 1 ? w.group / 16 : kRoundSteps;
  a.span_shift = std::countr_zero(static_cast<uint64_t>(kRoundSteps | group_steps));
  a.span_steps = 1 << a.span_shift;
  a.round_spans = static_cast<int>(kRoundSteps >> a.span_shift);
  a.group_spans = w.groups > 1 ? static_cast<int>(group_steps >> a.span_shift) : 1 << 30;
  a.group_shift = std::has_single_bit(static_cast<unsigned>(a.group_spans))
                      ? std::countr_zero(static_cast<unsigned>(a.group_spans))
                      : -1;
}

HalfStepArgs args_of(const StepProducts& call) {
  const Matmul& first = call.parts[0];
  HalfStepArgs a{};
  cut_half_step(first.w, a);
  a.parts = call.count;
  a.m = static_cast<int>(first.m);
  a.rows = call.rows, a.norm = call.rows == nullptr ? nullptr : call.norm, a.eps = call.eps, a.end = call.end;
  a.halves = static_cast<const uint16_t*>(first.x), a.ldx = first.ldx;
  const auto magic = first.x_element == Element::kF16 ? 0x6400u : 0x4300u;  // 1024 or 128, to which codes are added
  a.half_zero = (magic + static_cast<unsigned>(bits_of(call).zero)) * 0x10001u;
  int tiles = 0;
  for (int i = 0; i < call.count; ++i) {
    const Matmul& from = call.parts[static_cast<size_t>(i)];
    a.part[i] = {from.w.codes,
                 from.w.scales,
                 from.bias,
                 static_cast<float*>(from.y),
                 from.ldy,
                 static_cast<int>(from.w.n),
                 static_cast<int>(factor_rows(from.w.n)),
                 tiles};
    tiles += static_cast<int>(ceil_div(from.w.n, 16));
  }
  a.tiles = gates_both(call.end) ? tiles / 2 : tiles;
  return a;
}

/// A form of the kernel, by its stored bits: stages of a tile and of pairs, bytes of a batch, and the kernels.
struct HalfStepForm {
  int stages[2], batch_bytes;
  void (*kernels[2][2])(HalfStepArgs);  // [bf16][pairs]
};
template <int Bits>
constexpr HalfStepForm kHalfStepForm = {{kHalfStages<Bits, 1>, kHalfStages<Bits, 2>},
                                        HalfBatch<Bits>::kBytes,
                                        {{&multiply_half_step<Bits, false, 1>, &multiply_half_step<Bits, false, 2>},
                                         {&multiply_half_step<Bits, true, 1>, &multiply_half_step<Bits, true, 2>}}};
const HalfStepForm& form_of(const StepProducts& call) {
  const int bits = bits_of(call).bits;
  return bits == 2   ? kHalfStepForm<2>
         : bits == 4 ? kHalfStepForm<4>
         : bits == 8 ? kHalfStepForm<8>
                     : kHalfStepForm<kE4m3>;
}

/// Lays out shared memory; returns its bytes.
int64_t place(const StepProducts& call, HalfStepArgs& a) {
  const HalfStepForm& form = form_of(call);
  const int tiles = gates_both(call.end) ? 2 : 1, stages = form.stages[tiles - 1];
  a.stage_bytes = kHalfBatches * form.batch_bytes + a.round_spans * kHalfSpanBytes;
  int64_t at = int64_t{kHalfStepWarps} * stages * tiles * a.stage_bytes;
  const auto take = [&](int& place, int64_t bytes) {
    place = static_cast<int>(std::min<int64_t>(at, 1 << 30));
    at += round_up(bytes, 16);
  };
  const bool has_norm = a.norm != nullptr;
  take(a.x_at, int64_t{a.batches} * a.m * 64);
  take(a.results_at, std::max<int64_t>(int64_t{2} * kHalfStepWarps * tiles * kHalfResults * 4,
                                       has_norm ? int64_t{a.m} * a.k * 4 : 0));
  take(a.norm_at, has_norm ? int64_t{a.k} * 4 : 0);
  take(a.factors_at, kMostStepRows * 4);
  return at;
}

int64_t grid_of(const HalfStepArgs& a, int64_t shared, const Device& device) {
  constexpr int64_t kReserved = 1024;  // of a block, by the device
  const int64_t blocks =
      std::clamp<int64_t>((device.shared_bytes + kReserved) / (shared + kReserved), 1, kHalfStepBlocks);
  return std::min<int64_t>(a.tiles, blocks * device.processors);
}

bool takes(const StepProducts& call, const Matmul& part) {
  const Matmul& first = call.parts[0];
  const Weight& w = part.w;
  const bool halves = part.x_element == Element::kF16 || part.x_element == Element::kBf16;
  return halves && part.x_element == first.x_element && w.offsets == nullptr && w.scales != nullptr &&
         w.k == first.w.k && w.groups == first.w.groups && w.group == first.w.group &&
         (w.groups <= 1 || w.group % 16 == 0) && part.m == first.m && part.y_element == Element::kF32 && w.n > 0 &&
         w.n <= (1 << 24);
}

}  // namespace

bool takes_half_step(const StepProducts& call) {
  const Matmul& first = call.parts[0];
  if (call.kernel->instance == nullptr || call.kernel->activation != Activation::kF32) return false;
  if (call.count < 1 || first.m < 1 || first.m > kMostStepRows || first.w.k < 1 || first.w.k > (1 << 20)) return false;
  if (bits_of(call).bits == 0) return false;
  for (int i = 0; i < call.count; ++i)
    if (!takes(call, call.parts[static_cast<size_t>(i)])) return false;
  if (gates_both(call.end) && (call.count != 2 || first.w.n != call.parts[1].w.n)) return false;
  const auto of_16_bytes = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (call.rows != nullptr ? first.w.k % 4 != 0 || !of_16_bytes(call.rows)
                           : first.x == nullptr || first.ldx % 8 != 0 || !of_16_bytes(first.x))
    return false;
  Device device{};
  HalfStepArgs args = args_of(call);
  return current_device(&device) == cudaSuccess && place(call, args) <= device.shared_bytes;
}

int64_t half_step_blocks(const StepProducts& call) {
  Device device{};
  (void)current_device(&device);  // takes_half_step() says no where there is none
  HalfStepArgs args = args_of(call);
  const int64_t shared = place(call, args);
  return grid_of(args, shared, device);
}

Status half_step_products(const StepProducts& call) {
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return check_cuda(e, "products");
  HalfStepArgs args = args_of(call);
  const int64_t shared = place(call, args), grid = grid_of(args, shared, device);
  auto* const kernel =
      form_of(call).kernels[call.parts[0].x_element == Element::kBf16 ? 1 : 0][gates_both(call.end) ? 1 : 0];
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess)
    return check_cuda(e, "products");
  return check_cuda(
      launch(kernel, dim3(static_cast<unsigned>(grid)), dim3(kHalfStepThreads), static_cast<size_t>(shared),
             static_cast<cudaStream_t>(call.parts[0].stream), call.parts[0].overlap && device.bulk_copies, args),
      "products");
}

}  // namespace lowbit::cuda
