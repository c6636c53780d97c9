// Operations on the rows of a block between its products.

#include <algorithm>

#include "kernels/api.h"
#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row_norm.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda_block_api.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kThreads = 256;
constexpr int64_t kWideRow = 512;  // columns from which on a row has a thread block

/// A thread block per row.
__global__ void norm_wide(const float* x, const float* weight, int n, float eps, float* y) {
  LOWBIT_DYNAMIC_SHARED(shared);
  auto* const quarters = reinterpret_cast<float*>(shared);
  float* const row = quarters + kNormSums / 32;
  const float* const from = x + int64_t{blockIdx.x} * n;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) row[i] = from[i];
  const float by = block_inverse_rms(row, n, eps, kThreads, quarters);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads)
    y[int64_t{blockIdx.x} * n + i] = __fmul_rn(__fmul_rn(row[i], by), weight[i]);
}

/// A warp per row: rows of a head.
__global__ void norm(const float* x, const float* weight, int64_t rows, int64_t n, float eps, float* y) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  const float by = warp_inverse_rms(static_cast<int>(n), eps, [&](int column) {
    const auto at = [&](int i) { return column + i < n ? x[row * n + column + i] : 0.0f; };
    return float4{at(0), at(1), at(2), at(3)};
  });
  for (int64_t i = threadIdx.x % 32; i < n; i += 32)
    y[row * n + i] = __fmul_rn(__fmul_rn(x[row * n + i], by), weight[i]);
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
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return check_cuda(e, "norm");
  const int64_t bytes = (n + kNormSums / 32) * static_cast<int64_t>(sizeof(float));
  if (rows == 0 || n < kWideRow || bytes > device.shared_bytes)
    return each("norm", norm, rows * 32, stream, x, weight, rows, n, eps, y);
  if (const auto e = allow_shared(reinterpret_cast<const void*>(&norm_wide), device); e != cudaSuccess)
    return check_cuda(e, "norm");
  return check_cuda(launch(norm_wide, dim3(static_cast<unsigned>(rows)), dim3(kThreads), static_cast<size_t>(bytes),
                           static_cast<cudaStream_t>(stream), false, x, weight, static_cast<int>(n), eps, y),
                    "norm");
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
