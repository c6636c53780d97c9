#pragma once
// What the launcher knows of the pipeline for few rows of x (gemm_few.cuh), and how it cuts a problem.

#include "base/isa.h"
#include "kernels/cuda/gemm/device_args.h"
#include "kernels/cuda/gemm/gemm.h"

namespace lowbit::cuda {

inline constexpr int kFewRows = 16, kFewThreads = 512;
inline constexpr const char* kFewName = "sm80_few16";

struct FewKernel {
  GemmActivation activation;
  int bits, rows;  // of x, at most
  const void* function;
};

/// The kernel for `rows` rows of x; null when there is none.
const FewKernel* find_few_kernel(GemmActivation activation, int bits, int64_t rows);

/// One row of x: steps of a warp's weights on their way; `bytes`: of one.
constexpr int one_row_slots(int bytes) { return ((5 << 10) + bytes - 1) / bytes; }

/// Shared memory for two and more rows of x: scales of the block's rows [groups][rows], sums [slots][m][rows], x [unit][m][128 bytes], weights
/// [warp][two halves][batch][lane].
struct FewPlaces {
  int rows, scales, sums, x, weights, bytes;
  explicit LOWBIT_HD FewPlaces(const GemmArgs& p) {
    rows = 16 * p.row_tiles;
    scales = 0;
    sums = p.groups * rows * 4;
    x = (sums + p.slots * p.m * rows * 4 + 127) / 128 * 128;
    weights = x + p.unit_blocks * p.m * 128;
    bytes = weights + p.row_tiles * p.depth * 2 * p.half_batches * p.lane_words * 128;
  }
};

/// Dynamic shared memory of a block; `args` have been cut.
int few_shared_bytes(const GemmArgs& args);

/// Cuts the work of `args` (its sizes are set); false when the problem is not for this pipeline. overlap: the next launch's blocks
/// begin beside this one's.
bool cut_few(const GemmProblem& problem, int processors, int device_shared, bool overlap, GemmArgs& args);

}  // namespace lowbit::cuda
