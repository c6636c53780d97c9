#pragma once
// Clusters of more thread blocks than every device of compute capability 9.0 runs.

#include "kernels/cuda/launch.h"

namespace lowbit::cuda {

/// How many clusters of `blocks` thread blocks, at most 16, the device runs at once; 0 where it runs none. Asked once
/// per kernel and device; allows the kernel all shared memory, too.
int most_clusters(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes, const Device& device);

}  // namespace lowbit::cuda
