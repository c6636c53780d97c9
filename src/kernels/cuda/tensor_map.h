#pragma once
// Tensor maps of the copy engine (compute capability 9) without linking the driver.

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace lowbit::cuda {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function; null where it has none.
inline EncodeTiled encode_tiled() {
  static const EncodeTiled found = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result) !=
        cudaSuccess)
      f = nullptr;
    return reinterpret_cast<EncodeTiled>(f);
  }();
  return found;
}

}  // namespace lowbit::cuda
