#pragma once
// The work of one warp on packed pages, with sizes known when compiled: x becomes integers, tensor cores multiply codes
// by them, scores become weights. The operations are those of docs/kv-cache.md, in their order where it counts.

#include "kernels/cuda/block/attention_packed.cuh"
#include "kernels/cuda/packed_ops.cuh"
#include "kernels/packed_kv.h"

namespace lowbit::cuda::block {

/// Eight lanes make integers of one x: lane j of them has rows 16 i + 2 j and 16 i + 2 j + 1, so that it adds two of
/// the sixteen partial sums of offsets. A quad is the rows of two such i, 2 h and 2 h + 1: four bytes of an operand.
constexpr int kGroupLanes = 8;
constexpr int kWeightPitch = kTeamPages * kPagePositions + 40;  // of a query; for banks, as weights_at()
__device__ __forceinline__ int weights_at(int page) { return page * 72 + page % 2 * 8; }

__device__ __forceinline__ float shuffle_xor(float v, int by) {
  return __uint_as_float(__shfl_xor_sync(0xffffffffu, __float_as_uint(v), by, 32));
}
/// The sum of sixteen partial sums, two of which each of eight lanes has.
__device__ __forceinline__ float reduce_pairs(float2 sum) {
#pragma unroll
  for (int w = kGroupLanes / 2; w > 0; w /= 2) {
    sum.x = __fadd_rn(sum.x, shuffle_xor(sum.x, w));
    sum.y = __fadd_rn(sum.y, shuffle_xor(sum.y, w));
  }
  return __fadd_rn(sum.x, sum.y);
}

/// Steps and least values of a lane's rows.
template <int kPairs>
struct RowScales {
  float2 step[kPairs], least[kPairs];

  __device__ __forceinline__ void load(const uint8_t* side, int j) {
    const float2 supers = *reinterpret_cast<const float2*>(side);
    const uint8_t* const from = side + 8 + 2 * j;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t s = *reinterpret_cast<const uint16_t*>(from + i * kLanes),
                     l = *reinterpret_cast<const uint16_t*>(from + (kPairs + i) * kLanes);
      step[i] = {__fmul_rn(supers.x, static_cast<float>(static_cast<uint8_t>(s))),
                 __fmul_rn(supers.x, static_cast<float>(static_cast<uint8_t>(s >> 8)))};
      least[i] = {__fmul_rn(supers.y, static_cast<float>(static_cast<int8_t>(l))),
                  __fmul_rn(supers.y, static_cast<float>(static_cast<int8_t>(l >> 8)))};
    }
  }
};

/// Words of an x: of lane j, kPairs / 2 quads of low bytes, then of high bytes, behind those of lane j - 1.
template <int kPairs>
constexpr int kXWords = kGroupLanes* kPairs;

/// The two factors of x whose largest magnitude is `most`: packed_x(). The second quotient, of a constant, is rounded
/// right by a step of its own: every mantissa has been tried.
struct XFactors {
  float scale, inverse;
};
__device__ __forceinline__ XFactors factors_of(float most) {
  constexpr float kInverse = 1.0f / kPackedX;
  const bool finite = most <= 3.4028234e38f, some = finite && most >= 0x1p-100f;
  const float near = __fmul_rn(most, kInverse), scale = __fmaf_rn(__fmaf_rn(-kPackedX, near, most), kInverse, near);
  return {some ? scale : finite ? 0.0f : __uint_as_float(0x7fc00000u), some ? __fdiv_rn(kPackedX, most) : 0.0f};
}

/// Stores integers of a lane's rows.
template <int kPairs>
__device__ __forceinline__ void store_x(const float2 (&scaled)[kPairs], float inverse, uint32_t* to) {
  uint32_t low[kPairs / 2], high[kPairs / 2];
#pragma unroll
  for (int h = 0; h < kPairs / 2; ++h) {  // adding 1.5 * 2^23 rounds; an integer's bits lie lowest then
    const auto bits = [&](float v) { return __float_as_uint(__fadd_rn(__fmul_rn(v, inverse), 12582912.0f)); };
    const uint32_t first = choose_bytes(bits(scaled[2 * h].x), bits(scaled[2 * h].y), 0x5140),
                   second = choose_bytes(bits(scaled[2 * h + 1].x), bits(scaled[2 * h + 1].y), 0x5140);
    low[h] = choose_bytes(first, second, 0x5410);
    high[h] = choose_bytes(first, second, 0x7632);
  }
  if constexpr (kPairs == 8) {
    *reinterpret_cast<uint4*>(to) = {low[0], low[1], low[2], low[3]};
    *reinterpret_cast<uint4*>(to + 4) = {high[0], high[1], high[2], high[3]};
  } else {
    static_assert(kPairs == 4);
    *reinterpret_cast<uint4*>(to) = {low[0], low[1], high[0], high[1]};
  }
}

/// x times its rows' steps, the largest magnitude of them, and two partial sums of offsets.
template <int kPairs>
struct ScaledX {
  float2 scaled[kPairs], offsets;
  float most;

  __device__ __forceinline__ void scale(const RowScales<kPairs>& rows, const float* x) {
    float other = 0;
    most = 0;
    offsets = {0, 0};
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float2 v = *reinterpret_cast<const float2*>(x + i * kLanes);
      scaled[i] = {__fmul_rn(v.x, rows.step[i].x), __fmul_rn(v.y, rows.step[i].y)};
      most = larger_magnitude(most, scaled[i].x);
      other = larger_magnitude(other, scaled[i].y);
      offsets = {__fmaf_rn(v.x, rows.least[i].x, offsets.x), __fmaf_rn(v.y, rows.least[i].y, offsets.y)};
    }
    most = larger_magnitude(most, other);
  }
};

/// x of a group's rows, the lane's first pair at `x`, becomes integers, the lane's at `to`; scale and offset at `by`.
/// All lanes of the warp call it.
template <int kPairs>
__device__ __forceinline__ void prepare_one(const RowScales<kPairs>& rows, const float* x, uint32_t* to, float2* by) {
  ScaledX<kPairs> own;
  own.scale(rows, x);
  float most = own.most;
#pragma unroll
  for (int w = kGroupLanes / 2; w > 0; w /= 2) most = larger_magnitude(most, shuffle_xor(most, w));
  const float offset = reduce_pairs(own.offsets);
  const XFactors factors = factors_of(most);
  store_x<kPairs>(own.scaled, factors.inverse, to);
  if (threadIdx.x % kGroupLanes == 0) *by = {factors.scale, offset};
}

/// `join` of four numbers over eight lanes: lane j has that of number j / 2.
template <class Join>
__device__ __forceinline__ float join_four(const float (&v)[4], const Join& join) {
  const bool upper = threadIdx.x % 8 >= 4, odd = threadIdx.x % 4 >= 2;
  const float a = join(upper ? v[2] : v[0], shuffle_xor(upper ? v[0] : v[2], 4)),
              b = join(upper ? v[3] : v[1], shuffle_xor(upper ? v[1] : v[3], 4));
  const float c = join(odd ? b : a, shuffle_xor(odd ? a : b, 2));
  return join(c, shuffle_xor(c, 1));
}

/// prepare_one() of four queries at once, which shares the work that all lanes of a group would do: query q at
/// x + q * x_pitch, to(q) and by[q].
template <int kPairs, class To>
__device__ __forceinline__ void prepare_four(const RowScales<kPairs>& rows, const float* x, int x_pitch, const To& to,
                                             float2* by) {
  ScaledX<kPairs> own[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) own[q].scale(rows, x + q * x_pitch);
  const auto add = [](float a, float b) { return __fadd_rn(a, b); };
  const float most = join_four({own[0].most, own[1].most, own[2].most, own[3].most},
                               [](float a, float b) { return larger_magnitude(a, b); });
  const float even = join_four({own[0].offsets.x, own[1].offsets.x, own[2].offsets.x, own[3].offsets.x}, add),
              odd = join_four({own[0].offsets.y, own[1].offsets.y, own[2].offsets.y, own[3].offsets.y}, add);
  const XFactors factors = factors_of(most);
  if (threadIdx.x % 2 == 0) by[threadIdx.x % kGroupLanes / 2] = {factors.scale, __fadd_rn(even, odd)};
#pragma unroll
  for (int q = 0; q < 4; ++q)
    store_x<kPairs>(own[q].scaled, __shfl_sync(0xffffffffu, factors.inverse, 2 * q, kGroupLanes), to(q));
}

/// Codes of kRows rows and kColumns columns as a lane has them, before they are bytes. Codes of 8 bits come in two
/// parts, of 32 columns each.
template <int kBits, int kRows, int kColumns>
struct RawTile {
  static constexpr bool kNarrow = kBits == 2 && kColumns == 32;
  static constexpr int kSteps = kRows / 32, kParts = kBits == 8 ? 2 : 1, kTiles = kColumns / 16 / kParts;
  static constexpr int kOfStep = kNarrow ? 1 : kBits == 2 ? 2 : 4, kQuads = kRows / 32;
  static_assert((kColumns == 64 || kNarrow) && (!kNarrow || kSteps == 2));
  uint2 raw[kSteps * kOfStep];

  /// Fetches the codes whose registers the products of this step free; nothing without `more`.
  __device__ __forceinline__ void fetch_step(bool more, const uint8_t* codes, int part, int step) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    constexpr int kPacks = kBits == 8 ? 2 : 1;  // of two rows
    const int pack = kNarrow ? t / 2 * 4 + t % 2 : kPacks * t + part;
    const uint8_t* const from = codes + static_cast<uint32_t>(pack * 64 + 8 * g);  // what is added below is constant
    if constexpr (kNarrow) {
      if (step == 0) return;
#pragma unroll
      for (int i = 0; i < 2; ++i) load_once_if(more, raw[i], from + 2 * i * 64);
    } else if constexpr (kBits == 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) load_once_if(more, raw[2 * step + i], from + (8 * step + 4 * i) * 64);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        load_once_if(more, raw[4 * step + i], from + kPacks * (16 * step + i % 2 * 8 + i / 2 * 4) * 64);
    }
  }
  __device__ __forceinline__ void fetch(bool more, const uint8_t* codes, int part) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) fetch_step(more, codes, part, step);
  }
  /// Operand a: columns 16 n + 2 g, then 16 n + 2 g + 1, times 2^shift(n).
  __device__ __forceinline__ void operand(int step, int n, uint32_t (&a)[4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint2 v;
      uint32_t mask = 0xffffffffu;
      if constexpr (kNarrow) {
        const uint32_t which = step == 0 ? 0x6420 : 0x7531;
        v = {choose_bytes(raw[0].x, raw[1].x, which), choose_bytes(raw[0].y, raw[1].y, which)};
        if (half == 1) v = {v.x >> 4, v.y >> 4};
        mask = 0x03030303u << (2 * n);
      } else if constexpr (kBits == 2) {
        const uint32_t which = half == 0 ? 0x6420 : 0x7531;
        const uint2 first = raw[2 * step], second = raw[2 * step + 1];
        v = {choose_bytes(first.x, second.x, which), choose_bytes(first.y, second.y, which)};
        mask = 0x03030303u << (2 * n);
      } else {
        const uint32_t which = (kBits == 8 ? n : n / 2) == 0 ? 0x6420 : 0x7531;
        const uint2 first = raw[4 * step + 2 * half], second = raw[4 * step + 2 * half + 1];
        v = {choose_bytes(first.x, second.x, which), choose_bytes(first.y, second.y, which)};
        if (kBits == 4) mask = n % 2 == 0 ? 0x0f0f0f0fu : 0xf0f0f0f0u;
      }
      a[2 * half] = v.x & mask;
      a[2 * half + 1] = v.y & mask;
    }
  }
  static constexpr LOWBIT_HD float inverse_factor(int n) {
    return kBits == 8 ? 1.0f : kBits == 4 ? (n % 2 == 0 ? 1.0f : 0.0625f) : 1.0f / static_cast<float>(1 << (2 * n));
  }
  /// Operand b of lane t: the quads that operand() has, in plane 0 (low bytes) or 1 of an x.
  static __device__ __forceinline__ void x_of(const uint32_t* x, int plane, uint32_t (&b)[kSteps][2]) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kNarrow) {
#pragma unroll
        for (int step = 0; step < 2; ++step)
          b[step][half] = x[(t % 2 * 4 + 2 * step + half) * 2 * kQuads + plane * kQuads + t / 2];
      } else {
        const uint32_t* const from = x + (kBits == 2 ? 2 * t + half : t + 4 * half) * 2 * kQuads + plane * kQuads;
        if constexpr (kQuads == 4) {
          const uint4 four = *reinterpret_cast<const uint4*>(from);
          b[0][half] = four.x, b[1][half] = four.y, b[2][half] = four.z, b[3][half] = four.w;
        } else {
          const uint2 two = *reinterpret_cast<const uint2*>(from);
          b[0][half] = two.x, b[1][half] = two.y;
        }
      }
    }
  }
};

__device__ __forceinline__ float product_of(int high, int low, float scale, float offset) {
  const int sum = static_cast<int>(static_cast<uint32_t>(high) * 256u + static_cast<uint32_t>(low));
  return __fmaf_rn(static_cast<float>(sum), scale, offset);
}

/// Scores of a page, or of a part of its columns, times `scale`: at `to` of each query. `next`: what is fetched in
/// place of what has been multiplied, if there is `more`. Up to four queries have every second column of the operand:
/// every lane has results then.
template <int kQueries, int kXPitch, class Tile>
__device__ __forceinline__ void multiply_keys(Tile& tile, bool more, const uint8_t* next, int next_part,
                                              const uint32_t* x, const float2* by, float scale, float* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const uint32_t* const own = x + (kQueries == 4 ? g / 2 : g) * kXPitch;
  uint32_t low_x[Tile::kSteps][2], high_x[Tile::kSteps][2];
  Tile::x_of(own, 0, low_x);
  Tile::x_of(own, 1, high_x);
  int high[Tile::kTiles][4] = {}, low[Tile::kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < Tile::kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < Tile::kTiles; ++n) {
      uint32_t a[4];
      tile.operand(step, n, a);
      multiply_bytes<true>(high[n], a, high_x[step][0], high_x[step][1]);
      multiply_bytes<false>(low[n], a, low_x[step][0], low_x[step][1]);
    }
    tile.fetch_step(more, next, next_part, step);
  }
#pragma unroll
  for (int i = 0; i < kQueries / 4; ++i) {
    const int query = kQueries == 4 ? t : 2 * t + i;
    const float2 one = by[query];
#pragma unroll
    for (int n = 0; n < Tile::kTiles; ++n) {
      const float by_scale = __fmul_rn(one.x, Tile::inverse_factor(n));
      *reinterpret_cast<float2*>(to + query * kWeightPitch + 16 * n + 2 * g) = {
          __fmul_rn(scale, product_of(high[n][i], low[n][i], by_scale, one.y)),
          __fmul_rn(scale, product_of(high[n][2 + i], low[n][2 + i], by_scale, one.y))};
    }
  }
}

/// Words of an x of values; lanes of odd queries are shifted by four, to avoid bank conflicts.
constexpr int kValueX = kXWords<kPagePositions / kLanes>;
__device__ __forceinline__ int value_lane(int query, int j) { return j ^ (query % 2 * 4); }

/// Weighted values of a page's block, or of a part of it, added to `sums`: [tile][column of two][query of some]. x is
/// not negative, so that its bytes are both unsigned. Of up to four queries the two bytes are neighbouring columns.
template <int kQueries, class Tile>
__device__ __forceinline__ void multiply_values(const Tile& tile, const uint32_t* x, const float2* by,
                                                float (&sums)[Tile::kTiles][2][kQueries / 4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  constexpr int kPlanes = kQueries == 4 ? 1 : 2;
  const int column = kQueries == 4 ? g / 2 : g;
  uint32_t b[kPlanes][Tile::kSteps][2];
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
    const uint32_t* const own = x + column * kValueX;
    const int of = kQueries == 4 ? g % 2 : plane;
    constexpr int kQuads = Tile::kQuads;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (Tile::kNarrow) {
#pragma unroll
        for (int step = 0; step < 2; ++step)
          b[plane][step][half] =
              own[value_lane(column, t % 2 * 4 + 2 * step + half) * 2 * kQuads + of * kQuads + t / 2];
      } else {
        const uint2 two =
            *reinterpret_cast<const uint2*>(own + value_lane(column, t + 4 * half) * 2 * kQuads + of * kQuads);
        b[plane][0][half] = two.x, b[plane][1][half] = two.y;
      }
    }
  }
  int products[kPlanes][Tile::kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < Tile::kSteps; ++step)
#pragma unroll
    for (int n = 0; n < Tile::kTiles; ++n) {
      uint32_t a[4];
      tile.operand(step, n, a);
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
        multiply_bytes<false>(products[plane][n], a, b[plane][step][0], b[plane][step][1]);
    }
#pragma unroll
  for (int i = 0; i < kQueries / 4; ++i) {
    const float2 one = by[kQueries == 4 ? t : 2 * t + i];
#pragma unroll
    for (int n = 0; n < Tile::kTiles; ++n) {
      const float scale = __fmul_rn(one.x, Tile::inverse_factor(n));
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int low = kQueries == 4 ? products[0][n][2 * k] : products[0][n][2 * k + i],
                  high = kQueries == 4 ? products[0][n][2 * k + 1] : products[kPlanes - 1][n][2 * k + i];
        sums[n][k][i] = __fadd_rn(sums[n][k][i], product_of(high, low, scale, one.y));
      }
    }
  }
}

/// exp_f32() of x from -86 to 0: what is not there to guard against is left out.
__device__ __forceinline__ float exp_in_range(float x) {
  const float rounded = __fadd_rn(__fmul_rn(x, 1.44269504088896341f), 12582912.0f);
  const float n = __fsub_rn(rounded, 12582912.0f);
  float r = __fmaf_rn(n, -0.693359375f, x);
  r = __fmaf_rn(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = __fmaf_rn(p, r, 1.3981999507e-3f);
  p = __fmaf_rn(p, r, 8.3334519073e-3f);
  p = __fmaf_rn(p, r, 4.1665795894e-2f);
  p = __fmaf_rn(p, r, 1.6666665459e-1f);
  p = __fmaf_rn(p, r, 5.0000001201e-1f);
  p = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(rounded) << 23));
}

/// A query's scores of a span become weights, zeros where it does not see (kMasked); returns the largest score.
template <bool kMasked>
__device__ __forceinline__ float weigh_scores(float* scores, const Seen& seen) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float2 v[kTeamPages];
  float most = -INFINITY;
  const auto sees = [&](int p, int i) { return !kMasked || seen.has(p * kPagePositions + 2 * lane + i); };
#pragma unroll
  for (int p = 0; p < kTeamPages; ++p) {
    v[p] = *reinterpret_cast<const float2*>(scores + weights_at(p) + 2 * lane);
    if (sees(p, 0)) most = fmaxf(most, v[p].x);  // a NaN is never the largest
    if (sees(p, 1)) most = fmaxf(most, v[p].y);
  }
  most = largest_of_warp(most);
  const float shift = shift_of(most);
  bool in_range = true;
#pragma unroll
  for (int p = 0; p < kTeamPages; ++p) {
    v[p] = {__fsub_rn(v[p].x, shift), __fsub_rn(v[p].y, shift)};
    in_range = in_range && (v[p].x >= -86.0f || !sees(p, 0)) && (v[p].y >= -86.0f || !sees(p, 1));
  }
  if (all_of_warp(in_range)) {
#pragma unroll
    for (int p = 0; p < kTeamPages; ++p) v[p] = {exp_in_range(v[p].x), exp_in_range(v[p].y)};
  } else {
#pragma unroll 1
    for (int p = 0; p < 2 * kTeamPages; ++p) {
      float next = v[0].x;
#pragma unroll
      for (int i = 0; i < kTeamPages; ++i) {  // through all, one at a time
        v[i].x = v[i].y;
        v[i].y = i + 1 < kTeamPages ? v[i + 1].x : exp_f32(next);
      }
    }
  }
#pragma unroll
  for (int p = 0; p < kTeamPages; ++p) {
    if (!sees(p, 0)) v[p].x = 0;
    if (!sees(p, 1)) v[p].y = 0;
    *reinterpret_cast<float2*>(scores + weights_at(p) + 2 * lane) = v[p];
  }
  return most;
}

/// The sum of a query's weights, by eight lanes.
__device__ __forceinline__ float sum_of_weights(const float* weights) {
  const int j = static_cast<int>(threadIdx.x) % kGroupLanes;
  float2 sum = {0, 0};
#pragma unroll
  for (int p = 0; p < kTeamPages; ++p)
#pragma unroll
    for (int i = 0; i < kPagePositions / kLanes; ++i) {
      const float2 v = *reinterpret_cast<const float2*>(weights + weights_at(p) + i * kLanes + 2 * j);
      sum = {__fadd_rn(sum.x, v.x), __fadd_rn(sum.y, v.y)};
    }
  return reduce_pairs(sum);
}

}  // namespace lowbit::cuda::block
