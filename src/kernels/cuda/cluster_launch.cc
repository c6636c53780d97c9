#include "kernels/cuda/cluster_launch.h"

#include <map>
#include <mutex>
#include <utility>

namespace lowbit::cuda {

int most_clusters(const void* kernel, unsigned blocks, unsigned threads, size_t shared_bytes, const Device& device) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> known;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = known.try_emplace({kernel, device.index}, 0);
  if (!is_new) return at->second;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {1, blocks, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1, blocks, 1);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  if (allow_shared(kernel, device) != cudaSuccess ||
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&at->second, kernel, &config) != cudaSuccess) {
    at->second = 0;
    cudaGetLastError();  // no error of a launch
  }
  return at->second;
}

}  // namespace lowbit::cuda
