#pragma once
// What the launcher knows of the pipeline for one row of x in bulk copies (gemm_bulk_row.cuh), and how it cuts a problem.

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/wgmma_kernel.h"

namespace lowbit::cuda {

/// Warpgroups of a block, which share K; blocks of K of a copy; copies of a warpgroup that have room at a time.
inline constexpr int kBulkRowDepth = 4, kBulkRowCopy = 4, kBulkRowPlaces = 3;
inline constexpr int kBulkRowFold = 9;  // in WgmmaKernel::fold
inline bool is_bulk_row(const WgmmaKernel& kernel) { return kernel.fold == kBulkRowFold; }

/// Byte positions in shared memory and blocks of K.
struct BulkRowCut {
  int depth_blocks = 0, group_blocks = 0;
  int weights_at = 0, x_at = 0, scales_at = 0, barriers_at = 0;
  int bytes = 0;  // 0: the kernel cannot run this
};
BulkRowCut cut_bulk_row(const GemmProblem& problem);

}  // namespace lowbit::cuda
