#pragma once
// CUDA's error codes as Status.

#include <cuda_runtime_api.h>

#include "lowbit/error.h"

namespace lowbit::cuda {

/// kOutOfMemory, kUnsupported (no device, no driver) or kIo with CUDA's own words. Clears CUDA's last error.
Status check_cuda(cudaError_t error, const char* where);

}  // namespace lowbit::cuda
