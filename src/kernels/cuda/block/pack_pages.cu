// Pages of a quantized cache: what enters them as f16, and how they are packed. The bits are those of
// ops/rope_append.cc, kernels/pack_rows.cc and kernels/fp8_rows.cc.

#include <algorithm>
#include <cmath>

#include "kernels/cuda/block/page_values.cuh"
#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda_packed_api.h"
#include "kernels/packed_kv.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kTransformThreads = 128, kPackThreads = 256, kPackColumns = 64;
constexpr int kPackPage = static_cast<int>(kKvPage);

/// A thread block per row and head: of q, k or v, in this order.
__global__ void __launch_bounds__(kTransformThreads)
    rotate_transform_and_store_all(const __grid_constant__ StoreTransformed call) {
  __shared__ float x[kMostHeadDim];
  let_successor_start();
  wait_for_predecessor();
  const StoreRows& rows = call.rows;
  const int d = static_cast<int>(rows.kv.head_dim), half = d / 2, thread = static_cast<int>(threadIdx.x);
  const int heads = static_cast<int>(rows.heads), kv_heads = static_cast<int>(rows.kv.kv_heads);
  const int head = static_cast<int>(blockIdx.y);
  const int64_t row = blockIdx.x;
  const BatchRow of = rows.rows[row];
  const int which = head < heads ? 0 : head < heads + kv_heads ? 1 : 2, kv_head = head - heads - (which - 1) * kv_heads;
  const float* const from =
      which == 0 ? rows.q + (row * heads + head) * d : (which == 1 ? rows.k : rows.v) + (row * kv_heads + kv_head) * d;
  for (int i = thread; i < half; i += kTransformThreads) {
    const float a = from[i], b = from[i + half];
    if (which == 2) {
      x[i] = a;
      x[i + half] = b;
      continue;
    }
    const float cos = rows.cos[int64_t{of.position} * half + i], sin = rows.sin[int64_t{of.position} * half + i];
    x[i] = __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
    x[i + half] = __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin));
  }
  __syncthreads();
  for (int width = 1; width < call.hadamard; width *= 2) {
    for (int i = thread; i < half; i += kTransformThreads) {
      const int low = i / width * 2 * width + i % width;
      const float a = x[low], b = x[low + width];
      x[low] = __fadd_rn(a, b);
      x[low + width] = __fsub_rn(a, b);
    }
    __syncthreads();
  }
  const int page = of.position / kPackPage, t = of.position % kPackPage;
  uint16_t* to = nullptr;
  if (which > 0)
    to = reinterpret_cast<uint16_t*>(rows.kv.tables[of.sequence * rows.kv.stride + page]) +
         ((rows.kv.index * 2 + which - 1) * kv_heads + kv_head) * kPackPage * d;
  for (int i = thread; i < d; i += kTransformThreads) {
    const float v = call.hadamard > 1 ? __fmul_rn(x[i], call.scale) : x[i];
    if (which == 0) {
      rows.q[(row * heads + head) * d + i] = v;
    } else {
      to[which == 1 ? i * kPackPage + t : t * d + i] = f16_nearest(v);
    }
  }
}

/// One matrix on its way, in shared memory.
struct Packing {
  uint8_t codes[kMostPackedRows * kPackColumns];
  float least[kMostPackedRows], most[kMostPackedRows], steps[kMostPackedRows];
  int8_t least_codes[kMostPackedRows];
  uint8_t scale_codes[kMostPackedRows];
  float supers[2];
  int infinite;
};

/// The code nearest to v, ties to even.
__device__ __forceinline__ float nearest_code(float v, float least, float inverse, float levels) {
  constexpr float kMagic = 12582912.0f;
  float code = __fmul_rn(__fsub_rn(v, least), inverse);
  code = code < 0.0f ? 0.0f : code;
  code = code > levels ? levels : code;
  return __fsub_rn(__fadd_rn(code, kMagic), kMagic);
}

/// sum (v - nearest of the levels)^2 of a row whose elements half a warp holds, kVectors to a lane.
template <int kVectors>
__device__ __forceinline__ float squared_error(const float (&v)[kVectors], int count, float least, float most,
                                               float levels) {
  const float step = __fdiv_rn(__fsub_rn(most, least), levels), inverse = step > 0 ? __fdiv_rn(1.0f, step) : 0.0f;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (i >= count) break;
    const float code = nearest_code(v[i], least, inverse, levels);
    const float error = __fsub_rn(v[i], __fadd_rn(least, __fmul_rn(step, code)));
    sum = __fadd_rn(sum, __fmul_rn(error, error));
  }
  return reduce_lanes(sum);
}

/// The range of row r; all lanes of the half warp give it.
__device__ __forceinline__ void choose_range(const float (&v)[kPackColumns / kLanes], int count, int bits, float& least,
                                             float& most) {
  least = most = v[0];
#pragma unroll
  for (int i = 1; i < kPackColumns / kLanes; ++i) {
    if (i >= count) break;
    least = v[i] < least ? v[i] : least;
    most = v[i] > most ? v[i] : most;
  }
  least = -largest_of_lanes(-least);
  most = largest_of_lanes(most);
  const int tries = bits == 2 ? 8 : bits == 3 ? 5 : bits == 4 ? 3 : 0;
  if (tries == 0) return;
  const float levels = static_cast<float>((1 << bits) - 1);
  float least_error = squared_error(v, count, least, most, levels);
  const float middle = __fadd_rn(__fmul_rn(0.5f, least), __fmul_rn(0.5f, most));
  const float half = __fsub_rn(__fmul_rn(0.5f, most), __fmul_rn(0.5f, least));
  for (int i = 1; i <= tries; ++i) {
    const float kept = __fmul_rn(half, __fsub_rn(1.0f, __fdiv_rn(static_cast<float>(i), 16.0f)));
    const float low = __fsub_rn(middle, kept), high = __fadd_rn(middle, kept);
    const float error = squared_error(v, count, low, high, levels);
    if (error < least_error) least_error = error, least = low, most = high;
  }
}

/// A row's elements of one lane: columns 16 i + lane.
template <class Rows>
__device__ __forceinline__ void load_row(const Rows& rows, int r, int count, int lane,
                                         float (&v)[kPackColumns / kLanes], bool& infinite) {
#pragma unroll
  for (int i = 0; i < kPackColumns / kLanes; ++i) {
    v[i] = 0;
    if (i >= count) break;
    const uint16_t h = rows(r, i * kLanes + lane);
    infinite |= (h & 0x7c00) == 0x7c00;
    v[i] = f16_value(h);
  }
}

/// The largest of all threads' numbers, which are not negative.
__device__ __forceinline__ float largest_of_block(float v, Packing& p) {
  const int thread = static_cast<int>(threadIdx.x);
  p.steps[thread] = v;
  for (int half = kPackThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half && p.steps[thread + half] > p.steps[thread]) p.steps[thread] = p.steps[thread + half];
  }
  __syncthreads();
  const float most = p.steps[0];
  __syncthreads();
  return most;
}

/// Super-scales, steps and least values of all rows, as codes; a thread has a row.
__device__ __forceinline__ void choose_super_scales(const PackedShape& shape, Packing& p) {
  static_assert(kMostPackedRows <= kPackThreads);
  const int r = static_cast<int>(threadIdx.x);
  const bool there = r < shape.rows;
  const auto levels = static_cast<float>((1 << shape.bits) - 1);
  const float super_least = __fdiv_rn(largest_of_block(there ? fabsf(p.least[r]) : 0.0f, p), 127.0f);
  float step = 0;
  if (there) {
    float code = super_least > 0 ? floorf(__fdiv_rn(p.least[r], super_least)) : 0.0f;  // never above the least
    code = code < -127.0f ? -127.0f : code > 127.0f ? 127.0f : code;
    p.least_codes[r] = static_cast<int8_t>(code);
    const float least = __fmul_rn(super_least, code);
    step = p.most[r] > least ? __fdiv_rn(__fsub_rn(p.most[r], least), levels) : 0.0f;
  }
  const float widest = largest_of_block(step, p);
  p.steps[r] = step;
  if (r == 0) p.supers[0] = __fdiv_rn(widest, 255.0f), p.supers[1] = super_least;
}

/// Codes in shared memory go to the page: bits [shift, shift + bits) of each. A thread puts a byte together: those
/// whose place it is.
__device__ __forceinline__ void put_codes(const PackedShape& shape, int shift, const Packing& p, uint8_t* codes) {
  const int count = static_cast<int>(shape.columns) / kLanes, of_word = 16 / shape.bits, of_byte = 8 / shape.bits;
  const uint32_t mask = (1u << shape.bits) - 1;
  for (int at = static_cast<int>(threadIdx.x); at < shape.code_bytes(); at += kPackThreads) {
    const int pack = at / 64, word = at % 64 / 2;
    uint32_t byte = 0;
    for (int k = 0; k < of_byte; ++k) {
      const int vector = pack * of_word + at % 2 * of_byte + k;
      const int r = vector / count * 2 + word % 2, column = vector % count * kLanes + word / 2;
      byte |= (static_cast<uint32_t>(p.codes[r * kPackColumns + column]) >> shift & mask) << (k * shape.bits);
    }
    codes[at] = static_cast<uint8_t>(byte);
  }
}

/// pack_rows() by a thread block.
template <class Rows>
__device__ __forceinline__ void pack_matrix(const Rows& rows, const PackedShape& shape, uint8_t* codes, uint8_t* side,
                                            Packing& p) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes,
            count = static_cast<int>(shape.columns) / kLanes;
  const auto levels = static_cast<float>((1 << shape.bits) - 1);
  if (thread == 0) p.infinite = 0;
  __syncthreads();
  bool infinite = false;
  for (int first = 0; first < shape.rows; first += kPackThreads / kLanes) {
    const int r = first + thread / kLanes;
    float v[kPackColumns / kLanes], least, most;
    load_row(rows, r, count, lane, v, infinite);
    choose_range(v, count, shape.bits, least, most);
    if (lane == 0) p.least[r] = least, p.most[r] = most;
  }
  if (infinite) p.infinite = 1;
  __syncthreads();
  if (p.infinite != 0) {  // the whole matrix says so
    for (int at = thread; at < shape.code_bytes(); at += kPackThreads) codes[at] = 0;
    for (int at = thread; at < 2 * shape.rows; at += kPackThreads) side[8 + at] = 0;
    if (thread < 2) reinterpret_cast<uint32_t*>(side)[thread] = 0x7fc00000u;
    __syncthreads();
    return;
  }
  choose_super_scales(shape, p);
  __syncthreads();
  for (int first = 0; first < shape.rows; first += kPackThreads / kLanes) {
    const int r = first + thread / kLanes;
    float v[kPackColumns / kLanes];
    load_row(rows, r, count, lane, v, infinite);
    const float code = p.supers[0] > 0 ? ceilf(__fdiv_rn(p.steps[r], p.supers[0])) : 0.0f;
    const auto scale = static_cast<uint8_t>(code > 255.0f ? 255.0f : code);
    const float step = __fmul_rn(p.supers[0], static_cast<float>(scale));
    const float least = __fmul_rn(p.supers[1], static_cast<float>(p.least_codes[r]));
    const float inverse = step > 0 ? __fdiv_rn(1.0f, step) : 0.0f;
    if (lane == 0) p.scale_codes[r] = scale;
#pragma unroll
    for (int i = 0; i < kPackColumns / kLanes; ++i)
      if (i < count)
        p.codes[r * kPackColumns + i * kLanes + lane] =
            step > 0 ? static_cast<uint8_t>(nearest_code(v[i], least, inverse, levels)) : uint8_t{0};
  }
  __syncthreads();
  if (shape.bits == 3) {
    put_codes(low_bits(shape), 0, p, codes);
    put_codes(high_bit(shape), 2, p, codes + low_bits(shape).code_bytes());
  } else {
    put_codes(shape, 0, p, codes);
  }
  for (int r = thread; r < shape.rows; r += kPackThreads) {
    side[8 + r] = p.scale_codes[r];
    side[8 + shape.rows + r] = static_cast<uint8_t>(p.least_codes[r]);
  }
  if (thread < 2) reinterpret_cast<float*>(side)[thread] = p.supers[thread];
  __syncthreads();
}

/// pack_fp8_rows() of a matrix by a thread block, a warp for each row.
__device__ __forceinline__ void pack_fp8_matrix(const F16Rows& rows, int count, int columns, uint8_t* codes,
                                                int8_t* exponents) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < count; r += kPackThreads / 32) {
    uint32_t most = 0;  // magnitudes of f16 are ordered as their bits
    for (int c = lane; c < columns; c += 32) {
      const uint32_t h = rows(r, c) & 0x7fffu;
      if (h < 0x7c00) most = max(most, h);
    }
#pragma unroll
    for (int w = 16; w > 0; w /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, w, 32));
    int e = -15;
    const float largest = f16_value(static_cast<uint16_t>(most));
    float power = 0x1p-15f;
    for (; e < 8 && largest > __fmul_rn(448.0f, power); ++e) power = __fmul_rn(power, 2.0f);
    const float limit = e == 8 ? 240.0f : 448.0f, inverse = __fdiv_rn(1.0f, power);
    for (int c = lane; c < columns; c += 32) {
      const uint16_t h = rows(r, c);
      const float scaled = __fmul_rn(f16_value(h), inverse);
      codes[r * columns + c] = (h & 0x7c00) == 0x7c00 ? f32_to_e4m3(__uint_as_float(0x7fc00000u))
                                                      : f32_to_e4m3(fminf(fmaxf(scaled, -limit), limit));
    }
    if (lane == 0) exponents[r] = static_cast<int8_t>(e);
  }
}

/// A head of a packed page: its keys' codes and sides. Values lie behind.
struct PackedHeadAt {
  uint8_t *codes, *side;
};
__device__ __forceinline__ PackedHeadAt packed_head_at(const PackedPages& form, int64_t table, int64_t index) {
  auto* const page = reinterpret_cast<uint8_t*>(form.tables[table - 1]);
  return {page + index * form.codes, page + form.sides_at + index * form.sides};
}

/// A thread block per page, kv head and matrix: keys, then blocks of values. `rows`: of keys or of values.
template <class Rows>
__device__ __forceinline__ void pack_block(const Rows& rows, const PackedPages& form, int64_t d, const PackedHeadAt& to,
                                           Packing& packing) {
  if (blockIdx.z == 0) return pack_matrix(rows, {form.key_bits, d, kPackPage}, to.codes, to.side, packing);
  const int64_t width = value_columns(form.value_bits), block = blockIdx.z - 1;
  const PackedShape whole = {form.value_bits, kPackPage, width};
  const PackedShape shape = {form.value_bits, kPackPage, width < d - block * width ? width : d - block * width};
  const int first = static_cast<int>(block * width);
  pack_matrix([&](int r, int c) { return rows(r, first + c); }, shape,
              to.codes + form.key_codes + block * whole.code_bytes(),
              to.side + form.key_side + block * whole.side_bytes(), packing);
}

__global__ void __launch_bounds__(kPackThreads) pack_all(const __grid_constant__ PackPages call) {
  __shared__ Packing packing;
  let_successor_start();
  wait_for_predecessor();
  const PackedKv& kv = call.kv;
  const PackTask task = call.tasks[blockIdx.x];
  const int64_t d = kv.pages.head_dim, head = blockIdx.y, heads = kv.pages.kv_heads;
  const int64_t table = task.sequence * kv.pages.stride + task.page, index = kv.pages.index * heads + head;
  const bool keys = blockIdx.z == 0;
  const auto* const f16 = reinterpret_cast<const uint16_t*>(kv.pages.tables[table]) +
                          ((kv.pages.index * 2 + (keys ? 0 : 1)) * heads + head) * kPackPage * d;
  const PackedHeadAt to = packed_head_at(kv.packed, table, index);
  const F16Rows rows = {f16, keys ? kPackPage : d};
  if (!kv.packed.fp8) return pack_block(rows, kv.packed, d, to, packing);
  const int size = static_cast<int>(d);
  if (keys) return pack_fp8_matrix(rows, size, kPackPage, to.codes, reinterpret_cast<int8_t*>(to.side));
  pack_fp8_matrix(rows, kPackPage, size, to.codes + kv.packed.key_codes,
                  reinterpret_cast<int8_t*>(to.side + kv.packed.key_side));
}

/// Packed pages once more, to fewer bits.
__global__ void __launch_bounds__(kPackThreads) demote_all(const __grid_constant__ PackPages call) {
  __shared__ Packing packing;
  let_successor_start();
  wait_for_predecessor();
  const PackedKv& kv = call.kv;
  const PackTask task = call.tasks[blockIdx.x];
  const int64_t d = kv.pages.head_dim, head = blockIdx.y, heads = kv.pages.kv_heads;
  const int64_t table = task.sequence * kv.pages.stride + task.page, index = kv.pages.index * heads + head;
  const bool keys = blockIdx.z == 0;
  const PackedHeadAt from = packed_head_at(kv.packed, table, index), to = packed_head_at(kv.old, table, index);
  const uint8_t* const codes = from.codes + (keys ? 0 : kv.packed.key_codes);
  const uint8_t* const side = from.side + (keys ? 0 : kv.packed.key_side);
  const int size = static_cast<int>(d), columns = keys ? kPackPage : size;
  if (kv.packed.fp8)
    return pack_block(Fp8Rows{codes, reinterpret_cast<const int8_t*>(side), columns}, kv.old, d, to, packing);
  const int bits = keys ? kv.packed.key_bits : kv.packed.value_bits;
  const int width = keys ? kPackPage : static_cast<int>(value_columns(bits));
  pack_block(CodedRows{codes, side, bits, keys ? size : kPackPage, columns, width}, kv.old, d, to, packing);
}

}  // namespace

Status rotate_transform_and_store(const StoreTransformed& call) {
  const StoreRows& rows = call.rows;
  if (rows.m == 0) return {};
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return check_cuda(e, "rotation");
  const dim3 grid(static_cast<unsigned>(rows.m), static_cast<unsigned>(rows.heads + 2 * rows.kv.kv_heads));
  return check_cuda(launch(rotate_transform_and_store_all, grid, dim3(kTransformThreads), 0,
                           static_cast<cudaStream_t>(rows.stream), device.bulk_copies, call),
                    "rotation");
}

Status pack_pages(const PackPages& call) {
  if (call.count == 0) return {};
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return check_cuda(e, "kv cache");
  const PackedPages& form = call.demotes ? call.kv.old : call.kv.packed;
  const int64_t width = form.fp8 ? call.kv.pages.head_dim : value_columns(form.value_bits);
  const dim3 grid(static_cast<unsigned>(call.count), static_cast<unsigned>(call.kv.pages.kv_heads),
                  static_cast<unsigned>(1 + (call.kv.pages.head_dim + width - 1) / width));
  return check_cuda(launch(call.demotes ? demote_all : pack_all, grid, dim3(kPackThreads), 0,
                           static_cast<cudaStream_t>(call.stream), device.bulk_copies, call),
                    "kv cache");
}

}  // namespace lowbit::cuda
