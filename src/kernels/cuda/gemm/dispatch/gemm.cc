// Launches a problem by the kernel that was chosen. Nothing here allocates or waits.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "kernels/cuda/gemm/dispatch/choose.h"
#include "kernels/cuda/gemm/dispatch/launch.h"
#include "kernels/cuda/gemm/schedule/mma_kernel.h"
#include "kernels/cuda/gemm/schedule/skinny.h"
#include "kernels/cuda/gemm/schedule/split_k.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"
#include "kernels/cuda/tensor_map.h"

namespace lowbit::cuda {

using namespace gemm_launch;  // NOLINT

namespace {

constexpr int64_t kMaxIntegerGroup = 131072;  // kernels/api.h: sums of a group are exact
constexpr int64_t kManyWaves = 8;

/// Boxes of `bm` rows by 128 bytes of y, 16-bit elements.
bool make_y_map(const GemmProblem& p, int bm, CUtensorMap* map) {
  const cuuint64_t sizes[2] = {cuuint64_t(p.w.n), cuuint64_t(p.m)}, strides[1] = {cuuint64_t(p.ldy) * 2};
  const cuuint32_t box[2] = {64, cuuint32_t(bm)}, steps[2] = {1, 1};
  return encode_tiled() != nullptr &&
         encode_tiled()(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, p.y, sizes, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// `blocks` blocks of K of up to kSplitKTokens tokens, each as 128 bytes; zeros outside.
bool make_slab_map(const GemmProblem& p, int blocks, CUtensorMap* map) {
  const cuuint64_t block_k = cuuint64_t(pack_k(p.w.activation));
  const cuuint64_t sizes[3] = {block_k, cuuint64_t(p.m), cuuint64_t(p.w.k) / block_k},
                   strides[2] = {cuuint64_t(row_bytes_of(p)), 128};
  const cuuint32_t box[3] = {cuuint32_t(block_k), kSplitKTokens, cuuint32_t(blocks)}, steps[3] = {1, 1, 1};
  return encode_tiled() != nullptr &&
         encode_tiled()(map,
                        is_integer(p.w.activation) ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 3,
                        const_cast<void*>(p.x), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

GemmStatus launch_mma(const GemmProblem& p, cudaStream_t stream) {
  const MmaKernel* kernel = find_mma_kernel(p.w.activation, stored_bits(p.w.format, p.w.activation).bits);
  if (kernel == nullptr) return GemmStatus::kUnsupported;
  GemmArgs args = make_args(p, kMmaBm, kMmaPacks, 1);
  const int64_t tiles = int64_t(args.m_tiles) * args.n_tiles;
  if (tiles >= kTileRowLimit) return GemmStatus::kUnsupported;
  void* list[] = {&args};
  return launched(cudaLaunchKernel(kernel->function, dim3(unsigned(tiles)), dim3(kMmaThreads), list, 0, stream));
}

GemmStatus launch_skinny(const GemmProblem& p, const Device& device, cudaStream_t stream) {
  const SkinnyKernel* kernel = find_skinny_kernel(p.w.activation, stored_bits(p.w.format, p.w.activation).bits, p.m);
  GemmArgs args = make_args(p, kSkinnyTokens, 1, 1);
  const bool overlap = p.overlap_previous && device.arch >= 90;
  if (kernel == nullptr || !cut_skinny(p, device.processors, device.shared, overlap, args))
    return GemmStatus::kUnsupported;
  const int shared = skinny_shared_bytes(args);
  if (shared > device.shared) return GemmStatus::kUnsupported;
  if (cudaError_t e =
          cudaFuncSetAttribute(kernel->function, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared);
      e != cudaSuccess)
    return launched(e);
  // Room for blocks of two launches, and the same split of the L1 for both: a change empties the multiprocessor.
  if (cudaError_t e = cudaFuncSetAttribute(kernel->function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared);
      e != cudaSuccess)
    return launched(e);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(args.skinny_blocks));
  config.blockDim = dim3(unsigned(32 * args.depth * (p.m == 1 ? 1 : args.row_tiles)));
  config.dynamicSmemBytes = size_t(shared), config.stream = stream;
  config.attrs = &attribute, config.numAttrs = overlap ? 1 : 0;
  void* list[] = {&args};
  return launched(cudaLaunchKernelExC(&config, kernel->function, list));
}

/// Blocks of a launch. Where two fit a multiprocessor, those of the next launch begin while this one works: with one
/// block for each multiprocessor, a few of them idle, both are spread evenly. Without, some got two blocks of one
/// launch (measured: 5.8 us instead of 4.9). With many idle ones it is the other way round.
int64_t spread_evenly(int64_t blocks, int split, int processors) {
  return blocks < processors && 4 * blocks >= 3 * processors ? processors / split * split : blocks;
}

GemmStatus launch_split_k(const GemmProblem& p, const GemmChoice& choice, int processors, cudaStream_t stream) {
  const WgmmaKernel& kernel = *choice.wgmma;
  const SplitKCut cut = cut_split_k(kernel, p, choice.split);
  GemmArgs args = make_args(p, kernel.bm, kernel.tile_packs, choice.split);
  args.split_blocks = cut.split_blocks, args.depth_blocks = cut.depth_blocks, args.group_blocks = cut.group_blocks;
  args.weights_at = cut.weights_at, args.scales_at = cut.scales_at, args.parts_at = cut.parts_at;
  args.barriers_at = cut.barriers_at;
  CUtensorMap map;
  if (!make_slab_map(p, copy_blocks(SplitKSums(kernel.scale_at)), &map)) return GemmStatus::kCudaError;
  if (cudaError_t e = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, cut.bytes);
      e != cudaSuccess)
    return launched(e);
  const int64_t blocks = int64_t(args.n_tiles) * choice.split;
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(unsigned(kernel.blocks_per_processor > 1 ? spread_evenly(blocks, choice.split, processors) : blocks));
  config.blockDim = dim3(unsigned(kernel.threads));
  config.dynamicSmemBytes = size_t(cut.bytes), config.stream = stream, config.attrs = attributes;
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {unsigned(choice.split), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.numAttrs = p.overlap_previous ? 2 : 1;
  void* list[] = {&map, &args};
  return launched(cudaLaunchKernelExC(&config, kernel.function, list));
}

/// One tile for each block, or for each cluster of two.
GemmStatus launch_warp_specialized(const GemmProblem& p, const GemmChoice& choice, cudaStream_t stream) {
  const WgmmaKernel& kernel = *choice.wgmma;
  GemmArgs args = make_args(p, kernel.bm, kernel.tile_packs, choice.split);
  const int64_t step = args.groups > 1 ? args.group / pack_k(p.w.activation) : 2;  // whole groups, pairs of blocks
  args.split_blocks = int(ceil_div(ceil_div(args.k_blocks, choice.split), step) * step);
  const int64_t blocks = int64_t(args.m_tiles) * args.n_tiles * choice.split;
  if (blocks >= kTileRowLimit) return GemmStatus::kUnsupported;
  CUtensorMap map;
  if (!make_map(p, kernel.bm, &map)) return GemmStatus::kCudaError;
  if (cudaError_t e =
          cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
      e != cudaSuccess)
    return launched(e);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks)), config.blockDim = dim3(unsigned(kernel.threads));
  config.dynamicSmemBytes = size_t(kernel.shared_bytes), config.stream = stream, config.attrs = attributes;
  if (choice.split > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim = {unsigned(choice.split), 1, 1};
    ++config.numAttrs;
  }
  if (p.overlap_previous) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    ++config.numAttrs;
  }
  void* list[] = {&map, &args};
  return launched(cudaLaunchKernelExC(&config, kernel.function, list));
}

/// Blocks take whole tiles; where the last wave of them is far from full, the columns of n tiles that it would have are
/// cut into narrow tiles, so that it is shorter and all blocks take part: 13824 rows of weights and 512 of x are one
/// wave of 128 rows and one of 96, not two of 128.
void fill_last_wave(const GemmProblem& p, int bm, int narrow, int processors, GemmArgs& args) {
  const int narrow_tiles = int(ceil_div(p.m, narrow));
  const int64_t waves = ceil_div(args.tile_count, processors);
  int64_t best = waves * bm - waves * bm / 32;  // not for less
  for (int64_t wide = waves - 1; wide >= std::max<int64_t>(1, waves - 3); --wide) {
    const int64_t columns = std::min<int64_t>(args.n_tiles, wide * processors / args.m_tiles);
    const int64_t tiles = columns * args.m_tiles + (args.n_tiles - columns) * narrow_tiles;
    const int64_t cost = wide * bm + std::max<int64_t>(0, ceil_div(tiles, processors) - wide) * narrow;
    if (columns == 0 || cost >= best) continue;
    best = cost;
    args.tile_count = int(tiles), args.wide_columns = int(columns), args.narrow_m_tiles = narrow_tiles;
  }
}

GemmStatus launch_wgmma(const GemmProblem& p, const GemmChoice& choice, int processors, cudaStream_t stream) {
  const WgmmaKernel& kernel = *choice.wgmma;
  GemmArgs args = make_args(p, kernel.bm, kernel.tile_packs, choice.split);
  if (int64_t(args.m_tiles) * args.n_tiles * choice.split >= kTileRowLimit) return GemmStatus::kUnsupported;
  args.tile_count = args.m_tiles * args.n_tiles, args.wide_columns = args.n_tiles, args.narrow_m_tiles = 1;
  CUtensorMap map, y_map{}, narrow_y_map{};
  if (!make_map(p, kernel.bm, &map)) return GemmStatus::kCudaError;
  if (kernel.scale_at == 0 && args.boxes) {
    fill_last_wave(p, kernel.bm, kNarrowRows, processors, args);
    if (!make_y_map(p, kernel.bm, &y_map)) return GemmStatus::kCudaError;
    const bool narrow = args.wide_columns < args.n_tiles;
    if (narrow && !make_y_map(p, kNarrowRows, &narrow_y_map)) return GemmStatus::kCudaError;
  }
  const int64_t tiles = args.tile_count;
  const int shared = shared_bytes(kernel, p, choice.split);
  const int64_t resident = int64_t(processors) * kernel.blocks_per_processor;
  if (cudaError_t e = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
      e != cudaSuccess)
    return launched(e);

  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  const bool even = kernel.blocks_per_processor > 1 && p.w.activation == GemmActivation::kInt8 && choice.split == 1;
  const int64_t blocks = choice.split > 1 ? tiles * choice.split : std::min(tiles, resident);
  const int64_t grid = even ? spread_evenly(blocks, 1, processors) : blocks;
  config.gridDim = dim3(unsigned(grid));
  config.blockDim = dim3(unsigned(kernel.threads));
  config.dynamicSmemBytes = size_t(shared), config.stream = stream, config.attrs = attributes;
  if (choice.split > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim = {unsigned(choice.split), 1, 1};
    ++config.numAttrs;
  }
  // Where a multiprocessor has room for two blocks, some would get two of one launch and others none: that costs more
  // than the overlap gains where a block scales groups of many tokens (measured: 11.2 us instead of 9.6).
  const bool uneven = kernel.blocks_per_processor > 1 && kernel.bm > kSkinnyTokens && group_count(p.w) > 1 &&
                      grid == blocks && blocks <= processors;
  // Launches of many waves have nothing to gain, and are slower by 1 to 3 % where power holds the clock down (8192^3
  // with 8 bits).
  const bool many_waves = tiles > kManyWaves * resident;
  if (p.overlap_previous && !uneven && !many_waves) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    ++config.numAttrs;
  }
  void* list[] = {&map, &y_map, &narrow_y_map, &args};
  return launched(cudaLaunchKernelExC(&config, kernel.function, list));
}

}  // namespace

const char* gemm_status_name(GemmStatus status) {
  switch (status) {
    case GemmStatus::kOk:
      return "ok";
    case GemmStatus::kInvalidArgument:
      return "invalid argument";
    case GemmStatus::kUnsupported:
      return "unsupported";
    case GemmStatus::kCudaError:
      return "CUDA error";
  }
  return "?";
}

int64_t padded_rows(int64_t n) { return ceil_div(n, kPanelRows) * kPanelRows; }
int64_t group_count(const GemmWeights& w) { return w.group <= 0 || w.group >= w.k ? 1 : ceil_div(w.k, w.group); }

size_t tile_bytes(FormatId format, GemmActivation activation, int64_t n, int64_t k) {
  const int bits = stored_bits(format, activation).bits;
  if (bits == 0 || n <= 0 || k <= 0) return 0;
  const int64_t pack_bytes = kPackRows * pack_k(activation) * stored_width(bits) / 8;
  return size_t(padded_rows(n) / kPackRows * ceil_div(elements({format, activation, n, k}), pack_k(activation)) *
                pack_bytes);
}

bool supports(const GemmProblem& p, int arch) {
  const int64_t group = group_of(p.w);
  if (arch < 80 || stored_bits(p.w.format, p.w.activation).bits == 0) return false;
  if (p.m > kMaxSize || p.w.n > kMaxSize || p.w.k > kMaxSize) return false;
  const bool int8 = p.w.activation == GemmActivation::kInt8;
  if (p.w.activation == GemmActivation::kBit)
    return group_count(p.w) == 1 && p.w.offsets == nullptr && p.x_scale_group_stride == 0;
  if (int8 && group > kMaxIntegerGroup) return false;
  return group == p.w.k || group % (int8 ? 32 : 16) == 0;
}

GemmStatus gemm_as(const GemmProblem& p, const GemmChoice& choice, cudaStream_t stream) {
  if (const GemmStatus s = check(p); s != GemmStatus::kOk) return s;
  const Device device = current_device();
  if (!supports(p, device.arch)) return GemmStatus::kUnsupported;
  if (p.m == 0 || p.w.n == 0) return GemmStatus::kOk;
  if (choice.skinny) return launch_skinny(p, device, stream);
  if (choice.wgmma == nullptr) return launch_mma(p, stream);
  if (device.arch != 90 || !can_run(*choice.wgmma, p, choice.split)) return GemmStatus::kUnsupported;
  if (is_warp_specialized(*choice.wgmma)) return launch_warp_specialized(p, choice, stream);
  return is_split_k(*choice.wgmma) ? launch_split_k(p, choice, device.processors, stream)
                                   : launch_wgmma(p, choice, device.processors, stream);
}

bool can_run_skinny(const GemmProblem& p, int processors, int device_shared) {
  GemmArgs args = make_args(p, kSkinnyTokens, 1, 1);
  return find_skinny_kernel(p.w.activation, stored_bits(p.w.format, p.w.activation).bits, p.m) != nullptr &&
         cut_skinny(p, processors, device_shared, false, args) && skinny_shared_bytes(args) <= device_shared;
}

GemmStatus gemm(const GemmProblem& p, cudaStream_t stream) {
  const Device device = current_device();
  return gemm_as(p, supports(p, device.arch) ? choose(p, device.arch, device.processors) : GemmChoice{}, stream);
}

}  // namespace lowbit::cuda
