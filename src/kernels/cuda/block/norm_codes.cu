// Rows that are normed and become int8 codes, in one launch: a thread block per row, which it reads once.

#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row_norm.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda_step_api.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kCodeThreads = 512, kQuadGroup = 32;

/// Bits of the largest magnitude among row[begin, end), of every `step`th from `first` on.
__device__ __forceinline__ uint32_t largest_bits(const float* row, int64_t first, int64_t end, int step) {
  uint32_t most = 0;
#pragma unroll 4
  for (int64_t i = first; i < end; i += step) most = max(most, magnitude_bits(row[i]));
  return most;
}

__device__ __forceinline__ void write_codes(const NormCodes& call, const float* row, int64_t first, int64_t end,
                                            int step, const Quantizer& q) {
  int8_t* const codes = call.codes + int64_t{blockIdx.x} * call.ldq;
#pragma unroll 4
  for (int64_t i = first; i < end; i += step)
    codes[i] = i < call.k ? static_cast<int8_t>(quantize_one(row[i], q.inverse)) : int8_t{0};
}

/// Codes by groups of 32: eight lanes take a group, four columns each; zeros from k on.
__device__ __forceinline__ void write_quads(const NormCodes& call, const float* row, const float* norm, float by,
                                            float* scales, int64_t groups) {
  int8_t* const codes = call.codes + int64_t{blockIdx.x} * call.ldq;
  const int k = static_cast<int>(call.k), quads = static_cast<int>(call.ldq / 4);
  const int thread = static_cast<int>(threadIdx.x);
  for (int base = thread - thread % 32; base < quads; base += kCodeThreads) {  // the same rounds for a warp
    const int column = 4 * (base + thread % 32);
    float v[4] = {};
    if (column < k) {
      const float4 x = *reinterpret_cast<const float4*>(row + column),
                   w = *reinterpret_cast<const float4*>(norm + column);
      v[0] = __fmul_rn(__fmul_rn(x.x, by), w.x), v[1] = __fmul_rn(__fmul_rn(x.y, by), w.y);
      v[2] = __fmul_rn(__fmul_rn(x.z, by), w.z), v[3] = __fmul_rn(__fmul_rn(x.w, by), w.w);
    }
    uint32_t most =
        max(max(magnitude_bits(v[0]), magnitude_bits(v[1])), max(magnitude_bits(v[2]), magnitude_bits(v[3])));
    for (int w = 1; w < 8; w *= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, w, kLanes));
    most = largest_of_exact(most, call.exact_scales);
    Quantizer q = quantizer_of(most);
    if (call.exact_scales) q = exact_quantizer(q);
    if (column >= 4 * quads) continue;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) word |= (static_cast<uint32_t>(quantize_one(v[i], q.inverse)) & 0xffu) << (8 * i);
    *reinterpret_cast<uint32_t*>(codes + column) = word;
    if (column % kQuadGroup == 0 && column / kQuadGroup < groups) scales[column / kQuadGroup] = q.scale;
  }
}

__global__ void __launch_bounds__(kCodeThreads) norm_codes_all(const __grid_constant__ NormCodes call, int64_t groups) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  auto* const largest = reinterpret_cast<uint32_t*>(bytes);  // of half warps
  auto* const quarters = reinterpret_cast<float*>(largest + kCodeThreads / kLanes);
  auto* const row = quarters + kNormSums / 32;
  auto* const norm = row + call.k;
  let_successor_start();
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t i = thread; i < call.k; i += kCodeThreads) norm[i] = call.norm[i];
  wait_for_predecessor();
  const float* const x = call.x + int64_t{blockIdx.x} * call.k;
#pragma unroll 8
  for (int64_t i = thread; i < call.k; i += kCodeThreads) row[i] = x[i];
  const float by = block_inverse_rms(row, static_cast<int>(call.k), call.eps, kCodeThreads, quarters);
  float* const scales = call.scales + int64_t{blockIdx.x} * groups;
  if (call.group == kQuadGroup && (call.k | call.ldq) % 4 == 0) {
    write_quads(call, row, norm, by, scales, groups);
    return;
  }
  const bool whole = call.group <= 0;  // its one scale takes the factor
#pragma unroll 4
  for (int64_t i = thread; i < call.k; i += kCodeThreads)
    row[i] = __fmul_rn(whole ? row[i] : __fmul_rn(row[i], by), norm[i]);
  __syncthreads();
  if (whole) {
    uint32_t most = largest_bits(row, thread, call.k, kCodeThreads);
    for (int w = kLanes / 2; w > 0; w /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, w, kLanes));
    if (thread % kLanes == 0) largest[thread / kLanes] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCodeThreads / kLanes; ++i) most = max(most, largest[i]);
    const Quantizer q = quantizer_of(most);
    write_codes(call, row, thread, call.ldq, kCodeThreads, q);
    if (thread == 0) *scales = __fmul_rn(q.scale, by);
    return;
  }
  // A half of a warp takes a group; the same number of rounds for all, since lanes wait for each other.
  const int lane = thread % kLanes, halves = kCodeThreads / kLanes;
  for (int64_t first = 0; first < groups; first += halves) {
    const int64_t g = first + thread / kLanes, begin = min(g * call.group, call.k),
                  end = min(begin + call.group, call.k);
    const int64_t first_of_scale = call.exact_scales ? min(g / 4 * 4 * call.group, call.k) : begin,
                  end_of_scale = call.exact_scales ? min(first_of_scale + 4 * call.group, call.k) : end;
    uint32_t most = largest_bits(row, first_of_scale + lane, end_of_scale, kLanes);
    for (int w = kLanes / 2; w > 0; w /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, w, kLanes));
    if (g >= groups) continue;
    Quantizer q = quantizer_of(most);
    if (call.exact_scales) q = exact_quantizer(q);
    write_codes(call, row, begin + lane, g + 1 == groups ? call.ldq : end, kLanes, q);
    if (lane == 0) scales[g] = q.scale;
  }
}

int64_t shared_bytes(int64_t k) { return 4 * (2 * k + kCodeThreads / kLanes + kNormSums / 32); }

}  // namespace

bool has_norm_codes(int64_t k) {
  Device device{};
  return k > 0 && current_device(&device) == cudaSuccess && shared_bytes(k) <= device.shared_bytes;
}

Status norm_codes(const NormCodes& call) {
  if (call.m == 0) return {};
  Device device{};
  auto e = current_device(&device);
  if (e == cudaSuccess) e = allow_shared(reinterpret_cast<const void*>(&norm_codes_all), device);
  const int64_t width = call.group > 0 ? call.group : call.k, groups = (call.k + width - 1) / width;
  if (e == cudaSuccess)
    e = launch(norm_codes_all, dim3(static_cast<unsigned>(call.m)), dim3(kCodeThreads),
               static_cast<size_t>(shared_bytes(call.k)), static_cast<cudaStream_t>(call.stream), device.bulk_copies,
               call, groups);
  return check_cuda(e, "activations");
}

}  // namespace lowbit::cuda
