#include "kernels/cuda/matmul_chain.cuh"

#include <algorithm>

#include "kernels/cuda/launch.h"

namespace lowbit::cuda {

namespace {
using ChainKernel = void (*)(ChainArgs);
ChainKernel chain_kernel(bool half) { return half ? matmul_chain<true> : matmul_chain<false>; }
}  // namespace

cudaError_t fit_chain(const ChainLinear* linears, int count, bool half, ChainFit* fit) {
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  fit->grid = 0;
  fit->ring_at = (static_cast<int>(sizeof(ChainShared)) + 127) & ~127;
  fit->ring_bytes = (device.shared_bytes - fit->ring_at) & ~127;
  if (!device.bulk_copies || fit->ring_bytes <= 0) return cudaSuccess;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(chain_kernel(half)), device); e != cudaSuccess)
    return e;
  int resident = 0;
  const auto e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, chain_kernel(half), kChainThreads,
                                                               static_cast<size_t>(fit->ring_at + fit->ring_bytes));
  if (e != cudaSuccess || resident == 0) return e;
  for (int i = 0; i < count; ++i) {
    const int tiles = (linears[i].tiles + device.processors - 1) / device.processors;
    const int bytes = linears[i].strips * kTileBlockBytes + 4 * kTileRows;
    // Tiles of one linear are in the ring together, and one place may be lost at its end.
    if (tiles > kMostChainTiles || (tiles + 1) * bytes > fit->ring_bytes) return cudaSuccess;
  }
  fit->grid = device.processors;
  return cudaSuccess;
}

cudaError_t launch_chain(const ChainArgs& a, int grid, cudaStream_t stream) {
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;  // thread blocks wait for each other: all of them at once, or an error
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(kChainThreads);
  config.dynamicSmemBytes = static_cast<size_t>(a.ring_at + a.ring_bytes);
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, chain_kernel(a.half), a);
}

}  // namespace lowbit::cuda
