// Rows of x in 16 bits.

#include "base/float.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_halves_api.h"

namespace lowbit::cuda {
namespace {

constexpr int kHalvesThreads = 256;

__device__ __forceinline__ uint16_t half_of(float x, bool bf16) { return bf16 ? f32_to_bf16(x) : f32_to_f16(x); }

/// A thread per element of `halves`.
__global__ void halve_all(const float* x, int64_t count, int64_t k, int64_t ldh, bool bf16, uint16_t* halves) {
  const int64_t i = int64_t{blockIdx.x} * kHalvesThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / ldh, column = i % ldh;
  halves[i] = column < k ? half_of(x[row * k + column], bf16) : uint16_t{0};
}

__global__ void round_all_to_halves(const float* x, int64_t count, bool bf16, float* y) {
  const int64_t i = int64_t{blockIdx.x} * kHalvesThreads + threadIdx.x;
  if (i >= count) return;
  const uint16_t half = half_of(x[i], bf16);
  y[i] = bf16 ? bf16_to_f32(half) : f16_to_f32(half);
}

dim3 blocks_of(int64_t count) { return dim3(static_cast<unsigned>((count + kHalvesThreads - 1) / kHalvesThreads)); }

}  // namespace

Status halve_rows(const HalveRows& call) {
  const int64_t count = call.m * call.ldh;
  if (count == 0) return {};
  return check_cuda(launch(halve_all, blocks_of(count), dim3(kHalvesThreads), 0, static_cast<cudaStream_t>(call.stream),
                           false, call.x, count, call.k, call.ldh, call.bf16, call.halves),
                    "16-bit activations");
}

Status round_to_halves(const float* x, int64_t count, bool bf16, float* y, void* stream) {
  if (count == 0) return {};
  return check_cuda(launch(round_all_to_halves, blocks_of(count), dim3(kHalvesThreads), 0,
                           static_cast<cudaStream_t>(stream), false, x, count, bf16, y),
                    "16-bit activations");
}

}  // namespace lowbit::cuda
