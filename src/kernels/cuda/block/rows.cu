// Operations on the rows of a block between its products.

#include <algorithm>

#include "kernels/api.h"
#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_norm.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda_block_api.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kThreads = 256;

/// A warp per row. kWide: four columns at a time.
template <bool kWide>
__global__ void norm(const float* x, const float* weight, int64_t rows, int64_t n, float eps, float* y) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  const float* const from = x + row * n;
  float* const to = y + row * n;
  const int k = static_cast<int>(n);
  if constexpr (kWide) {
    const float by = warp_inverse_rms(from, k, eps);
    for (int i = static_cast<int>(threadIdx.x) % 32 * 4; i < k; i += kNormSums)
      *reinterpret_cast<float4*>(to + i) =
          normed(*reinterpret_cast<const float4*>(from + i), by, *reinterpret_cast<const float4*>(weight + i));
  } else {
    const float by = warp_inverse_rms(k, eps, [&](int i) {
      return float4{from[i], i + 1 < k ? from[i + 1] : 0.0f, i + 2 < k ? from[i + 2] : 0.0f,
                    i + 3 < k ? from[i + 3] : 0.0f};
    });
    for (int i = static_cast<int>(threadIdx.x) % 32; i < k; i += 32)
      to[i] = __fmul_rn(__fmul_rn(from[i], by), weight[i]);
  }
}

__global__ void gate_all(float* gate, const float* up, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float g = gate[i];
  gate[i] = __fmul_rn(__fdiv_rn(g, __fadd_rn(1.0f, exp_f32(-g))), up[i]);
}

__global__ void squared_relu_all(float* gate, const float* up, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float r = gate[i] < 0 ? 0.0f : gate[i];  // a NaN stays one
  gate[i] = __fmul_rn(__fmul_rn(r, r), up[i]);
}

/// One thread block per `size` columns, in shared memory.
__global__ void hadamard(float* x, int size, float scale) {
  __shared__ float shared[kLargestHadamard];
  float* const from = x + int64_t{blockIdx.x} * size;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) shared[i] = from[i];
  for (int width = 1; width < size; width *= 2) {
    __syncthreads();
    for (int pair = static_cast<int>(threadIdx.x); pair < size / 2; pair += kThreads) {
      const int low = pair / width * 2 * width + pair % width;
      const float a = shared[low], b = shared[low + width];
      shared[low] = __fadd_rn(a, b);
      shared[low + width] = __fsub_rn(a, b);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) from[i] = __fmul_rn(shared[i], scale);
}

__global__ void add_all(const float* x, int64_t count, float* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) y[i] = __fadd_rn(y[i], x[i]);
}

__global__ void subtract_all(const float* x, int64_t count, float* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) y[i] = __fsub_rn(y[i], x[i]);
}

__global__ void find_bad(const float* x, int64_t count, uint64_t base, unsigned long long* first) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count && (__float_as_uint(x[i]) & 0x7f800000u) == 0x7f800000u)
    atomicMin(first, static_cast<unsigned long long>(base + static_cast<uint64_t>(i)));
}

template <class... Parameters, class... Arguments>
Status each(const char* where, void (*kernel)(Parameters...), int64_t count, void* stream, Arguments... arguments) {
  if (count == 0) return {};
  const dim3 grid(static_cast<unsigned>((count + kThreads - 1) / kThreads));
  return check_cuda(launch(kernel, grid, dim3(kThreads), 0, static_cast<cudaStream_t>(stream), false, arguments...),
                    where);
}

}  // namespace

Status norm_rows(const float* x, const float* weight, int64_t rows, int64_t n, float eps, float* y, void* stream) {
  const auto at = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % 16; };
  const bool wide = n % 4 == 0 && (at(x) | at(weight) | at(y)) == 0;
  return each("norm", wide ? norm<true> : norm<false>, rows * 32, stream, x, weight, rows, n, eps, y);
}
Status gate_rows(float* gate, const float* up, int64_t count, void* stream) {
  return each("gate", gate_all, count, stream, gate, up, count);
}
Status squared_relu_rows(float* gate, const float* up, int64_t count, void* stream) {
  return each("gate", squared_relu_all, count, stream, gate, up, count);
}
Status hadamard_rows(float* x, int64_t rows, int64_t n, int64_t block, float scale, void* stream) {
  const int64_t blocks = rows * (n / block);
  if (blocks == 0) return {};
  return check_cuda(launch(hadamard, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0,
                           static_cast<cudaStream_t>(stream), false, x, static_cast<int>(block), scale),
                    "Hadamard transform");
}
Status add_rows(const float* x, int64_t count, float* y, void* stream) {
  return each("residual", add_all, count, stream, x, count, y);
}
Status subtract_rows(const float* x, int64_t count, float* y, void* stream) {
  return each("difference", subtract_all, count, stream, x, count, y);
}
Status copy_floats(const float* from, int64_t count, float* to, void* stream) {
  return check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(float), cudaMemcpyDeviceToDevice,
                                    static_cast<cudaStream_t>(stream)),
                    "copy");
}
Status find_non_finite(const float* x, int64_t count, uint64_t base, uint64_t* first, void* stream) {
  return each("activations", find_bad, count, stream, x, count, base, reinterpret_cast<unsigned long long*>(first));
}

}  // namespace lowbit::cuda
