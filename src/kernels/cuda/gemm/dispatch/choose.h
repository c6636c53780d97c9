#pragma once
// Which kernel and how many blocks share a tile's K: a cost model over the instances, no table of shapes.

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/schedule/wgmma_kernel.h"

namespace lowbit::cuda {

struct GemmChoice {
  const WgmmaKernel* wgmma = nullptr;  // null: the mma.sync kernel, or
  bool skinny = false;                 // the skinny kernel
  int split = 1;
  double microseconds = 0;  // the model's estimate
};

/// Instances for this activation and stored width; null where there are none.
const WgmmaTable* find_wgmma_table(GemmActivation activation, int bits);

/// True when `kernel` can run the problem with its K cut in `split`.
bool can_run(const WgmmaKernel& kernel, const GemmProblem& problem, int split);

/// True when the skinny kernel can run the problem on a device that gives a block so much shared memory.
bool can_run_skinny(const GemmProblem& problem, int processors, int device_shared);

/// Dynamic shared memory of a block.
int shared_bytes(const WgmmaKernel& kernel, const GemmProblem& problem, int split);

GemmChoice choose(const GemmProblem& problem, int arch, int processors);

/// gemm() with the choice made by the caller; for tests and tuning.
GemmStatus gemm_as(const GemmProblem& problem, const GemmChoice& choice, CUstream_st* stream);

}  // namespace lowbit::cuda
