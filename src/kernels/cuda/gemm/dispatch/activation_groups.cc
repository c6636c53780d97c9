// Launches of int8 x with a scale per group of 32 columns.

#include <algorithm>
#include <array>
#include <span>

#include "kernels/cuda/gemm/dispatch/launch.h"
#include "kernels/cuda/gemm/schedule/activation_group_stream.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"
#include "kernels/cuda/gemm/weight_order/trellis_order.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda_lookup.h"

namespace lowbit::cuda {

using namespace gemm_launch;  // NOLINT

namespace {

ActivationGroupArgs make_activation_group_args(const GemmProblem& p, int64_t per_scale) {
  ActivationGroupArgs args{make_args(p, 1, 1, 1), 0, 0, 0, p.whole_sums ? 1 : 0};
  args.per_scale = int(std::clamp<int64_t>(per_scale, 1, args.groups));
  args.weight_groups = int(ceil_div(args.groups, args.per_scale));
  return args;
}

/// Boxes of four scales of x of `tokens` rows, zeros outside.
bool make_scale_map(const GemmProblem& p, int tokens, CUtensorMap* map) {
  const cuuint64_t sizes[2] = {cuuint64_t(p.w.k / kActivationGroupColumns), cuuint64_t(p.m)},
                   strides[1] = {cuuint64_t(p.x_scale_row_stride) * sizeof(float)};
  const cuuint32_t box[2] = {4, cuuint32_t(tokens)}, steps[2] = {1, 1};
  return encode_tiled() != nullptr &&
         encode_tiled()(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, const_cast<float*>(p.x_scale), sizes, strides, box,
                        steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// False where the table has to be split, and cannot be.
bool put_tables(int bits, const GemmWeights& w, ActivationGroupStreamPart& part) {
  const ByteTable table = std::to_array(w.table);
  std::ranges::copy(table_in_order(bits, table), part.table[0]);
  if (bits != kTable) return true;
  const auto halves = split_table(table);
  if (halves) std::ranges::copy(*halves, part.table[1]);
  return halves.has_value();
}

/// Products of the same x by gemm_activation_groups_stream().
GemmStatus launch_stream(std::span<const GemmProblem> parts, int64_t per_scale, ActivationGroupTile tile,
                         const Device& device, cudaStream_t stream) {
  const GemmProblem& p = parts.front();
  ActivationGroupStreamArgs args{make_activation_group_args(p, per_scale), {}, int(parts.size()), 0, 0};
  const int bits = stored_bits(p.w.format, p.w.activation).bits;
  const ActivationGroupKernel* kernel = find_activation_group_kernel(bits, tile, args);
  if (kernel == nullptr || device.arch != 90 || !can_stream(p, kernel->tokens)) return GemmStatus::kUnsupported;
  for (size_t i = 0; i < parts.size(); ++i) {
    const GemmProblem& one = parts[i];
    args.parts[i] = {static_cast<const uint8_t*>(one.w.tiles),
                     one.w.scales,
                     one.bias,
                     one.y,
                     one.ldy,
                     {},
                     int(one.w.n),
                     int(padded_rows(one.w.n)),
                     args.tile_count};
    if (!put_tables(bits, one.w, args.parts[i])) return GemmStatus::kUnsupported;
    args.tile_count += int(ceil_div(one.w.n, kernel->rows));
  }
  const int rounds = (args.k_blocks + kStreamWarps - 1) / kStreamWarps, of_slot = stream_x_bytes(kernel->tokens);
  args.x_slots = std::min({rounds, kMostStreamXSlots, (device.shared - kernel->shared_bytes) / of_slot});
  if (args.x_slots < std::min(rounds, 2)) return GemmStatus::kUnsupported;
  const int shared = kernel->shared_bytes + args.x_slots * of_slot;
  CUtensorMap x_map, scale_map;
  if (!make_map(p, kernel->tokens, &x_map) || !make_scale_map(p, kernel->tokens, &scale_map))
    return GemmStatus::kUnsupported;
  if (cudaError_t e =
          cudaFuncSetAttribute(kernel->function, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared);
      e != cudaSuccess)
    return launched(e);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(std::min(args.tile_count, device.processors)));
  config.blockDim = dim3(unsigned(kernel->threads));
  config.dynamicSmemBytes = size_t(shared), config.stream = stream;
  config.attrs = &attribute, config.numAttrs = p.overlap_previous ? 1 : 0;
  void* list[] = {&x_map, &scale_map, &args};
  return launched(cudaLaunchKernelExC(&config, kernel->function, list));
}

GemmStatus launch_activation_groups(const GemmProblem& p, int64_t per_scale, ActivationGroupTile tile,
                                    const Device& device, cudaStream_t stream) {
  if (is_stream(tile)) return launch_stream({&p, 1}, per_scale, tile, device, stream);
  ActivationGroupArgs args = make_activation_group_args(p, per_scale);
  if (tile == ActivationGroupTile::kSkinny) cut_activation_groups_skinny(args);
  const ActivationGroupKernel* kernel =
      find_activation_group_kernel(stored_bits(p.w.format, p.w.activation).bits, tile, args);
  if (kernel == nullptr || args.k == 0) return GemmStatus::kUnsupported;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.stream = stream, config.attrs = &attribute;
  const bool skinny = tile == ActivationGroupTile::kSkinny;
  const int shared = skinny ? ActivationGroupSkinnyOffsets(args).bytes : kernel->shared_bytes;
  const int64_t rows = skinny ? 16 : kernel->rows, tokens = skinny ? kActivationGroupSkinnyTokens : kernel->tokens;
  if (shared > device.shared) return GemmStatus::kUnsupported;
  if (cudaError_t e = cudaFuncSetAttribute(kernel->function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           skinny ? device.shared : shared);
      e != cudaSuccess)
    return launched(e);
  args.m_tiles = int(ceil_div(p.m, tokens)), args.n_tiles = int(ceil_div(p.w.n, rows));
  args.band = std::max<int>(1, band_rows(p) / int(tokens));
  const int64_t tiles = int64_t(args.m_tiles) * args.n_tiles;
  if (tiles >= kTileRowLimit) return GemmStatus::kUnsupported;
  const bool wgmma = tile >= ActivationGroupTile::kWgmma128x64;
  CUtensorMap map;
  if (wgmma && (!has_wgmma_activation_groups(device.arch) || !args.x_aligned || args.offsets != nullptr))
    return GemmStatus::kUnsupported;
  if (tile >= ActivationGroupTile::kWhole128x64 && !p.exact_x_scales) return GemmStatus::kUnsupported;
  if (wgmma && !make_map(p, int(tokens), &map)) return GemmStatus::kCudaError;
  config.gridDim = tile < ActivationGroupTile::k64x32
                       ? dim3(unsigned(args.n_tiles), unsigned(args.m_tiles))
                       : dim3(unsigned(wgmma ? std::min<int64_t>(tiles, device.processors) : tiles));
  config.blockDim =
      dim3(unsigned(skinny ? activation_group_skinny_threads(args) : kernel->threads + (wgmma ? 128 : 0)));
  config.dynamicSmemBytes = size_t(shared);
  config.numAttrs = p.overlap_previous && device.arch >= 90 ? 1 : 0;
  void *list[] = {&args}, *with_map[] = {&map, &args};
  return launched(cudaLaunchKernelExC(&config, kernel->function, wgmma ? with_map : list));
}

}  // namespace

GemmStatus gemm_activation_groups_as(const GemmProblem& p, int64_t per_scale, ActivationGroupTile tile,
                                     cudaStream_t stream) {
  if (const GemmStatus s = check(p); s != GemmStatus::kOk) return s;
  const Device device = current_device();
  if (p.w.group != kActivationGroupColumns || !supports(p, device.arch)) return GemmStatus::kUnsupported;
  return p.m == 0 || p.w.n == 0 ? GemmStatus::kOk : launch_activation_groups(p, per_scale, tile, device, stream);
}

GemmStatus gemm_activation_groups_stream(std::span<const GemmProblem> parts, int64_t per_scale,
                                         ActivationGroupTile tile, cudaStream_t stream) {
  const Device device = current_device();
  if (parts.empty() || parts.size() > size_t{kMostStreamParts} || !is_stream(tile)) return GemmStatus::kUnsupported;
  for (const GemmProblem& p : parts) {
    if (const GemmStatus s = check(p); s != GemmStatus::kOk) return s;
    if (p.w.group != kActivationGroupColumns || !supports(p, device.arch) || p.m == 0 || p.w.n == 0)
      return GemmStatus::kUnsupported;
  }
  return launch_stream(parts, per_scale, tile, device, stream);
}

}  // namespace lowbit::cuda
