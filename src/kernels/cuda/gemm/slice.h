#pragma once
// What the launcher knows of the pipeline for slices of K (gemm_slice.cuh), and how it cuts a problem.

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/wgmma_kernel.h"

namespace lowbit::cuda {

inline constexpr int kSliceRows = 16;
inline constexpr int kSliceHeld = 8;        // groups of a warpgroup whose sums it keeps in registers
inline constexpr int kSliceCopyBlocks = 4;  // blocks of K per copy of x, and per barrier
inline constexpr int kSliceBarriers = 16;
/// 16-bit x: warps of a block, and blocks of x of each that have room at a time.
inline constexpr int kSliceWarps = 8, kSliceXPlaces = 2;

/// In WgmmaKernel::fold, behind Fold: what a warpgroup does with its sums. Integers with groups; with one scale per row; f16
/// and bf16.
enum class SliceSums { kHeld = 4, kAdded, kScaled };
inline constexpr int copy_blocks(SliceSums sums) { return sums == SliceSums::kScaled ? 1 : kSliceCopyBlocks; }
inline bool is_slice(const WgmmaKernel& kernel) { return kernel.fold >= int(SliceSums::kHeld) && !is_deep(kernel); }

/// Blocks of K of a block, of a warpgroup, of a group; byte positions in shared memory (x is at 0).
struct SliceCut {
  int split_blocks = 0, depth_blocks = 0, group_blocks = 0;
  int weights_at = 0, scales_at = 0, parts_at = 0, barriers_at = 0;
  int bytes = 0;  // 0: the kernel cannot run this
};
SliceCut cut_slice(const WgmmaKernel& kernel, const GemmProblem& problem, int split);

}  // namespace lowbit::cuda
