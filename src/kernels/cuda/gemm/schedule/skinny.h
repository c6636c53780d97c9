#pragma once
// The launcher's view of the skinny pipeline (gemm_skinny.cuh), and how it cuts a problem.

#include "base/isa.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/schedule/device_args.h"

namespace lowbit::cuda {

inline constexpr int kSkinnyTokens = 16, kSkinnyThreads = 512;
inline constexpr const char* kSkinnyName = "sm80_few16";

struct SkinnyKernel {
  GemmActivation activation;
  int bits, rows;  // of x, at most
  const void* function;
};

/// The kernel for `rows` tokens; null when there is none.
const SkinnyKernel* find_skinny_kernel(GemmActivation activation, int bits, int64_t rows);

/// One token: steps of a warp's weights on their way; `bytes`: of one.
constexpr int gemv_slots(int bytes) { return ((5 << 10) + bytes - 1) / bytes; }

/// Shared memory for two and more tokens: scales of the block's rows [groups][rows], sums [slots][m][rows], x
/// [pack][m][128 bytes], weights [warp][two halves][batch][lane].
struct SkinnyOffsets {
  int rows, scales, sums, x, weights, bytes;
  explicit LOWBIT_HD SkinnyOffsets(const GemmArgs& p) {
    rows = 16 * p.row_tiles;
    scales = 0;
    sums = p.groups * rows * 4;
    x = (sums + p.slots * p.m * rows * 4 + 127) / 128 * 128;
    weights = x + p.k_blocks * p.m * 128;
    bytes = weights + p.row_tiles * p.depth * 2 * p.half_batches * p.lane_words * 128;
  }
};

/// Dynamic shared memory of a block; `args` have been cut.
int skinny_shared_bytes(const GemmArgs& args);

/// Cuts the work of `args` (its sizes are set); false when the problem is not for this pipeline. overlap: the next
/// launch's blocks begin beside this one's.
bool cut_skinny(const GemmProblem& problem, int processors, int device_shared, bool overlap, GemmArgs& args);

}  // namespace lowbit::cuda
