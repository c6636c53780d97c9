#include "kernels/cuda/parts.h"

#include <algorithm>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {
namespace {

constexpr int kThreads = 256, kMostGridRows = 65535;

__global__ void code_sums(const int8_t* codes, int64_t m, int64_t k, int64_t ldx, int64_t group, int64_t groups,
                          float* sums) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (at >= m * groups) return;
  const int64_t row = at / groups, begin = (at - row * groups) * group, end = min(k, begin + group);
  int sum = 0;
  for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) sum += codes[row * ldx + i];
  sum = __reduce_add_sync(0xffffffffu, sum);
  if (threadIdx.x % 32 == 0) sums[at] = static_cast<float>(sum);
}

/// A warp per sum of sums, groups in their order.
__global__ void scaled_code_sums(const int8_t* codes, int64_t m, int64_t k, int64_t ldx, int64_t group, int64_t groups,
                                 const SumScales scales, float* sums) {
  const int64_t of_row = (groups + scales.per_scale - 1) / scales.per_scale;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32, row = at / of_row;
  if (row >= m) return;
  const int64_t first = (at - row * of_row) * scales.per_scale, last = min(groups, first + scales.per_scale);
  float total = 0;
  for (int64_t g = first; g < last; ++g) {
    int sum = 0;
    for (int64_t i = g * group + threadIdx.x % 32; i < min(k, (g + 1) * group); i += 32) sum += codes[row * ldx + i];
    sum = __reduce_add_sync(0xffffffffu, sum);
    total = __fmaf_rn(static_cast<float>(sum), scales.scales[row * groups + g], total);
  }
  if (threadIdx.x % 32 == 0) sums[at] = total;
}

/// Four columns a thread.
__global__ void spread_codes(const __grid_constant__ SpreadCodes a) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t of_row = a.wide_k / 4, at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= a.m * of_row) return;
  const int64_t row = at / of_row, column = (at - row * of_row) * 4, g = column / a.wide, within = column - g * a.wide;
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t from = g * a.group + within + i;
    if (within + i < a.group && from < a.k)
      word |= static_cast<uint32_t>(static_cast<uint8_t>(a.codes[row * a.ldx + from])) << (8 * i);
  }
  *reinterpret_cast<uint32_t*>(a.to + row * a.wide_k + column) = word;
  if (column % 32 != 0) return;
  const int64_t groups = (a.k + a.group - 1) / a.group;
  a.to_scales[(row * a.wide_k + column) / 32] = g < groups ? a.scales[row * groups + g] : 0.0f;
}

/// One block per row. Rows that are tiny as a whole are scaled by 2^64 first, so that no part is lost; back[row] undoes
/// it.
__global__ void split_f32(const float* x, int64_t m, int64_t k, int64_t ldx, uint16_t* parts, int64_t ldp,
                          float* back) {
  __shared__ uint32_t largest;
  for (int64_t row = blockIdx.x; row < m; row += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) largest = 0;
    __syncthreads();
    uint32_t most = 0;
    for (int64_t i = threadIdx.x; i < k; i += kThreads) most = max(most, __float_as_uint(fabsf(x[row * ldx + i])));
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % 32 == 0) atomicMax(&largest, most);
    __syncthreads();
    const bool tiny = largest < 0x20000000u;  // 2^-63
    if (threadIdx.x == 0) back[row] = tiny ? 0x1p-64f : 1.0f;
    for (int64_t i = threadIdx.x; i < ldp; i += kThreads) {
      uint32_t bits[kPartsOfF32] = {};
      if (i < k) {
        const float v = __fmul_rn(x[row * ldx + i], tiny ? 0x1p64f : 1.0f);
        const uint32_t all = __float_as_uint(v);
        if ((all & 0x7f800000u) == 0x7f800000u) {  // infinity and NaN have one part
          bits[0] = (all & 0x007fffffu) != 0 ? 0x7fc00000u : all;
        } else {
          bits[0] = all & 0xffff0000u;
          const float rest = __fsub_rn(v, __uint_as_float(bits[0]));
          bits[1] = __float_as_uint(rest) & 0xffff0000u;
          bits[2] = __float_as_uint(__fsub_rn(rest, __uint_as_float(bits[1])));
        }
      }
#pragma unroll
      for (int part = 0; part < kPartsOfF32; ++part)
        parts[(part * m + row) * ldp + i] = static_cast<uint16_t>(bits[part] >> 16);
    }
  }
}

__global__ void add_parts(const float* sums, const float* back, int64_t m, int64_t n, const float* bias, void* y,
                          Element y_element, int64_t m0, int64_t ldy) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float b = bias == nullptr ? 0.0f : bias[i];
  for (int64_t row = blockIdx.y; row < m; row += gridDim.y) {
    const float small = __fadd_rn(sums[(2 * m + row) * n + i], sums[(m + row) * n + i]);
    const float sum = __fmul_rn(__fadd_rn(small, sums[row * n + i]), back[row]);
    store_element(y, y_element, (m0 + row) * ldy + i, __fadd_rn(sum, b));
  }
}

/// One warp per row: 32 columns make a word. Lane i adds |x| of columns i, i + 32, ...; the 32 sums are added by
/// halves.
__global__ void binarize(const void* x, Element element, int64_t m, int64_t k, int64_t ldx, uint32_t* bits,
                         int64_t row_words, float* scales, int32_t* ones) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row >= m) return;
  const int lane = threadIdx.x % 32;
  float sum = 0;
  int count = 0;
  for (int64_t word = 0; word < row_words; ++word) {
    const int64_t at = 32 * word + lane;
    const float v = at < k ? load_element(x, element, row * ldx + at) : 0.0f;
    const uint32_t all = __ballot_sync(0xffffffffu, at < k && !(v < 0));
    sum = __fadd_rn(sum, fabsf(v));
    count += __popc(all);
    if (lane == 0) bits[row * row_words + word] = all;
  }
#pragma unroll
  for (int half = 16; half > 0; half /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, half));
  if (lane != 0) return;
  scales[row] = k > 0 ? __fdiv_rn(sum, static_cast<float>(k)) : 0.0f;
  ones[row] = -2 * count;
}

dim3 grid_of(int64_t columns, int64_t rows) {
  return {static_cast<unsigned>((columns + kThreads - 1) / kThreads),
          static_cast<unsigned>(std::min<int64_t>(rows, kMostGridRows))};
}

}  // namespace

cudaError_t launch_code_sums(const int8_t* codes, int64_t m, int64_t k, int64_t ldx, int64_t group, int64_t groups,
                             const SumScales& scales, float* sums, cudaStream_t stream) {
  const int64_t count = m * groups;
  if (count == 0) return cudaSuccess;
  if (scales.scales != nullptr)
    return launch(scaled_code_sums, grid_of(32 * m * ((groups + scales.per_scale - 1) / scales.per_scale), 1),
                  dim3(kThreads), 0, stream, false, codes, m, k, ldx, group, groups, scales, sums);
  return launch(code_sums, grid_of(32 * count, 1), dim3(kThreads), 0, stream, false, codes, m, k, ldx, group, groups,
                sums);
}

cudaError_t launch_spread_codes(const SpreadCodes& call, bool overlap, cudaStream_t stream) {
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  const int64_t words = call.m * call.wide_k / 4;
  if (words == 0) return cudaSuccess;
  return launch(spread_codes, dim3(static_cast<unsigned>((words + kThreads - 1) / kThreads)), dim3(kThreads), 0, stream,
                overlap && device.bulk_copies, call);
}

cudaError_t launch_split(const float* x, int64_t m, int64_t k, int64_t ldx, uint16_t* parts, int64_t ldp, float* back,
                         cudaStream_t stream) {
  if (m == 0 || ldp == 0) return cudaSuccess;
  return launch(split_f32, dim3(static_cast<unsigned>(std::min<int64_t>(m, kMostGridRows))), dim3(kThreads), 0, stream,
                false, x, m, k, ldx, parts, ldp, back);
}

cudaError_t launch_add_parts(const float* sums, const float* back, int64_t m, int64_t n, const float* bias, void* y,
                             Element y_element, int64_t m0, int64_t ldy, cudaStream_t stream) {
  if (m == 0 || n == 0) return cudaSuccess;
  return launch(add_parts, grid_of(n, m), dim3(kThreads), 0, stream, false, sums, back, m, n, bias, y, y_element, m0,
                ldy);
}

cudaError_t launch_binarize(const void* x, Element element, int64_t m, int64_t k, int64_t ldx, uint8_t* bits,
                            int64_t row_bytes, float* scales, int32_t* ones, cudaStream_t stream) {
  if (m == 0) return cudaSuccess;
  return launch(binarize, grid_of(32 * m, 1), dim3(kThreads), 0, stream, false, x, element, m, k, ldx,
                reinterpret_cast<uint32_t*>(bits), row_bytes / 4, scales, ones);
}

}  // namespace lowbit::cuda
