#pragma once
// Shared by the kernels of an RMS norm with E4M3 codes behind it: the norm of a row of halves in shared memory, and
// codes of blocks of 128 columns, four columns a lane. Instructions bound them beside memory, so each is counted.

#include <type_traits>

#include "kernels/cuda/fp8/quantize_halves.cuh"
#include "kernels/cuda/row_norm.cuh"

namespace lowbit::cuda::fp8 {

static_assert(kNormSums == kFp8Block);

/// 1 / scale as a sum. The lower part is positive, so that products with x = -0 stay -0.
struct Inverse {
  float high, low;
};
__device__ __forceinline__ Inverse inverse_of(float scale) {
  const float high = __fmul_rn(reciprocal_estimate(scale), 1.0f - 0x1p-21f);
  const float left = __fmaf_rn(-scale, high, 1.0f), low = __fmul_rn(high, left);
  return {high, __fmaf_rn(low, left, low)};
}
/// x / scale, near enough for the division's code: between the numbers that round up and those that round down lie
/// numbers of five bits, and the quotient of two floats other than such a number is so far away from them that only
/// scales this function's neighbour refuses come too near.
__device__ __forceinline__ float quotient(float x, const Inverse& by) {
  return __fmaf_rn(x, by.high, __fmul_rn(x, by.low));
}
/// Of a scale that is not a power of two: the last 20 bits of its mantissa are not just above or below zeros.
__device__ __forceinline__ bool has_near_quotients(float scale) {
  constexpr uint32_t kNear = 64, kBits = 0xfffff;
  return ((__float_as_uint(scale) + kNear) & kBits) > 2 * kNear;
}

__device__ __forceinline__ uint32_t largest_of_warp(uint32_t most) {
#if defined(__CUDA_ARCH__)
  return __reduce_max_sync(0xffffffffu, most);
#else
  for (int across = 16; across > 0; across /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, across, 32));
  return most;
#endif
}
/// The larger magnitude; NaN where either is.
__device__ __forceinline__ float larger_magnitude(float a, float b) {
#if defined(__CUDA_ARCH__)
  float larger;
  asm("{.reg .f32 p, q; abs.f32 p, %1; abs.f32 q, %2; max.NaN.f32 %0, p, q;}" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else
  return __uint_as_float(max(magnitude(a), magnitude(b)));
#endif
}
__device__ __forceinline__ uint32_t four_codes_of(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t codes;
  asm("{.reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;"
      "mov.b32 %0, {low, high};}"
      : "=r"(codes)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return codes;
#else
  return codes_of(a, b) | codes_of(c, d) << 16;
#endif
}
template <class By>
__device__ __forceinline__ uint32_t codes_by(const float4& v, const By& by) {
  return four_codes_of(quotient(v.x, by), quotient(v.y, by), quotient(v.z, by), quotient(v.w, by));
}

template <Fp8Element E>
__device__ __forceinline__ float4 four_halves(const uint2& w) {
  return {low_half<E>(w.x), high_half<E>(w.x), low_half<E>(w.y), high_half<E>(w.y)};
}

// ---- Norm

constexpr int kNormedBlocks = 4, kLastBlocks = 2;  // of columns that a warp has at once, and at a row's end

/// Rows in shared memory end with zeros, so that no load needs a look at where the row ends.
template <int kTeam, class Int>
constexpr LOWBIT_HD Int padded_columns(Int columns) {
  constexpr Int kRound = kTeam * kLastBlocks * kNormSums;
  return (columns + kRound - 1) / kRound * kRound;
}

/// 1 / rms of a row in shared memory that all threads of a team see; each has as many of the 128 sums, side by side.
/// meet(): a barrier of the team; `parts`: four floats of it in shared memory, at a multiple of 16 bytes.
template <Fp8Element E, int kTeam>
__device__ __forceinline__ float team_inverse_rms(const uint16_t* row, int columns, float eps, int thread, float* parts,
                                                  const auto& meet) {
  constexpr int kOwn = 4 / kTeam, kAhead = kLastBlocks * kTeam;
  using Own = std::conditional_t<kTeam == 1, uint2, uint16_t>;
  const auto value = [](const Own& w, int i) {
    if constexpr (kTeam == 1)
      return i % 2 == 0 ? low_half<E>(i < 2 ? w.x : w.y) : high_half<E>(i < 2 ? w.x : w.y);
    else
      return low_half<E>(w);
  };
  const uint16_t* at = row + kOwn * thread;
  float sums[kOwn] = {};
#pragma unroll 2
  for (int left = columns; left > 0; left -= kAhead * kNormSums, at += kAhead * kNormSums) {
    Own v[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) v[i] = *reinterpret_cast<const Own*>(at + i * kNormSums);
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const float own = value(v[i], j);
        sums[j] = __fmaf_rn(own, own, sums[j]);
      }
  }
  float sum = sums[0];
  if constexpr (kTeam == 1) sum = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
  sum = add_neighbours(sum);
  if constexpr (kTeam > 1) {
    if (thread % 32 == 0) parts[thread / 32] = sum;
    meet();
    const float4 q = *reinterpret_cast<const float4*>(parts);
    sum = __fadd_rn(__fadd_rn(q.x, q.y), __fadd_rn(q.z, q.w));
  }
  return inverse_rms_of(sum, columns, eps);
}

// ---- Codes

/// A lane's columns of Count blocks, which a warp has, their codes, and the scale of the lane's own block: what follows
/// from a largest magnitude is computed once for all blocks. Branches between blocks would make them wait for each
/// other.
template <int Count>
struct NormedBlocks {
  static constexpr int kLanes = 32 / Count;  // that own a block
  float4 v[Count];
  uint32_t codes[Count];
  float scale;

  static __device__ __forceinline__ int own_block() { return static_cast<int>(threadIdx.x) % 32 / kLanes; }

  /// The first `count` blocks, or all if kAll. there(i): the lane's columns of block i are. Others are zeros, or NaN by
  /// a norm that is not finite.
  template <bool kAll>
  __device__ __forceinline__ void quantize(int count, bool power_of_two, const auto& there) {
    const uint32_t found = largest_of_own();
    const float largest = kAll || own_block() < count ? __uint_as_float(found) : 1.0f;
    scale = plain_scale(largest, power_of_two);
    const bool near = power_of_two || has_near_quotients(scale);
    if (__any_sync(0xffffffffu, !(largest > 0x1p-60f && largest < 0x1p60f && near)))
      return quantize_any(power_of_two, there);
    const Inverse by = inverse_of(scale);
#pragma unroll
    for (int i = 0; i < Count; ++i)
      codes[i] = codes_by(v[i], Inverse{__shfl_sync(0xffffffffu, by.high, i * kLanes, 32),  //
                                        __shfl_sync(0xffffffffu, by.low, i * kLanes, 32)});
  }
  static __device__ __forceinline__ uint32_t largest_of_lane(const float4& v) {
    return __float_as_uint(larger_magnitude(larger_magnitude(v.x, v.y), larger_magnitude(v.z, v.w)));
  }
  /// Not by an array of all of them, which the compiler would keep in memory.
  __device__ __forceinline__ uint32_t largest_of_own() const {
    uint32_t found = largest_of_warp(largest_of_lane(v[0]));
#pragma unroll
    for (int i = 1; i < Count; ++i) {
      const uint32_t other = largest_of_warp(largest_of_lane(v[i]));
      if (own_block() == i) found = other;
    }
    return found;
  }
  /// One by one, by division.
  __device__ __forceinline__ void quantize_any(bool power_of_two, const auto& there) {
#pragma unroll 1
    for (int i = 0; i < Count; ++i) {
      float4 own = v[0];
#pragma unroll
      for (int j = 1; j < Count; ++j)
        if (i == j) own = v[j];
      if (!there(i)) own = float4{0, 0, 0, 0};
      const uint32_t found = largest_of_warp(largest_of_lane(own));
      const float of_block = fp8_scale(__uint_as_float(found), power_of_two);
      const uint32_t four = fp8_has_codes(of_block) ? codes_by(own, divisor_of(of_block)) : 0u;
#pragma unroll
      for (int j = 0; j < Count; ++j)
        if (i == j) codes[j] = four;
      if (own_block() == i) scale = of_block;
    }
  }
};

/// Where a lane's codes of a row go, from its column `first` on, and its warp's scales, whose blocks are Step columns
/// apart.
struct NormedPlace {
  uint8_t* codes;
  float* scales;
  int64_t scales_apart;
};
template <int Step>
__device__ __forceinline__ NormedPlace normed_place(const Fp8Quant& q, int64_t row, int first) {
  const int64_t apart = q.scales_by_column ? q.ldscales : 1;
  return {q.codes + row * q.ldcodes + first, scale_at(q, row, first / kFp8Block), apart * (Step / kFp8Block)};
}

/// Count blocks of a warp, all of them there if kAll, Step columns apart from the lane's column `base` on;
/// code_columns() has the rest.
template <Fp8Element E, int Count, int Step, bool kAll>
__device__ __forceinline__ void code_blocks(const NormedPlace& to, bool power_of_two, float by, int base, int end,
                                            bool tells, const auto& halves, const auto& weight, const auto& done) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  NormedBlocks<Count> of;
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const int column = base + i * Step;
    of.v[i] = normed(four_halves<E>(halves(i, column)), by, weight(i, column));
  }
  const int count = kAll ? Count : min((end - (base - 4 * lane) + Step - 1) / Step, Count);
  const auto there = [&](int i) { return kAll || base + i * Step < end; };
  of.template quantize<kAll>(count, power_of_two, there);
#pragma unroll
  for (int i = 0; i < Count; ++i)
    if (there(i)) *reinterpret_cast<uint32_t*>(to.codes + i * Step) = of.codes[i];
  if (tells)
#pragma unroll
    for (int i = 0; i < Count; ++i)
      if (there(i)) done(base, i * Step);
  if (const int own = of.own_block(); lane % of.kLanes == 0 && own < count) to.scales[own * to.scales_apart] = of.scale;
}

/// A warp's columns of a row, Count blocks at once that are Step columns apart: from the lane's column `first` on up to
/// `end`. halves(i, column), weight(i, column): four columns, the i-th of Count, zeros behind the end.
/// done(base, more): the columns at base + more have become codes; called if `tells`.
template <Fp8Element E, int Count, int Step>
__device__ __forceinline__ void code_columns(const Fp8Quant& q, int64_t row, NormedPlace to, float by, int first,
                                             int end, bool tells, const auto& halves, const auto& weight,
                                             const auto& done) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int base = first, left = end - (first - 4 * lane);
#pragma unroll 1
  for (; left >= (Count - 1) * Step + kFp8Block; base += Count * Step, left -= Count * Step) {
    code_blocks<E, Count, Step, true>(to, q.power_of_two, by, base, end, tells, halves, weight, done);
    to.codes += Count * Step;
    to.scales += Count * to.scales_apart;
  }
  constexpr int kLast = Count < kLastBlocks ? Count : kLastBlocks;
  if (left > kLast * Step)
    code_blocks<E, Count, Step, false>(to, q.power_of_two, by, base, end, tells, halves, weight, done);
  else if (left > 0)
    code_blocks<E, kLast, Step, false>(to, q.power_of_two, by, base, end, tells, halves, weight, done);
  if (lane == 0 && q.scales_by_column && row == q.rows - 1)
    for (int column = first; column < end; column += Step) clear_padding(q, q.rows, row, column / kFp8Block);
}

}  // namespace lowbit::cuda::fp8
