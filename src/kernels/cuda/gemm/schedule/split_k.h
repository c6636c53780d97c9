#pragma once
// The launcher's view of the split-K pipeline (gemm_split_k.cuh), and how it cuts a problem.

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/schedule/wgmma_kernel.h"

namespace lowbit::cuda {

inline constexpr int kSplitKTokens = 16;
inline constexpr int kSplitKHeld = 8;        // groups of a warpgroup whose sums it keeps in registers
inline constexpr int kSplitKCopyBlocks = 4;  // blocks of K per copy of x, and per barrier
inline constexpr int kSplitKBarriers = 16;
/// 16-bit x: warps of a block, and blocks of x of each that have room at a time.
inline constexpr int kSplitKWarps = 8, kSplitKXStages = 2;

/// In WgmmaKernel::scale_at, behind ScaleAt: what a warpgroup does with its sums. Integers with groups; with one scale
/// per row; f16 and bf16.
enum class SplitKSums { kHeld = 4, kAdded, kScaled };
inline constexpr int copy_blocks(SplitKSums sums) { return sums == SplitKSums::kScaled ? 1 : kSplitKCopyBlocks; }
inline bool is_split_k(const WgmmaKernel& kernel) {
  return kernel.scale_at >= int(SplitKSums::kHeld) && !is_warp_specialized(kernel);
}

/// Blocks of K of a block, of a warpgroup, of a group; byte positions in shared memory (x is at 0).
struct SplitKCut {
  int split_blocks = 0, depth_blocks = 0, group_blocks = 0;
  int weights_at = 0, scales_at = 0, parts_at = 0, barriers_at = 0;
  int bytes = 0;  // 0: the kernel cannot run this
};
SplitKCut cut_split_k(const WgmmaKernel& kernel, const GemmProblem& problem, int split);

}  // namespace lowbit::cuda
