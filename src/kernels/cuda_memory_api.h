#pragma once
// How much memory a GPU has left. kernels/cuda/device.cc implements it, kernels/cuda_stub/ stands in for it.

#include <cstdint>

#include "lowbit/error.h"

namespace lowbit::cuda {

/// Bytes of the current device that nobody has taken: neither this process nor another, by the driver's count.
Result<int64_t> free_memory();

}  // namespace lowbit::cuda
