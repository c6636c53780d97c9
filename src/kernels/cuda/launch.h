#pragma once
// Launching: what the host must know of the device, looked up once, and one way to start a kernel.

#include <cuda_runtime.h>

namespace lowbit::cuda {

struct Device {
  int processors = 0;
  int shared_bytes = 0;      // of a thread block, at most
  int arch = 0;              // compute capability, 90 for 9.0
  bool bulk_copies = false;  // compute capability 9 and higher: bulk copies and dependent launches
  int index = 0;
};

/// The current device of the calling thread.
cudaError_t current_device(Device* device);

/// Lets `kernel` use all shared memory that a thread block may have; done once per kernel and device.
cudaError_t allow_shared(const void* kernel, const Device& device);

#if defined(__CUDACC__)
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   bool overlap, Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}
#endif

}  // namespace lowbit::cuda
