#include "kernels/cuda/launch.h"

#include <array>
#include <mutex>
#include <set>
#include <utility>

#include "kernels/cuda/gemm/primitives/running_arch.h"

namespace lowbit::cuda {
namespace {

constexpr int kMostDevices = 64;

cudaError_t read_device(int index, Device* device) {
  device->index = index;
  cudaError_t e = cudaDeviceGetAttribute(&device->processors, cudaDevAttrMultiProcessorCount, index);
  if (e == cudaSuccess)
    e = cudaDeviceGetAttribute(&device->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  device->arch = running_arch();
  device->bulk_copies = device->arch >= 90;
  return e;
}

}  // namespace

cudaError_t current_device(Device* device) {
  static std::mutex mutex;
  static std::array<Device, kMostDevices> known;
  int index = 0;
  if (const auto e = cudaGetDevice(&index); e != cudaSuccess) return e;
  if (index >= kMostDevices) return read_device(index, device);
  const std::lock_guard lock(mutex);
  Device& slot = known[static_cast<size_t>(index)];
  if (slot.processors == 0)
    if (const auto e = read_device(index, &slot); e != cudaSuccess) return e;
  *device = slot;
  return cudaSuccess;
}

cudaError_t allow_shared(const void* kernel, const Device& device) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> allowed;
  const std::lock_guard lock(mutex);
  if (allowed.contains({kernel, device.index})) return cudaSuccess;
  auto e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_bytes);
  // Every kernel has one split of the first-level cache: changing it would drain the multiprocessor between two
  // kernels.
  if (e == cudaSuccess)
    e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (e == cudaSuccess) allowed.insert({kernel, device.index});
  return e;
}

}  // namespace lowbit::cuda
