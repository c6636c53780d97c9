#pragma once

#include <cuda_runtime_api.h>

#include "kernels/fp8_problem.h"

namespace lowbit::cuda {

/// False where the tensor cores of compute capability 9.0 cannot take the product: nothing was enqueued then. `error` else.
bool gemm_fp8_wgmma(const Fp8Gemm& g, cudaStream_t stream, cudaError_t* error);

}  // namespace lowbit::cuda
