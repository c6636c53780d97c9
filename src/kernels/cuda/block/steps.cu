// Operations on the rows of a batch between products: rotary embedding and the cache, rows of a table, int8 codes.

#include <algorithm>

#include "kernels/api.h"
#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda_step_api.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kStepThreads = 256;

constexpr int kRotateRows = 32, kRotateTurned = kRotateRows + 2;  // no two threads that store a pair meet in a bank

__device__ __forceinline__ uint16_t* page_of(const StoreRows& call, const BatchRow& row, int64_t kv_head, bool values) {
  auto* const page =
      reinterpret_cast<uint16_t*>(call.kv.tables[row.sequence * call.kv.stride + row.position / kKvPage]);
  return page + ((call.kv.index * 2 + (values ? 1 : 0)) * call.kv.kv_heads + kv_head) * kKvPage * call.kv.head_dim;
}

/// A thread block takes a head of q, k or v, in this order, of kRotateRows rows, a thread a pair of elements. In pages
/// keys lie element by element: they are turned in shared memory, so that neighbouring threads store neighbours.
__global__ void __launch_bounds__(kStepThreads) rotate_and_store_all(const __grid_constant__ StoreRows call) {
  __shared__ uint16_t turned[kMostHeadDim * kRotateTurned];
  let_successor_start();
  wait_for_predecessor();
  const int d = static_cast<int>(call.kv.head_dim), half = d / 2, kv_heads = static_cast<int>(call.kv.kv_heads);
  const int heads = static_cast<int>(call.heads), head = static_cast<int>(blockIdx.y);
  const int64_t first = int64_t{blockIdx.x} * kRotateRows;
  const int rows = static_cast<int>(min(call.m - first, int64_t{kRotateRows}));
  const bool is_query = head < heads, is_value = head >= heads + kv_heads;
  const int kv_head = head - heads - (is_value ? kv_heads : 0);
  const float* const from =
      is_query ? call.q + (first * heads + head) * d : (is_value ? call.v : call.k) + (first * kv_heads + kv_head) * d;
  const int64_t pitch = int64_t{is_query ? heads : kv_heads} * d;
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x); at < rows * half; at += kStepThreads) {
    const int r = at / half, i = at - r * half;
    const BatchRow row = call.rows[first + r];
    const float a = from[r * pitch + i], b = from[r * pitch + i + half];
    if (is_value) {
      uint16_t* const to = page_of(call, row, kv_head, true) + row.position % kKvPage * d + i;
      to[0] = f16_nearest(a);
      to[half] = f16_nearest(b);
      continue;
    }
    const float cos = call.cos[int64_t{row.position} * half + i], sin = call.sin[int64_t{row.position} * half + i];
    const float low = __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
    const float high = __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin));
    if (is_query) {
      float* const to = call.q + (first * heads + head) * d + r * pitch + i;
      to[0] = low;
      to[half] = high;
    } else {
      turned[i * kRotateTurned + r] = f16_nearest(low);
      turned[(i + half) * kRotateTurned + r] = f16_nearest(high);
    }
  }
  if (is_query || is_value) return;
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x) % kRotateRows;
  if (r >= rows) return;
  const BatchRow row = call.rows[first + r];
  uint16_t* const to = page_of(call, row, kv_head, false) + row.position % kKvPage;
  for (int i = static_cast<int>(threadIdx.x) / kRotateRows; i < d; i += kStepThreads / kRotateRows)
    to[i * kKvPage] = turned[i * kRotateTurned + r];
}

__global__ void gather_all(const float* table, const int32_t* index, int64_t count, int64_t n, float* y) {
  const int64_t at = int64_t{blockIdx.x} * kStepThreads + threadIdx.x;
  if (at < count) y[at] = table[index[at / n] * n + at % n];
}

__device__ __forceinline__ uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }
constexpr uint32_t kInfinity = 0x7f800000u;

/// The largest of kWidth neighbouring threads' numbers, in all of them. All threads of the block call it.
template <int kWidth>
__device__ __forceinline__ uint32_t largest_of_threads(uint32_t most, uint32_t (&shared)[kStepThreads]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWidth;
  shared[thread] = most;
  for (int half = kWidth / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) shared[thread] = max(shared[thread], shared[thread + half]);
  }
  __syncthreads();
  return shared[thread - lane];
}

/// kWidth threads take a scale.
template <int kWidth>
__global__ void round_all(const __grid_constant__ RoundRows call, int64_t groups) {
  __shared__ uint32_t shared[kStepThreads];
  const int lane = static_cast<int>(threadIdx.x) % kWidth;
  const int64_t at = (int64_t{blockIdx.x} * kStepThreads + threadIdx.x) / kWidth, row = at / groups, g = at % groups;
  const bool there = row < call.m;
  const int64_t width = call.group > 0 ? call.group : call.k, begin = g * width, end = min(begin + width, call.k);
  const float* const x = call.x + row * call.k;
  uint32_t most = 0;
  for (int64_t i = begin + lane; there && i < end; i += kWidth) most = max(most, magnitude(x[i]));
  most = largest_of_threads<kWidth>(most, shared);
  if (!there) return;
  const float largest = static_cast<float>(call.largest), a = __uint_as_float(most);
  float scale = 0, inverse = 0;
  if (most > kInfinity) {
    scale = __uint_as_float(0x7fc00000u);
  } else if (most == kInfinity) {
    scale = a;
  } else if (a >= 0x1p-120f) {
    scale = __fdiv_rn(a, largest);
    inverse = __fdiv_rn(largest, a);
  }
  int8_t* const codes = call.codes + row * call.ldq;
  for (int64_t i = begin + lane; i < end; i += kWidth)
    codes[i] = inverse == 0 ? int8_t{0} : static_cast<int8_t>(__float2int_rn(__fmul_rn(x[i], inverse)));
  for (int64_t i = call.k + lane; g + 1 == groups && i < call.ldq; i += kWidth) codes[i] = 0;
  if (lane == 0) call.scales[at] = scale;
}

/// A thread block per row. The limit is found bit by bit: the largest number that more than `out` magnitudes reach.
__global__ void clip_all(const float* x, int64_t k, int64_t out, float* y) {
  __shared__ uint32_t counts[kStepThreads], largest[kStepThreads];
  const int thread = static_cast<int>(threadIdx.x);
  x += int64_t{blockIdx.x} * k;
  y += int64_t{blockIdx.x} * k;
  uint32_t most = 0;
  for (int64_t i = thread; i < k; i += kStepThreads) most = max(most, magnitude(x[i]));
  const bool has_nan = largest_of_threads<kStepThreads>(most, largest) > kInfinity;
  uint32_t limit = 0;
  for (uint32_t bit = 0x40000000u; bit > 0; bit /= 2) {
    uint32_t count = 0;
    for (int64_t i = thread; i < k; i += kStepThreads) count += magnitude(x[i]) >= (limit | bit) ? 1 : 0;
    __syncthreads();
    counts[thread] = count;
    for (int half = kStepThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (thread < half) counts[thread] += counts[thread + half];
    }
    __syncthreads();
    if (counts[0] > out) limit |= bit;
  }
  const float by = __uint_as_float(limit);
  for (int64_t i = thread; i < k; i += kStepThreads) {
    const float v = x[i];
    y[i] = has_nan || magnitude(v) <= limit ? v : v < 0 ? -by : by;
  }
}

template <class... Parameters, class... Arguments>
Status start(const char* where, void (*kernel)(Parameters...), int64_t threads, void* stream, Arguments... arguments) {
  if (threads == 0) return {};
  const dim3 grid(static_cast<unsigned>((threads + kStepThreads - 1) / kStepThreads));
  return check_cuda(launch(kernel, grid, dim3(kStepThreads), 0, static_cast<cudaStream_t>(stream), false, arguments...),
                    where);
}

}  // namespace

Status rotate_and_store(const StoreRows& call) {
  if (call.m == 0) return {};
  Device device{};
  auto e = current_device(&device);
  const dim3 grid(static_cast<unsigned>((call.m + kRotateRows - 1) / kRotateRows),
                  static_cast<unsigned>(call.heads + 2 * call.kv.kv_heads));
  if (e == cudaSuccess)
    e = launch(rotate_and_store_all, grid, dim3(kStepThreads), 0, static_cast<cudaStream_t>(call.stream),
               device.bulk_copies, call);
  return check_cuda(e, "rotation");
}

Status gather_rows(const float* table, const int32_t* index, int64_t rows, int64_t n, float* y, void* stream) {
  return start("rows", gather_all, rows * n, stream, table, index, rows * n, n, y);
}

Status round_rows(const RoundRows& call) {
  constexpr int kWide = kStepThreads, kNarrow = 32;
  const int64_t width = call.group > 0 ? call.group : std::max<int64_t>(call.k, 1);
  const int64_t groups = std::max<int64_t>(1, (call.k + width - 1) / width);
  if (width > kStepThreads)
    return start("activations", round_all<kWide>, call.m * groups * kWide, call.stream, call, groups);
  return start("activations", round_all<kNarrow>, call.m * groups * kNarrow, call.stream, call, groups);
}

Status clip_rows(const float* x, int64_t m, int64_t k, int64_t out, float* y, void* stream) {
  return start("activations", clip_all, m * kStepThreads, stream, x, k, out, y);
}

}  // namespace lowbit::cuda
