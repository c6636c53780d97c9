// The fallback matmul. Never tuned: right for each format, scaling, shape and type is all it is for.

#include "kernels/cuda/generic.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "format/formats.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemm/weight_order/integer_value.cuh"
#include "kernels/cuda/integer_gemv.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {
namespace {

constexpr int kWarps = 4;

// Dense formats in the shape of a list entry.
template <FormatId Id, class T>
struct Dense {
  static constexpr FormatId kId = Id;
  static constexpr int kElems = 1, kPackBytes = sizeof(T);
};

template <class F>
constexpr bool kIsInteger = false;
template <class F>
requires requires { F::Codec::kKind; }
constexpr bool kIsInteger<F> = F::Codec::kKind == CodecKind::kInteger;

template <class F>
__device__ __forceinline__ auto value_of(const uint8_t* pack, int e, const float* table) {
  if constexpr (F::kId == FormatId::kF32) {
    return *reinterpret_cast<const float*>(pack);
  } else if constexpr (F::kId == FormatId::kF16) {
    return f16_value(*reinterpret_cast<const uint16_t*>(pack));
  } else if constexpr (F::kId == FormatId::kBf16) {
    return bf16_to_f32(*reinterpret_cast<const uint16_t*>(pack));
  } else if constexpr (F::Codec::kKind == CodecKind::kTable) {
    return table[F::code_at(pack, e)];
  } else {
    return F::decode(pack, e);
  }
}

template <class T>
__device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

/// Sums over a warp of columns [begin, end) of a row of w with one of x: value * x, and x.
template <class F, bool kInt8, class Sum>
__device__ __forceinline__ void group_sums(const GenericArgs& a, const uint8_t* row, int64_t x_row, int begin, int end,
                                           Sum& sum, Sum& sum_x) {
  const int lane = threadIdx.x & 31;
  for (int u = begin / F::kElems + lane; u * F::kElems < end; u += 32) {
    const uint8_t* const pack = row + static_cast<int64_t>(u) * F::kPackBytes;
#pragma unroll
    for (int e = 0; e < F::kElems; ++e) {
      const int k = u * F::kElems + e;
      if (k < begin || k >= end) continue;
      const auto value = value_of<F>(pack, e, a.w.table);
      if constexpr (kInt8) {
        const Sum x = static_cast<const int8_t*>(a.x)[x_row + k];
        if constexpr (kIsInteger<F>) {
          sum += static_cast<int>(value) * x;
          sum_x += x;
        } else {
          sum = __fmaf_rn(static_cast<float>(value), x, sum);
          sum_x = __fadd_rn(sum_x, x);
        }
      } else {
        const float x = load_element(a.x, a.x_element, x_row + k);
        sum = __fmaf_rn(static_cast<float>(value), x, sum);
        sum_x = __fadd_rn(sum_x, x);
      }
    }
  }
  sum = warp_sum(sum);
  sum_x = warp_sum(sum_x);
}

template <class F, bool kInt8>
__global__ void generic_matmul(const __grid_constant__ GenericArgs a) {
  using Sum = std::conditional_t<kInt8 && kIsInteger<F>, int, float>;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (n >= a.w.n) return;
  const uint8_t* const row = a.w.codes + n * a.w.row_bytes;
  for (int64_t m = blockIdx.y; m < a.m; m += gridDim.y) {
    float acc = 0, part = 0, part_x = 0;
    int64_t scale_ends = a.w.groups_per_scale;
    for (int64_t g = 0; g < a.w.groups; ++g) {
      Sum sum = 0, sum_x = 0;
      const int begin = static_cast<int>(g * a.w.group), end = static_cast<int>(min(a.w.k, (g + 1) * a.w.group));
      group_sums<F, kInt8>(a, row, m * a.ldx, begin, end, sum, sum_x);
      const float x_scale = kInt8 && a.x_groups ? a.x_scales[m * a.w.groups + g] : 1.0f;
      part = __fmaf_rn(static_cast<float>(sum), x_scale, part);
      part_x = __fmaf_rn(static_cast<float>(sum_x), x_scale, part_x);
      if (g + 1 != scale_ends && g + 1 != a.w.groups) continue;
      scale_ends += a.w.groups_per_scale;
      const float scale = a.w.scales == nullptr ? 1.0f : a.w.scales[g * factor_rows(a.w.n) + n];
      acc = __fmaf_rn(part, scale, acc);
      if (a.w.offsets != nullptr) acc = __fmaf_rn(part_x, a.w.offsets[g * factor_rows(a.w.n) + n], acc);
      part = part_x = 0;
    }
    if (threadIdx.x % 32 != 0) continue;
    const float bias = a.bias == nullptr ? 0.0f : a.bias[n];
    const float y = kInt8 && !a.x_groups ? __fmaf_rn(acc, a.x_scales[m], bias) : __fadd_rn(acc, bias);
    store_element(a.y, a.y_element, m * a.ldy + n, y);
  }
}

template <class F>
struct GenericOf {
  static cudaError_t start(bool int8, const GenericArgs& a, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>((a.w.n + kWarps - 1) / kWarps),
                    static_cast<unsigned>(std::min<int64_t>(a.m, 4096)));
    return int8 ? launch(generic_matmul<F, true>, grid, dim3(32 * kWarps), 0, stream, false, a)
                : launch(generic_matmul<F, false>, grid, dim3(32 * kWarps), 0, stream, false, a);
  }
  static constexpr auto value = &start;
};

// ---- Re-ordering

struct RelayoutArgs {
  FormatId format;
  int bits, mul, add;  // value = mul * code + add
  bool counted;        // a code is so many set bits
  const uint8_t* from;
  int64_t stride, rows, k;
  uint32_t* to;
  int64_t blocks;  // of a row
};

/// One thread per word of integer_gemv.h's order. Rows that fill up the last tile are zero.
__global__ void relayout(const __grid_constant__ RelayoutArgs a) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  constexpr int kBlockWords = kBlockBytes / 4;
  const int64_t block_of_all = at / (kTileRows * kBlockWords), tile = block_of_all / a.blocks,
                block = block_of_all % a.blocks;
  if (tile * kTileRows >= a.rows) return;
  const int within = static_cast<int>(at % (kTileRows * kBlockWords)), word = within % kBlockWords;
  const int64_t row = tile * kTileRows + within / kBlockWords;
  const int t = word / 4, j = word % 4, fields = 8 / a.bits;
  uint32_t out = 0;
#pragma unroll 1
  for (int i = 0; i < 4 * fields && row < a.rows; ++i) {
    const int f = i / 4, b = i % 4;
    const int64_t k = block * (512 / a.bits) + 16 * (j * fields + f) + 4 * t + b;
    if (k >= a.k) continue;
    const int value = integer_value(a.format, a.from + row * a.stride, k);
    const int code = (value - a.add) / a.mul;
    out |= static_cast<uint32_t>(a.counted ? (1 << code) - 1 : code) << (8 * b + a.bits * f);
  }
  a.to[at] = out;
}

// ---- Activations

struct QuantizeArgs {
  const void* x;
  Element element;
  int64_t m, k, ldx, group, groups;
  bool aligned;       // every scale's columns begin at a multiple of four elements, in x and in codes
  bool exact_scales;  // RowCodes
  int8_t* codes;
  int64_t ldq;
  float* scales;
};

/// A row of a block's threads takes a scale: a warp few columns, a whole block many.
__global__ void quantize_rows(const __grid_constant__ QuantizeArgs a) {
  __shared__ uint32_t of_warps[32];
  let_successor_start();
  wait_for_predecessor();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (at >= a.m * a.groups) return;  // only where a warp takes a scale
  const unsigned lane = threadIdx.x & 31, step = 4 * blockDim.x;
  const int64_t row = at / a.groups, g = at - row * a.groups, begin = g * a.group, end = min(a.k, begin + a.group);
  const int64_t padded = g + 1 < a.groups ? end : a.ldq, x = row * a.ldx;
  const int64_t of_scale = a.exact_scales ? g / 4 * 4 * a.group : begin,
                end_of_scale = a.exact_scales ? min(a.k, of_scale + 4 * a.group) : end;
  float v[4];
  uint32_t largest = 0;
#pragma unroll 4
  for (int64_t k = of_scale + 4 * threadIdx.x; k < end_of_scale; k += step) {
    load_four(a.x, a.element, x + k, x + end_of_scale, a.aligned, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = max(largest, magnitude_bits(v[i]));
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (blockDim.x > 32) {
    if (lane == 0) of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
    largest = __reduce_max_sync(0xffffffffu, lane < blockDim.x / 32 ? of_warps[lane] : 0);
  }
  Quantizer q = quantizer_of(largest);
  if (a.exact_scales) q = exact_quantizer(q);
#pragma unroll 4
  for (int64_t k = begin + 4 * threadIdx.x; k < padded; k += step) {
    load_four(a.x, a.element, x + k, x + end, a.aligned, v);  // zeros from the end on
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) word |= (static_cast<uint32_t>(quantize_one(v[i], q.inverse)) & 0xffu) << (8 * i);
    int8_t* const to = a.codes + row * a.ldq + k;
    if (a.aligned && k + 4 <= padded) {
      *reinterpret_cast<uint32_t*>(to) = word;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (k + i < padded) to[i] = static_cast<int8_t>(word >> (8 * i));
    }
  }
  if (threadIdx.x == 0) a.scales[at] = q.scale;
}

template <template <class> class Kernel>
constexpr auto table_of() {
  return make_table<Kernel>(RandomAccessFormatList{});
}

}  // namespace

cudaError_t launch_generic(FormatId format, bool int8, const GenericArgs& args, cudaStream_t stream) {
  static constexpr auto kPacked = table_of<GenericOf>();
  static constexpr std::array kDense = {GenericOf<Dense<FormatId::kF32, float>>::value,
                                        GenericOf<Dense<FormatId::kF16, uint16_t>>::value,
                                        GenericOf<Dense<FormatId::kBf16, uint16_t>>::value};
  const auto id = static_cast<size_t>(format);
  return (id < kDenseFormats ? kDense[id] : kPacked[id - kDenseFormats])(int8, args, stream);
}

cudaError_t launch_relayout(FormatId format, int bits, int mul, int add, bool counted, const uint8_t* from,
                            int64_t stride, int64_t rows, int64_t k, uint8_t* to, int64_t row_bytes,
                            cudaStream_t stream) {
  const RelayoutArgs a = {
      format, bits, mul, add, counted, from, stride, rows, k, reinterpret_cast<uint32_t*>(to), row_bytes / kBlockBytes};
  const int64_t words = (rows + kTileRows - 1) / kTileRows * a.blocks * (kTileRows * kBlockBytes / 4);
  if (words == 0) return cudaSuccess;
  return launch(relayout, dim3(static_cast<unsigned>((words + 255) / 256)), dim3(256), 0, stream, false, a);
}

cudaError_t launch_quantize(const void* x, Element element, int64_t m, int64_t k, int64_t ldx, int64_t group,
                            bool exact_scales, int8_t* codes, int64_t ldq, float* scales, bool overlap,
                            cudaStream_t stream) {
  const int64_t width = group > 0 ? group : std::max<int64_t>(k, 1);
  const int64_t groups = std::max<int64_t>(1, (k + width - 1) / width), count = m * groups;
  if (count == 0) return cudaSuccess;
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  const int64_t four = element == Element::kF32 ? 16 : 8;
  const bool aligned = reinterpret_cast<uintptr_t>(x) % four == 0 && reinterpret_cast<uintptr_t>(codes) % 4 == 0 &&
                       (m == 1 || (ldx % 4 == 0 && ldq % 4 == 0)) && (groups == 1 || group % 4 == 0);
  const QuantizeArgs a = {x, element, m, k, ldx, width, groups, aligned, exact_scales, codes, ldq, scales};
  const unsigned threads = width <= 256 ? 32 : width <= 2048 ? 256 : 1024, rows = threads == 32 ? kWarps : 1;
  return launch(quantize_rows, dim3(static_cast<unsigned>((count + rows - 1) / rows)), dim3(threads, rows), 0, stream,
                overlap && device.bulk_copies, a);
}

}  // namespace lowbit::cuda
