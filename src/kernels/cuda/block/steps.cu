// Operations on the rows of a batch between products: rotary embedding and the cache, rows of a table, int8 codes.

#include <algorithm>

#include "kernels/api.h"
#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_step_api.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kStepThreads = 256;

/// A pair of elements of a head: of q, k or v, in this order.
__global__ void rotate_and_store_all(const __grid_constant__ StoreRows call) {
  const int64_t d = call.kv.head_dim, half = d / 2, kv_heads = call.kv.kv_heads, heads = call.heads + 2 * kv_heads;
  const int64_t at = int64_t{blockIdx.x} * kStepThreads + threadIdx.x, i = at % half, head = at / half % heads,
                row = at / half / heads;
  if (row >= call.m) return;
  const BatchRow of = call.rows[row];
  const float cos = call.cos[of.position * half + i], sin = call.sin[of.position * half + i];
  const auto rotated = [&](float a, float b) { return __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin)); };
  const auto rotated_behind = [&](float a, float b) { return __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin)); };
  if (head < call.heads) {
    float* const low = call.q + (row * call.heads + head) * d + i;
    const float a = low[0], b = low[half];
    low[0] = rotated(a, b);
    low[half] = rotated_behind(a, b);
    return;
  }
  const int64_t page = of.position / kKvPage, t = of.position % kKvPage;
  auto* const pages = reinterpret_cast<uint16_t*>(call.kv.tables[of.sequence * call.kv.stride + page]);
  const bool is_key = head < call.heads + kv_heads;
  const int64_t kv_head = head - call.heads - (is_key ? 0 : kv_heads);
  uint16_t* const to = pages + ((call.kv.index * 2 + (is_key ? 0 : 1)) * kv_heads + kv_head) * kKvPage * d;
  const float* const from = (is_key ? call.k : call.v) + (row * kv_heads + kv_head) * d + i;
  const float a = from[0], b = from[half];
  if (is_key) {
    to[i * kKvPage + t] = f16_nearest(rotated(a, b));
    to[(i + half) * kKvPage + t] = f16_nearest(rotated_behind(a, b));
  } else {
    to[t * d + i] = f16_nearest(a);
    to[t * d + i + half] = f16_nearest(b);
  }
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
  const int64_t heads = call.heads + 2 * call.kv.kv_heads;
  return start("rotation", rotate_and_store_all, call.m * heads * (call.kv.head_dim / 2), call.stream, call);
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
