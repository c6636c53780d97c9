#include "kernels/cuda/quantized_mm.cuh"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/quantized_mm.h"

namespace lowbit::cuda {
namespace {

constexpr int kWarps = 4;

}  // namespace

template <int BITS>
cudaError_t launch_quantized_mm(const void* input, const uint8_t* weight, void* output, const QuantizedConfig& p,
                                bool overlap, cudaStream_t stream) {
  (void)overlap;
  const dim3 grid(static_cast<unsigned>((p.n + kWarps - 1) / kWarps), static_cast<unsigned>(std::min<int64_t>(p.m, 4096)));
  return launch(quantized_mm_any<BITS>, grid, dim3(32 * kWarps), 0, stream, false, input, weight, output, p);
}

template cudaError_t launch_quantized_mm<1>(const void*, const uint8_t*, void*, const QuantizedConfig&, bool, cudaStream_t);
template cudaError_t launch_quantized_mm<2>(const void*, const uint8_t*, void*, const QuantizedConfig&, bool, cudaStream_t);
template cudaError_t launch_quantized_mm<4>(const void*, const uint8_t*, void*, const QuantizedConfig&, bool, cudaStream_t);
template cudaError_t launch_quantized_mm<8>(const void*, const uint8_t*, void*, const QuantizedConfig&, bool, cudaStream_t);

}  // namespace lowbit::cuda
