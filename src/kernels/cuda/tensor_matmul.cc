#include "kernels/cuda/tensor_matmul.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/checked.h"
#include "base/try.h"
#include "kernels/cuda/gemm/dispatch/choose.h"
#include "kernels/cuda/gemm/schedule/activation_groups.h"
#include "kernels/cuda/gemm/schedule/skinny.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"
#include "kernels/cuda/generic.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_row_products_api.h"

namespace lowbit::cuda {
namespace {

constexpr int64_t kGemvRows = 8;     // up to here integer_gemv.h has its own order
constexpr int64_t kSpreadRows = 32;  // of a launch, with MatmulShape::spread
constexpr int64_t kSplitRows = 512;  // rows of f32 x that are cut into parts at a time
constexpr int kAssumedProcessors = 132, kAssumedArch = 90,
              kAssumedShared = 227 << 10;  // where there is no device to ask

cudaStream_t as_stream(void* handle) { return static_cast<cudaStream_t>(handle); }

GemmActivation gemm_activation(Activation a) {
  return a == Activation::kInt8 ? GemmActivation::kInt8 : GemmActivation::kBf16;  // f16 and bf16 share an order
}
GemmOutput gemm_output(Element e) {
  return e == Element::kF32 ? GemmOutput::kF32 : e == Element::kF16 ? GemmOutput::kF16 : GemmOutput::kBf16;
}

Device this_device() {
  Device d;
  if (current_device(&d) != cudaSuccess || d.arch == 0) {
    cudaGetLastError();
    d.arch = kAssumedArch;
    d.processors = kAssumedProcessors;
    d.shared_bytes = kAssumedShared;
  }
  return d;
}

/// Activation groups that share a scale of the weights; 0: x has other scales. Kernels of their own for scales of x per
/// 32 columns.
int64_t activation_groups_per_scale(const MatmulShape& s) {
  return s.x_groups && s.groups > 1 && s.group == kActivationGroupColumns ? std::max<int64_t>(1, s.groups_per_scale)
                                                                          : 0;
}

/// The problem of a shape, with x where every kernel can read it.
GemmProblem problem_of(FormatId format, GemmActivation activation, const MatmulShape& s) {
  static const uint8_t place[256] = {};
  GemmProblem p;
  p.w.format = format;
  p.w.activation = activation;
  p.w.n = s.n;
  p.w.k = s.k;
  p.w.group = s.groups > 1 ? s.group : 0;
  p.w.offsets = s.offsets ? reinterpret_cast<const float*>(place) : nullptr;
  p.m = s.m;
  p.x = place - reinterpret_cast<uintptr_t>(place) % 16 + 16;
  p.ldx = p.ldy = round_up(std::max<int64_t>(s.k, 1), 128);
  p.x_scale_group_stride = s.x_groups ? 1 : 0, p.x_scale_row_stride = s.x_groups ? s.groups : 1;
  p.whole_sums = s.spread > 0, p.exact_x_scales = s.exact_scales;
  return p;
}

int32_t pack_choice(const GemmProblem& p, const GemmChoice& c) {
  if (c.skinny) return 1;
  if (c.wgmma == nullptr) return 0;
  const WgmmaTable* table = find_wgmma_table(p.w.activation, stored_bits(p.w.format, p.w.activation).bits);
  const auto at = static_cast<int32_t>(c.wgmma - table->kernels);
  return 2 + at * 4 + std::countr_zero(static_cast<unsigned>(c.split));
}
GemmChoice unpack_choice(const GemmProblem& p, int32_t instance) {
  GemmChoice c;
  c.skinny = instance == 1;
  if (instance < 2) return c;
  const WgmmaTable* table = find_wgmma_table(p.w.activation, stored_bits(p.w.format, p.w.activation).bits);
  if (table == nullptr || (instance - 2) / 4 >= table->count) return c;
  c.wgmma = &table->kernels[(instance - 2) / 4];
  c.split = 1 << (instance - 2) % 4;
  return c;
}

Status status_of(GemmStatus status) {
  if (status == GemmStatus::kOk) return {};
  if (status == GemmStatus::kCudaError) {
    if (auto s = check_cuda(cudaGetLastError(), "matmul"); !s) return s;
    return fail(ErrorCode::kUnsupported, "matmul", "x as the driver takes no tensor map of");
  }
  return fail(ErrorCode::kUnsupported, "matmul", gemm_status_name(status));
}

/// The chosen kernel, or, where x lies as that one cannot read it, the one that reads anything.
Status run_problem(const GemmProblem& p, const GemmChoice& choice, void* stream) {
  const GemmStatus status = gemm_as(p, choice, as_stream(stream));
  if (status != GemmStatus::kUnsupported) return status_of(status);
  return status_of(gemm_as(p, {}, as_stream(stream)));
}

GemmProblem problem_of_call(FormatId format, GemmActivation activation, const Matmul& call) {
  GemmProblem p;
  const Weight& w = call.w;
  p.w = {format, activation, w.n, w.k, w.groups > 1 ? w.group : 0, w.codes, w.scales, w.offsets};
  std::ranges::copy(call.table, p.w.table);
  p.m = call.m;
  p.x = call.x;
  p.ldx = std::max(call.ldx, w.k);  // of one row it does not matter
  p.bias = call.bias;
  p.y = call.y;
  p.output = gemm_output(call.y_element);
  p.ldy = std::max(call.ldy, w.n);
  p.overlap_previous = call.overlap, p.exact_x_scales = call.exact_scales;
  return p;
}

MatmulShape shape_of(const Matmul& call) {
  const Weight& w = call.w;
  MatmulShape s = {call.m, w.n, w.k, w.group, w.groups, w.offsets != nullptr, call.x_groups, w.groups_per_scale};
  s.spread = call.spread, s.x_k = call.x_k, s.exact_scales = call.exact_scales;
  return s;
}

// ---- int8: codes and scales in the workspace when x comes as floats, sums of x when there are offsets

struct Int8Workspace {
  int64_t ldq, scales, sums, bytes;
  int64_t wide, wide_scales;  // MatmulShape::spread: codes and scales as the kernel wants them
};
Int8Workspace int8_workspace(const MatmulShape& s, Element x) {
  Int8Workspace at{};
  const bool quantize = x != Element::kInt8, spreads = s.spread > 0;
  at.ldq = round_up(std::max<int64_t>(spreads ? s.x_k : s.k, 1), 64);
  const int64_t scales = spreads ? ceil_div(s.x_k, s.spread) : s.x_groups ? s.groups : 1;
  at.scales = quantize ? round_up(s.m * at.ldq, 256) : 0;
  at.sums = at.wide = at.scales + (quantize ? round_up(4 * s.m * scales, 256) : 0);
  at.wide_scales = at.wide + (spreads ? round_up(s.m * s.k, 256) : 0);
  const int64_t per_scale = std::max<int64_t>(1, activation_groups_per_scale(s));
  at.bytes = at.wide_scales + (spreads ? 4 * s.m * s.groups : s.offsets ? 4 * s.m * ceil_div(s.groups, per_scale) : 0);
  return at;
}

/// Of codes and scales.
GemmProblem int8_problem(FormatId format, const Matmul& call) {
  GemmProblem p = problem_of_call(format, GemmActivation::kInt8, call);
  p.x_scale = call.x_scales;
  p.x_scale_row_stride = call.x_groups ? call.w.groups : 1;
  p.x_scale_group_stride = call.x_groups ? 1 : 0;
  return p;
}

/// MatmulShape::spread: as many rows at a time as a kernel takes.
Status run_spread(FormatId format, const Matmul& call) {
  const Weight& w = call.w;
  const Int8Workspace at = int8_workspace(shape_of(call), call.x_element);
  const auto stream = as_stream(call.stream);
  SpreadCodes spread{static_cast<const int8_t*>(call.x),
                     call.x_scales,
                     call.m,
                     call.x_k,
                     call.ldx,
                     call.spread,
                     w.groups_per_scale * kActivationGroupColumns,
                     w.k};
  spread.to = reinterpret_cast<int8_t*>(call.workspace + at.wide);
  spread.to_scales = reinterpret_cast<float*>(call.workspace + at.wide_scales);
  if (call.x_element != Element::kInt8) {
    auto* const codes = reinterpret_cast<int8_t*>(call.workspace);
    auto* const scales = reinterpret_cast<float*>(call.workspace + at.scales);
    LOWBIT_TRY(check_cuda(launch_quantize(call.x, call.x_element, call.m, call.x_k, call.ldx, call.spread, false, codes,
                                          at.ldq, scales, call.overlap, stream),
                          "quantize activations"));
    spread.codes = codes, spread.scales = scales, spread.ldx = at.ldq;
  }
  LOWBIT_TRY(check_cuda(launch_spread_codes(spread, call.overlap, stream), "spread activations"));
  GemmProblem p = int8_problem(format, call);
  p.overlap_previous = true;  // that one writes no weights
  p.ldx = w.k, p.whole_sums = true;
  for (int64_t m0 = 0; m0 < call.m; m0 += kSpreadRows) {
    p.m = std::min(kSpreadRows, call.m - m0);
    p.x = spread.to + m0 * w.k, p.x_scale = spread.to_scales + m0 * w.groups;
    p.y = static_cast<uint8_t*>(call.y) + m0 * call.ldy * element_bytes(call.y_element);
    LOWBIT_TRY(status_of(
        gemm_activation_groups_as(p, w.groups_per_scale, static_cast<ActivationGroupTile>(call.instance), stream)));
  }
  return {};
}

Status run_int8(FormatId format, const Matmul& call) {
  if (call.spread > 0) return run_spread(format, call);
  const Weight& w = call.w;
  const MatmulShape shape = shape_of(call);
  const Int8Workspace at = int8_workspace(shape, call.x_element);
  GemmProblem p = int8_problem(format, call);
  const int64_t per_scale = activation_groups_per_scale(shape);
  const int64_t group = w.groups > 1 ? w.group : std::max<int64_t>(w.k, 1);
  if (call.x_element != Element::kInt8) {
    auto* const codes = reinterpret_cast<int8_t*>(call.workspace);
    auto* const scales = reinterpret_cast<float*>(call.workspace + at.scales);
    if (auto s =
            check_cuda(launch_quantize(call.x, call.x_element, call.m, w.k, call.ldx, call.x_groups ? group : 0,
                                       call.exact_scales, codes, at.ldq, scales, call.overlap, as_stream(call.stream)),
                       "quantize activations");
        !s)
      return s;
    p.x = codes;
    p.ldx = at.ldq;
    p.x_scale = scales;
    p.overlap_previous = true;  // that one writes no weights, and waits itself
  }
  if (w.offsets != nullptr) {
    auto* const sums = reinterpret_cast<float*>(call.workspace + at.sums);
    const SumScales scales = {per_scale > 0 ? p.x_scale : nullptr, per_scale};
    if (auto s = check_cuda(launch_code_sums(static_cast<const int8_t*>(p.x), call.m, w.k, p.ldx, group, w.groups,
                                             scales, sums, as_stream(call.stream)),
                            "matmul");
        !s)
      return s;
    p.x_sums = sums;
  }
  if (per_scale > 0) {
    const auto tile = static_cast<ActivationGroupTile>(call.instance);
    const GemmStatus status = gemm_activation_groups_as(p, per_scale, tile, as_stream(call.stream));
    if (status != GemmStatus::kUnsupported) return status_of(status);
    return status_of(gemm_activation_groups_as(p, per_scale, ActivationGroupTile::k64x32, as_stream(call.stream)));
  }
  return run_problem(p, unpack_choice(p, call.instance), call.stream);
}

// ---- f16 and bf16 as they are; f32 as three bf16 parts, whose products are added (docs/adr/0021-three-bf16-parts.md)

struct SplitWorkspace {
  int64_t rows, ldp, sums, back, bytes;  // tokens at a time
};
SplitWorkspace split_workspace(int64_t m, int64_t n, int64_t k) {
  SplitWorkspace at{};
  at.rows = std::min(m, kSplitRows);
  at.ldp = round_up(std::max<int64_t>(k, 1), 64);
  at.sums = round_up(2 * kPartsOfF32 * at.rows * at.ldp, 256);
  at.back = at.sums + round_up(4 * kPartsOfF32 * at.rows * n, 256);
  at.bytes = at.back + 4 * at.rows;
  return at;
}

Status run_split(FormatId format, const Matmul& call) {
  const Weight& w = call.w;
  const SplitWorkspace at = split_workspace(call.m, w.n, w.k);
  auto* const sums = reinterpret_cast<float*>(call.workspace + at.sums);
  auto* const back = reinterpret_cast<float*>(call.workspace + at.back);
  const Device device = this_device();
  for (int64_t m0 = 0; m0 < call.m; m0 += at.rows) {
    const int64_t rows = std::min(at.rows, call.m - m0);
    if (auto s =
            check_cuda(launch_split(static_cast<const float*>(call.x) + m0 * call.ldx, rows, w.k, call.ldx,
                                    reinterpret_cast<uint16_t*>(call.workspace), at.ldp, back, as_stream(call.stream)),
                       "matmul");
        !s)
      return s;
    GemmProblem p = problem_of_call(format, GemmActivation::kBf16, call);
    p.m = kPartsOfF32 * rows;
    p.x = call.workspace;
    p.ldx = at.ldp;
    p.bias = nullptr;
    p.y = sums;
    p.output = GemmOutput::kF32;
    p.ldy = w.n;
    if (auto s = run_problem(p, choose(p, device.arch, device.processors), call.stream); !s) return s;
    if (auto s = check_cuda(launch_add_parts(sums, back, rows, w.n, call.bias, call.y, call.y_element, m0, call.ldy,
                                             as_stream(call.stream)),
                            "matmul");
        !s)
      return s;
  }
  return {};
}

}  // namespace

bool tensor_has(FormatId format, Activation activation) {
  return stored_bits(format, gemm_activation(activation)).bits != 0;
}

const char* tensor_refuses(FormatId format, Activation activation, const MatmulShape& s) {
  if (s.n > (int64_t{1} << 30) || s.k > (int64_t{1} << 30)) return "extents over 2^30";
  const bool int8 = activation == Activation::kInt8;
  const int64_t step = int8 ? 32 : 16;
  const int bits = stored_bits(format, GemmActivation::kInt8).bits;
  if (s.spread > 0 && (!int8 || s.offsets || this_device().arch != 90 || bits == kTwoPlanes))
    return "groups of x that are not multiples of 32";
  if (s.groups > 1 && s.group % step != 0)
    return int8 ? "groups that are not multiples of 32" : "groups that are not multiples of 16";
  if (int8 && (bits == kTable || bits == kTrellis) && activation_groups_per_scale(s) == 0)
    return "a table without scales of x per 32 columns";
  if (int8 && activation_groups_per_scale(s) > 0)
    return bits == kTwoPlanes ? "planes with scales of x per 32 columns" : "";
  if (s.groups_per_scale > 1 && s.groups > 1 && s.x_groups) return "scales of x finer than the weight's";
  if (!int8) return s.offsets ? "offsets with float activations" : "";
  // The GEMV is faster with one scale per row, and quantizes x itself; with groups it is the slower one.
  const bool grouped = s.groups > 1 && s.group % 64 == 0 && !s.offsets;
  if (s.m <= kGemvRows && !grouped) return "one to eight rows of x with these scales";
  return "";
}

int64_t tensor_row_bytes(FormatId format, Activation activation, int64_t k) {
  const bool int8 = activation == Activation::kInt8;
  const int64_t k_step = int8 ? 128 : 64;
  return std::max<int64_t>(1, ceil_div(k, k_step)) * k_step *
         stored_width(stored_bits(format, gemm_activation(activation)).bits) / 8;
}

Status tensor_relayout(FormatId format, Activation activation, const uint8_t* from, int64_t stride, int64_t rows,
                       int64_t k, uint8_t* to, void* stream) {
  return status_of(relayout_weights(format, gemm_activation(activation), from, stride, rows, k, to, as_stream(stream)));
}

int64_t tensor_workspace(Activation activation, const MatmulShape& s, Element x) {
  if (activation == Activation::kInt8) return int8_workspace(s, x).bytes;
  return x == Element::kF32 ? split_workspace(s.m, s.n, s.k).bytes : 0;
}

Status tensor_run(FormatId format, Activation activation, const Matmul& call) {
  if (activation == Activation::kInt8) return run_int8(format, call);
  if (call.x_element == Element::kF32) return run_split(format, call);
  const auto kind = call.x_element == Element::kF16 ? GemmActivation::kF16 : GemmActivation::kBf16;
  const GemmProblem p = problem_of_call(format, kind, call);
  return run_problem(p, unpack_choice(p, call.instance), call.stream);
}

int32_t tensor_instance(FormatId format, Activation activation, const MatmulShape& shape) {
  const Device d = this_device();
  GemmProblem p = problem_of(format, gemm_activation(activation), shape);
  if (shape.spread > 0) p.m = std::min(p.m, kSpreadRows);
  if (const int64_t per_scale = activation_groups_per_scale(shape); per_scale > 0 && activation == Activation::kInt8)
    return static_cast<int32_t>(choose_activation_groups(p, per_scale, d.arch, d.processors, d.shared_bytes));
  return supports(p, d.arch) ? pack_choice(p, choose(p, d.arch, d.processors)) : 0;
}

std::string tensor_instance_name(FormatId format, Activation activation, const MatmulShape& shape, int32_t instance) {
  if (activation_groups_per_scale(shape) > 0 && activation == Activation::kInt8)
    return kActivationGroupTileNames[instance];
  const GemmProblem p = problem_of(format, gemm_activation(activation), shape);
  const GemmChoice c = unpack_choice(p, instance);
  if (c.skinny) return kSkinnyName;
  if (c.wgmma == nullptr) return "sm80_128x64";
  return std::string(c.wgmma->name) + (c.split > 1 ? ", K in " + std::to_string(c.split) + " parts" : "");
}

// ---- Several products of the same rows

namespace {

/// One problem with the rows of all weights: it is as fast as they are together.
Matmul all_rows(std::span<const Matmul> calls) {
  Matmul all = calls.front();
  all.w.n = 0;
  for (const Matmul& call : calls) all.w.n += round_up(call.w.n, 32);
  return all;
}
bool have_same_x(const Matmul& a, const Matmul& b) {
  return a.x == b.x && a.x_scales == b.x_scales && a.m == b.m && a.ldx == b.ldx && a.w.k == b.w.k &&
         a.w.groups_per_scale == b.w.groups_per_scale && a.y_element == b.y_element && a.w.offsets == nullptr &&
         b.w.n > 0;
}

}  // namespace

bool takes_row_products(const MatmulKernel& kernel, std::span<const Matmul> calls) {
  if (kernel.instance == nullptr || calls.size() < 2 || calls.size() > size_t{kMostRowProducts}) return false;
  const Matmul& first = calls.front();
  if (first.x_element != Element::kInt8 || first.spread > 0 || activation_groups_per_scale(shape_of(first)) == 0)
    return false;
  for (const Matmul& call : calls)
    if (!have_same_x(first, call)) return false;
  const auto tile =
      static_cast<ActivationGroupTile>(tensor_instance(kernel.format, Activation::kInt8, shape_of(all_rows(calls))));
  return is_stream(tile);
}

bool streams_rows(const MatmulKernel& kernel, const Matmul& call) {
  return kernel.instance != nullptr && call.x_element == Element::kInt8 &&
         activation_groups_per_scale(shape_of(call)) > 0 && is_stream(static_cast<ActivationGroupTile>(call.instance));
}

Status row_products(const MatmulKernel& kernel, std::span<const Matmul> calls) {
  const MatmulShape shape = shape_of(all_rows(calls));
  const auto tile = static_cast<ActivationGroupTile>(tensor_instance(kernel.format, Activation::kInt8, shape));
  std::vector<GemmProblem> parts;
  for (const Matmul& call : calls) parts.push_back(int8_problem(kernel.format, call));
  return status_of(
      gemm_activation_groups_stream(parts, activation_groups_per_scale(shape), tile, as_stream(calls.front().stream)));
}

// ---- Bits times bits

int64_t binary_tile_bytes(int64_t n, int64_t k) {
  return static_cast<int64_t>(tile_bytes(FormatId::kBinary, GemmActivation::kBit, n, k));
}

Status binary_relayout(const uint8_t* from, int64_t stride, int64_t n, int64_t k, uint8_t* tiles, int32_t* ones,
                       void* stream) {
  if (auto s = status_of(
          relayout_weights(FormatId::kBinary, GemmActivation::kBit, from, stride, n, k, tiles, as_stream(stream)));
      !s)
    return s;
  return status_of(relayout_bit_terms(from, stride, n, k, ones, as_stream(stream)));
}

Status binarize_activations(const void* x, Element element, int64_t m, int64_t k, int64_t ldx, uint8_t* bits,
                            float* scales, int32_t* ones, void* stream) {
  if (element == Element::kInt8)
    return fail(ErrorCode::kInvalidArgument, "binarize activations", "int8", "a float type");
  return check_cuda(launch_binarize(x, element, m, k, ldx, bits, binary_row_bytes(k), scales, ones, as_stream(stream)),
                    "binarize activations");
}

Status binary_matmul(const BinaryMatmul& call) {
  if (call.m < 0 || call.n < 0 || call.k < 0 || (call.m > 1 && call.ldy < call.n) || call.y_element == Element::kInt8)
    return fail(ErrorCode::kInvalidArgument, "binary matmul", "sizes or element of y",
                "m, n, k >= 0, ldy >= n, floats");
  if (call.m == 0 || call.n == 0) return {};
  GemmProblem p;
  p.w = {FormatId::kBinary, GemmActivation::kBit, call.n, call.k, 0, call.tiles, call.scales, nullptr, call.ones};
  p.m = call.m;
  p.x = call.x;
  p.ldx = 8 * binary_row_bytes(call.k);
  p.x_bit_terms = call.x_ones;
  p.x_scale = call.x_scales;
  p.bias = call.bias;
  p.y = call.y;
  p.output = gemm_output(call.y_element);
  p.ldy = std::max(call.ldy, call.n);
  p.overlap_previous = call.overlap;
  const Device d = this_device();
  return run_problem(p, choose(p, d.arch, d.processors), call.stream);
}

}  // namespace lowbit::cuda
