#pragma once
// The launcher's view of the mma.sync pipeline (gemm_mma.cuh).

#include "kernels/cuda/gemm/gemm.h"

namespace lowbit::cuda {

inline constexpr int kMmaBm = 64, kMmaPacks = 2, kMmaThreads = 256;

struct MmaKernel {
  GemmActivation activation;
  int bits;
  const void* function;
  const char* name;
};

/// Null where there is none.
const MmaKernel* find_mma_kernel(GemmActivation activation, int bits);

}  // namespace lowbit::cuda
