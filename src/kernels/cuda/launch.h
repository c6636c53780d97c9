#pragma once
// Launching: what the host must know of the device, looked up once, and one way to start a kernel.

#include <cuda_runtime.h>

namespace lowbit::cuda {

struct Device {
  int processors = 0;
  int shared_bytes = 0;      // of a thread block, at most
  int arch = 0;              // compute capability of the code that runs on it, 90 for 9.0
  bool bulk_copies = false;  // arch 90 and higher: bulk copies and dependent launches
  int index = 0;
};

/// The current device of the calling thread.
cudaError_t current_device(Device* device);

/// Lets `kernel` use all shared memory that a thread block may have; done once per kernel and device.
cudaError_t allow_shared(const void* kernel, const Device& device);

#if defined(__CUDACC__)
/// `cluster`: thread blocks that are placed together; more than one needs compute capability 9.
template <class... Parameters, class... Arguments>
cudaError_t launch_cluster(void (*kernel)(Parameters...), dim3 grid, dim3 block, dim3 cluster, size_t shared_bytes,
                           cudaStream_t stream, bool overlap, Arguments... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (overlap) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster.x * cluster.y * cluster.z > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {cluster.x, cluster.y, cluster.z};
  }
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   bool overlap, Arguments... arguments) {
  return launch_cluster(kernel, grid, block, dim3(1, 1, 1), shared_bytes, stream, overlap, arguments...);
}
#endif

}  // namespace lowbit::cuda
