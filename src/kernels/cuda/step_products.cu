#include "kernels/cuda/step_gemv.cuh"

#include <algorithm>
#include <bit>

#include "base/checked.h"
#include "kernels/cuda/bit_step.h"
#include "kernels/cuda/gemm/schedule/activation_groups.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"
#include "kernels/cuda/gemm/weight_order/trellis_order.h"
#include "kernels/cuda/half_step.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_lookup.h"

namespace lowbit::cuda {
namespace {

constexpr int kSpreadBytes = 16;   // behind a row of codes: rows in different banks
constexpr int kStepGemvTeams = 2;  // of a multiprocessor
constexpr int64_t kExactColumns = 128;

bool gates(ProductEnd end) { return end == ProductEnd::kSilu || end == ProductEnd::kSquaredRelu; }
int bits_of(const StepProducts& call) { return stored_bits(call.kernel->format, GemmActivation::kInt8).bits; }
bool looks_up(int bits) { return bits == kTable || bits == kTrellis; }
/// As decode_int8_parts() has it.
ByteTable product_table(int bits, const ByteTable& table) {
  return bits == kTable ? split_table(table).value_or(ByteTable{}) : table_in_order(bits, table);
}
/// ProductCopies::kStageBytes.
int stage_bytes(int bits) {
  return bits == kTrellis ? ProductCopies<kTrellis>::kStageBytes
                          : kProductBatches * kProductThreads * stored_width(bits) * 4;
}

/// A row of weights has one scale, and more activation groups than a share: none of their sums are passed on.
bool has_row_scales(const ProductArgs& args) { return args.weight_groups == 1 && args.per_scale > kStepGemvXGroups; }

/// One token streams where lanes that pass a group's sum on have whole groups.
bool streams(const ProductArgs& args) {
  return args.m == 1 &&
         ((has_row_scales(args) && !args.looks_up) ||
          (args.per_scale <= kStepGemvXGroups && std::has_single_bit(static_cast<unsigned>(args.per_scale))));
}

/// How warps share K: an even number of batches of a warp at a time, which hold whole groups.
void cut_step_gemv(ProductArgs& args) {
  const int batches = static_cast<int>(ceil_div(args.k, 64));
  const int of_sum = has_row_scales(args) ? 1 : args.per_scale;
  args.warp_batches = batches <= kProductThreads / 16 && of_sum <= 4 ? 2 : kProductBatches;
  args.depth = std::min(kProductThreads / 32, static_cast<int>(ceil_div(batches, args.warp_batches)));
  args.sum_shift = std::countr_zero(static_cast<unsigned>(of_sum));
}

int step_gemv_stages(bool pairs, int bits) {
  return pairs ? kStepGemvStages<4, 2> : bits == 8 ? kStepGemvStages<8, 1> : kStepGemvStages<4, 1>;
}
/// place() for one token.
int place_step_gemv(const StepProducts& call, ProductArgs& args, int grid) {
  const bool pairs = gates(call.end);
  const int tiles = pairs ? 2 : 1, bits = bits_of(call), of_group = tiles * 16 * 4,
            groups = args.weight_groups * of_group,
            sums = (has_row_scales(args) ? args.x_group_count : args.weight_groups) * of_group;
  args.stages = step_gemv_stages(pairs, bits);
  args.rounds = static_cast<int>(ceil_div(args.tiles, std::max(args.teams * grid, 1)));
  args.scale_stages = static_cast<int>(std::min(ceil_div(args.stages, args.chunks) + 2, int64_t{args.rounds}));
  args.weights_at = args.scale_stages * groups;
  args.results_at = args.weights_at + args.stages * tiles * stage_bytes(bits);
  args.team_bytes = args.results_at + 2 * sums;
  const int norm = args.norm == nullptr ? 0 : 4 * padded_norm_columns(args.k);
  args.rows_at = args.teams == 1 ? args.results_at : args.teams * args.team_bytes;
  args.codes_at = args.teams == 1 ? args.results_at + std::max(2 * sums, norm) : args.rows_at + norm;
  args.x_scales_at = args.codes_at + args.k_blocks * 128 + 32 * kStepGemvXGroups;
  args.quarters_at = args.x_scales_at + (args.k_blocks * 4 + kStepGemvXGroups) * 4;
  args.groups_at = args.quarters_at + 16;
  const int end = args.groups_at + (args.y_codes == nullptr ? 0 : args.rounds * (32 + 1) * 4);
  // Behind few results there may be less than is read with them.
  const int count = sums / of_group, last_team = (args.teams - 1) * args.team_bytes + args.results_at + sums,
            read = ((tiles - 1) * count + static_cast<int>(round_up(count, kGroupsAtOnce))) * 16 * 4;
  return std::max(end, last_team + read);
}

/// Lays out shared memory; returns its bytes.
int place(const StepProducts& call, ProductArgs& args, int grid) {
  const int tiles = gates(call.end) ? 2 : 1, stage = stage_bytes(bits_of(call)) * tiles;
  if (streams(args)) return place_step_gemv(call, args, grid);
  args.stages = std::min(args.chunks, kProductStages);
  args.weights_at = static_cast<int>(round_up(tiles * args.weight_groups * 16 * 4, 16));
  args.results_at = args.weights_at + args.stages * stage;
  args.codes_at = args.results_at + std::max(tiles * args.weight_groups * args.m * 16 * 4, 64);
  args.code_pitch = static_cast<int>(round_up(args.k, 64)) + kSpreadBytes;
  args.x_scales_at = args.codes_at + args.m * args.code_pitch;
  args.rows_at = args.x_scales_at + static_cast<int>(round_up(args.m * args.x_group_count * 4, 16));
  args.norm_at = args.rows_at + (args.norm == nullptr ? 0 : args.m * args.k * 4);
  // Behind codes there must be as many bytes as a share has, whatever they are.
  return args.norm_at + (args.norm == nullptr ? 0 : args.k * 4) + 64 * kProductBatches;
}

/// Thread blocks. Where all weights are under way at once, more blocks than have the same number of tiles each would
/// end no sooner: the multiprocessors that are left take those of the next launch, like attention's behind q, k and v.
int grid_of(const StepProducts& call, const ProductArgs& args, const Device& device) {
  if (!streams(args)) return args.tiles;
  const auto blocks = static_cast<int>(ceil_div(args.tiles, args.teams));
  const int most = std::max(kStepGemvTeams / args.teams * device.processors, 1);
  const auto rounds = static_cast<int>(ceil_div(blocks, most));
  const bool at_once = rounds * args.chunks <= step_gemv_stages(gates(call.end), bits_of(call));
  return at_once ? static_cast<int>(ceil_div(blocks, rounds)) : std::min(blocks, most);
}

ProductArgs args_of(const StepProducts& call, const Device& device) {
  const Matmul& first = call.parts[0];
  ProductArgs args{};
  args.parts = call.count;
  args.rows = call.rows;
  args.codes = static_cast<const int8_t*>(first.x);
  args.x_scales = first.x_scales;
  args.ldx = first.ldx;
  args.norm = call.norm;
  args.y_codes = call.y_codes;
  args.y_scales = call.y_scales;
  args.eps = call.eps;
  args.m = static_cast<int>(first.m);
  args.k = static_cast<int>(first.w.k);
  args.k_blocks = static_cast<int>(ceil_div(first.w.k, 128));
  args.x_group_count = static_cast<int>(first.w.groups);
  args.looks_up = looks_up(bits_of(call));
  args.exact_scales = first.exact_scales;
  args.per_scale = static_cast<int>(std::clamp<int64_t>(first.w.groups_per_scale, 1, first.w.groups));
  args.weight_groups = static_cast<int>(ceil_div(args.x_group_count, args.per_scale));
  args.end = call.end;
  ActivationGroupArgs cut{};
  cut.per_scale = args.per_scale;
  cut.k = args.k;
  cut_activation_groups_skinny(cut);
  args.depth = cut.whole_groups != 0 ? cut.depth : 0;
  args.warp_batches = cut.warp_batches;
  if (streams(args)) cut_step_gemv(args);
  args.chunks = static_cast<int>(ceil_div(ceil_div(args.k, 64), std::max(args.depth * args.warp_batches, 1)));
  int block = 0;
  for (int i = 0; i < call.count; ++i) {
    const Matmul& from = call.parts[static_cast<size_t>(i)];
    const ByteTable table = product_table(bits_of(call), from.table);
    args.part[i] = {from.w.codes,
                    from.w.scales,
                    from.bias,
                    static_cast<float*>(from.y),
                    from.ldy,
                    {table[0], table[1], table[2], table[3]},
                    static_cast<int>(from.w.n),
                    static_cast<int>(factor_rows(from.w.n)),
                    block};
    block += static_cast<int>(ceil_div(from.w.n, 16));
  }
  args.tiles = gates(call.end) ? static_cast<int>(ceil_div(call.parts[0].w.n, 16)) : block;
  // Each block makes x's codes: where tiles are many, for twice as many warps, if there is room.
  args.teams = streams(args) && !has_row_scales(args) && args.rows != nullptr && args.tiles > device.processors ? 2 : 1;
  if (args.teams == 2 && place(call, args, grid_of(call, args, device)) > device.shared_bytes) args.teams = 1;
  return args;
}

bool takes(const StepProducts& call, const Matmul& part) {
  const Weight &w = part.w, &first = call.parts[0].w;
  // A warp makes the codes of 128 columns: of one row where they share a scale.
  const bool alone = !part.exact_scales || call.rows == nullptr || part.m == 1 || w.k % kExactColumns == 0;
  return alone && part.x_groups && part.exact_scales == call.parts[0].exact_scales && part.spread == 0 &&
         w.groups > 1 && w.group == kActivationGroupColumns && (bits_of(call) != kTable || split_table(part.table)) &&
         w.offsets == nullptr && w.k == first.k && w.k % 4 == 0 && w.groups_per_scale == first.groups_per_scale &&
         part.m == call.parts[0].m && part.y_element == Element::kF32 && w.n > 0 && w.n <= (1 << 24) &&
         w.k <= (1 << 20);
}

template <int Bits, int kTiles>
const void* kernel_of(const ProductArgs& args) {
  constexpr bool kMayBeExact = Bits == 2 || Bits == 4;
  if (!streams(args))
    return kMayBeExact && args.exact_scales
               ? reinterpret_cast<const void*>(&step_products_kernel<Bits, kTiles, kMayBeExact>)
               : reinterpret_cast<const void*>(&step_products_kernel<Bits, kTiles>);
  if constexpr (kMayBeExact)
    if (args.exact_scales)
      return args.teams == 2 ? reinterpret_cast<const void*>(&step_gemv_kernel<Bits, kTiles, false, 2, true>)
                             : reinterpret_cast<const void*>(&step_gemv_kernel<Bits, kTiles, false, 1, true>);
  if (args.teams == 2) return reinterpret_cast<const void*>(&step_gemv_kernel<Bits, kTiles, false, 2>);
  if constexpr (Bits != kTable && Bits != kTrellis)
    if (has_row_scales(args)) return reinterpret_cast<const void*>(&step_gemv_kernel<Bits, kTiles, true, 1>);
  return reinterpret_cast<const void*>(&step_gemv_kernel<Bits, kTiles, false, 1>);
}
template <int kTiles>
const void* kernel_of(int bits, const ProductArgs& args) {
  return bits == 2          ? kernel_of<2, kTiles>(args)
         : bits == 4        ? kernel_of<4, kTiles>(args)
         : bits == kTable   ? kernel_of<kTable, kTiles>(args)
         : bits == kTrellis ? kernel_of<kTrellis, kTiles>(args)
                            : kernel_of<8, kTiles>(args);
}

}  // namespace

bool takes_step_products(const StepProducts& call) {
  if (takes_bit_step(call) || takes_half_step(call)) return true;
  const int64_t m = call.parts[0].m;
  if (call.kernel->instance == nullptr || m < 1 || m > kMostStepRows) return false;
  for (int i = 0; i < call.count; ++i)
    if (!takes(call, call.parts[static_cast<size_t>(i)])) return false;
  if (gates(call.end) && (call.count != 2 || call.parts[0].w.n != call.parts[1].w.n)) return false;
  const int bits = bits_of(call);
  if (bits != 2 && bits != 4 && bits != 8 && !looks_up(bits)) return false;
  Device device{};
  if (current_device(&device) != cudaSuccess) return false;
  ProductArgs args = args_of(call, device);
  return args.depth > 0 && place(call, args, grid_of(call, args, device)) <= device.shared_bytes;
}

bool leaves_codes(const StepProducts& call) {
  const int64_t n = call.parts[0].w.n;
  Device device{};
  // The layer behind one with exact scales has such, too: of 128 columns, more than a block has at a time.
  if (!gates(call.end) || takes_bit_step(call) || takes_half_step(call) || n % 64 != 0 || call.parts[0].exact_scales ||
      current_device(&device) != cudaSuccess)
    return false;
  int8_t code = 0;
  StepProducts leaving = call;  // which takes some more room
  leaving.y_codes = &code;
  const ProductArgs args = args_of(leaving, device);
  return streams(args) && args.rows != nullptr && args.teams == 2;
}

int64_t step_product_blocks(const StepProducts& call) {
  if (takes_bit_step(call)) return bit_step_blocks(call);
  if (takes_half_step(call)) return half_step_blocks(call);
  Device device{};
  (void)current_device(&device);  // takes_step_products() says no where there is none
  return grid_of(call, args_of(call, device), device);
}

Status step_products(const StepProducts& call) {
  if (takes_bit_step(call)) return bit_step_products(call);
  if (takes_half_step(call)) return half_step_products(call);
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return check_cuda(e, "products");
  ProductArgs args = args_of(call, device);
  const int grid = grid_of(call, args, device), shared = place(call, args, grid), bits = bits_of(call);
  const void* const kernel = gates(call.end) ? kernel_of<2>(bits, args) : kernel_of<1>(bits, args);
  if (const auto e = allow_shared(kernel, device); e != cudaSuccess) return check_cuda(e, "products");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(kProductThreads * args.teams));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = static_cast<cudaStream_t>(call.parts[0].stream);
  config.attrs = &attribute;
  config.numAttrs = call.parts[0].overlap && device.bulk_copies ? 1 : 0;
  void* list[] = {&args};
  return check_cuda(cudaLaunchKernelExC(&config, kernel, list), "products");
}

}  // namespace lowbit::cuda
