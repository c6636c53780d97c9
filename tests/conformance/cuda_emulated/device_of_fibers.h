#pragma once
// The device that kernels on fibers run on, in place of src/kernels/cuda/launch.cc. Where block_kernels.h may be
// included, behind block_fibers.h.

#include "kernels/cuda/cluster_launch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
cudaError_t current_device(Device* device) {
  *device = {.processors = 4, .shared_bytes = 227 << 10, .arch = 80};
  return cudaSuccess;
}
cudaError_t allow_shared(const void*, const Device&) { return cudaSuccess; }
int most_clusters(const void*, unsigned, unsigned, size_t, const Device&) { return 0; }
Status check_cuda(cudaError_t error, const char* where) {
  return error == cudaSuccess ? Status{} : fail(ErrorCode::kIo, where, "an error");
}
}  // namespace lowbit::cuda
