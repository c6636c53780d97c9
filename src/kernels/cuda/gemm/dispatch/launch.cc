#include "kernels/cuda/gemm/dispatch/launch.h"

#include <algorithm>
#include <array>

#include "kernels/cuda/gemm/primitives/running_arch.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"
#include "kernels/cuda/gemm/weight_order/trellis_order.h"
#include "kernels/cuda/tensor_map.h"

namespace lowbit::cuda::gemm_launch {

GemmStatus check(const GemmProblem& p) {
  if (p.m < 0 || p.w.n < 0 || p.w.k < 0 || p.ldx < p.w.k || p.ldy < p.w.n) return GemmStatus::kInvalidArgument;
  if (p.m > kMaxSize || p.w.n > kMaxSize || p.w.k > kMaxSize) return GemmStatus::kUnsupported;
  if (p.m == 0 || p.w.n == 0) return GemmStatus::kOk;
  if (p.y == nullptr || p.w.scales == nullptr) return GemmStatus::kInvalidArgument;
  if (p.w.k > 0 && (p.x == nullptr || p.w.tiles == nullptr)) return GemmStatus::kInvalidArgument;
  if (reinterpret_cast<uintptr_t>(p.w.tiles) % 16 != 0 || reinterpret_cast<uintptr_t>(p.w.scales) % 16 != 0)
    return GemmStatus::kInvalidArgument;
  if (is_integer(p.w.activation) && p.x_scale == nullptr) return GemmStatus::kInvalidArgument;
  if (p.w.activation == GemmActivation::kBit &&
      (p.w.bit_terms == nullptr || p.x_bit_terms == nullptr || p.ldx % 8 != 0))
    return GemmStatus::kInvalidArgument;
  if (p.w.offsets != nullptr && p.x_sums == nullptr) return GemmStatus::kInvalidArgument;
  return GemmStatus::kOk;
}

int band_rows(const GemmProblem& p) {
  const int bits = stored_width(stored_bits(p.w.format, p.w.activation).bits);
  return !is_integer(p.w.activation) || bits <= 2 ? 1024 : bits == 4 ? 1536 : 2048;
}

GemmArgs make_args(const GemmProblem& p, int bm, int tile_packs, int split) {
  const GemmActivation a = p.w.activation;
  GemmArgs args{};
  args.tiles = static_cast<const uint8_t*>(p.w.tiles);
  args.scales = p.w.scales, args.offsets = p.w.offsets;
  args.x = p.x, args.x_row_bytes = row_bytes_of(p);
  args.x_scale = p.x_scale, args.x_scale_row = p.x_scale_row_stride, args.x_scale_group = p.x_scale_group_stride;
  args.x_sums = p.x_sums, args.w_terms = p.w.bit_terms, args.x_terms = p.x_bit_terms, args.bias = p.bias;
  args.y = p.y, args.ldy = p.ldy;
  args.m = int(p.m), args.n = int(p.w.n), args.k = int(elements(p.w)), args.n_padded = int(padded_rows(p.w.n));
  args.output = int(p.output);
  const int64_t pair_bytes = p.output == GemmOutput::kF32 ? 8 : 4;
  args.pairs = p.ldy % 2 == 0 && reinterpret_cast<uintptr_t>(p.y) % uintptr_t(pair_bytes) == 0;
  // A box is cut at whole 16 bytes: where n is no multiple of 8, elements behind a row of y were overwritten.
  args.boxes =
      p.output != GemmOutput::kF32 && p.w.n % 8 == 0 && p.ldy % 8 == 0 && reinterpret_cast<uintptr_t>(p.y) % 16 == 0;
  args.group = int(std::max<int64_t>(1, group_of(p.w))), args.groups = int(group_count(p.w));
  const auto [bits, zero] = stored_bits(p.w.format, a);
  std::ranges::copy(table_in_order(bits, std::to_array(p.w.table)), args.table);
  // 1024 + zero in f16, 128 + zero in bf16: both count in ones there.
  args.half_zero = (a == GemmActivation::kF16 ? 0x6400u + unsigned(zero) : 0x4300u + unsigned(zero)) * 0x10001u;
  args.packs = int(padded_rows(p.w.n) / kPackRows), args.k_blocks = int(ceil_div(elements(p.w), pack_k(a)));
  args.m_tiles = int(ceil_div(p.m, bm)), args.n_tiles = int(ceil_div(args.packs, tile_packs));
  args.band = std::max(1, band_rows(p) / bm);
  args.split = split;
  const int64_t step = args.groups > 1 ? std::max<int64_t>(1, args.group / pack_k(a)) : 1;
  args.split_blocks = int(ceil_div(ceil_div(args.k_blocks, split), step) * step);
  args.x_aligned = reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && args.x_row_bytes % 16 == 0;
  return args;
}

bool make_map(const GemmProblem& p, int bm, CUtensorMap* map) {
  const bool int8 = is_integer(p.w.activation);
  const cuuint64_t sizes[2] = {cuuint64_t(elements(p.w)), cuuint64_t(p.m)}, strides[1] = {cuuint64_t(row_bytes_of(p))};
  const cuuint32_t box[2] = {cuuint32_t(pack_k(p.w.activation)), cuuint32_t(bm)}, steps[2] = {1, 1};
  return encode_tiled() != nullptr &&
         encode_tiled()(map, int8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 2,
                        const_cast<void*>(p.x), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

Device current_device() {
  thread_local Device known;
  int id = 0;
  Device d;
  if (cudaGetDevice(&id) != cudaSuccess) return d;
  if (known.id == id) return known;
  d.id = id;
  cudaDeviceGetAttribute(&d.processors, cudaDevAttrMultiProcessorCount, id);
  cudaDeviceGetAttribute(&d.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
  d.arch = running_arch();
  known = d;
  return d;
}

}  // namespace lowbit::cuda::gemm_launch
