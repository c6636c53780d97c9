#pragma once
// Products of attention_codes.cu: queries with the keys of an item, and weights with its values. The order is that of
// docs/numerics.md ("Packed pages on tensor cores").

#include "kernels/cuda/block/attention_codes.cuh"

namespace lowbit::cuda::block {

/// Weights are 2^11 for the score that they are relative to, and not above 2^15: a score that is larger by less stays
/// relative to it.
constexpr float kWeightBits = 11, kMostAbove = 4;
/// 128 * 2^-24, twice. Least values are read as bytes from 0 to 255, 128 more than they are.
constexpr uint32_t kBytes128 = 0x00800080u, kFlipSigns = 0x80808080u;

__device__ __forceinline__ float exact_power(int e) { return __uint_as_float(static_cast<uint32_t>(127 + e) << 23); }
constexpr float kOfByte = 16777216.0f;  // a byte by its subnormal number

__device__ __forceinline__ float lane_value(float v, int lane) { return __shfl_sync(kAllLanes, v, lane, 32); }
__device__ __forceinline__ float largest_of_rows(float v) {
  v = fmaxf(v, xor_lanes(v, 4));
  v = fmaxf(v, xor_lanes(v, 8));
  return fmaxf(v, xor_lanes(v, 16));
}

/// Shared by the warps of a block.
template <class F>
struct CodesShared {
  uint2 queries[kCodesQueries][F::kHead / 4 + 4];      // as f16, four to a place, queries in different banks
  int first[kCodesQueries], last[kCodesQueries];       // positions that they see
  float sums[kCodesQueries], exponent[kCodesQueries];  // 2^-17 times; what makes exponents of two of products
  float most[kCodesWarps][kCodesQueries], total[kCodesWarps][kCodesQueries];
  float of_parts[kCodesQueries];  // sums of weights of the whole tile
  int parts;                      // of the tile
  bool is_last;
};

/// The tile's queries as f16: a warp has one.
template <class F>
__device__ __forceinline__ void load_queries(const AttendPages& call, const PagedTile& tile, CodesShared<F>& shared) {
  const int query = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float4 x = {0, 0, 0, 0};
  if (query < tile.count && lane < F::kHead / 4)
    x = *reinterpret_cast<const float4*>(call.q + tile.offset(call, query) + lane * 4);
  float largest = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
#pragma unroll
  for (int w = 1; w < 32; w *= 2) largest = fmaxf(largest, xor_lanes(largest, w));
  const QueryScale scale = query_scale(largest);
  const uint2 halves = {f16_pair(__fmul_rn(x.x, scale.factor), __fmul_rn(x.y, scale.factor)),
                        f16_pair(__fmul_rn(x.z, scale.factor), __fmul_rn(x.w, scale.factor))};
  if (lane < F::kHead / 4) shared.queries[query][lane] = halves;
  const auto both = [](uint32_t pair) {
    return __fadd_rn(f16_value(static_cast<uint16_t>(pair)), f16_value(static_cast<uint16_t>(pair >> 16)));
  };
  float sum = __fadd_rn(both(halves.x), both(halves.y));
#pragma unroll
  for (int w = 1; w < 32; w *= 2) sum = __fadd_rn(sum, xor_lanes(sum, w));
  if (lane != 0) return;
  const int position = tile.position(query < tile.count ? query : 0);
  shared.first[query] = first_seen(position, call.window), shared.last[query] = position;
  shared.sums[query] = __fmul_rn(sum, exact_power(-17));
  shared.exponent[query] = __fmul_rn(__fmul_rn(call.scale, kLog2E), scale.inverse);
}
/// Operand of the queries in a step of the head's elements: lane 4 g + t those of query g.
template <class F>
__device__ __forceinline__ uint2 query_operand(const CodesShared<F>& shared, int step) {
  const unsigned lane = lane_of_warp();
  return shared.queries[lane / 4][4 * step + lane % 4];
}

/// The two factors of a matrix, behind its codes.
__device__ __forceinline__ float2 supers_of(const uint8_t* side) { return *reinterpret_cast<const float2*>(side); }
/// Adds products with a lane's least values, to the rows of its g.
__device__ __forceinline__ void add_leasts(float (&sums)[4], const uint8_t* leasts, uint32_t x, uint32_t y) {
  const BytePairs least = byte_pairs(load_word(leasts) ^ kFlipSigns);
  const uint32_t a[4] = {least.first, least.first, least.second, least.second};
  mma_f16(sums, a, x, y);
}

/// Scores of queries 2 t and 2 t + 1, as exponents of two: scores[n] * by[n] + offset.
struct ScoreFactors {
  float by[kPageSteps][2], offset[2];
};

/// Products of the queries with a packed page's keys: scores[n] of positions 16 n + 2 g, then 16 n + 2 g + 1.
template <class F>
__device__ __forceinline__ ScoreFactors multiply_codes(const CodesShared<F>& shared, const uint8_t* slot,
                                                       float (&scores)[kPageSteps][4]) {
  const unsigned t = lane_of_warp() % 4;
  const uint8_t* const side = slot + F::kKeyCodes;
  float leasts[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) leasts[c] = -shared.sums[2 * t + c % 2];
#pragma unroll 4
  for (unsigned s = 0; s < F::kSteps; ++s) {
    uint32_t a[F::Keys::kTiles][4];
    F::Keys::load(slot, s, a);
    const uint8_t* const scales = side + 8 + 16 * s + 4 * t;
    const BytePairs scale = byte_pairs(load_word(scales));
    const uint2 query = query_operand(shared, s);
    const uint32_t x = multiply_f16(query.x, scale.first), y = multiply_f16(query.y, scale.second);
#pragma unroll
    for (int n = 0; n < F::Keys::kTiles; ++n) mma_f16(scores[n], a[n], x, y);
    add_leasts(leasts, scales + F::kHead, query.x, query.y);
  }
  const float2 supers = supers_of(side);
  const float step = __fmul_rn(supers.x, kOfByte), least = __fmul_rn(supers.y, kOfByte);
  ScoreFactors factors;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float own = shared.exponent[2 * t + i];
#pragma unroll
    for (int n = 0; n < kPageSteps; ++n)
      factors.by[n][i] = __fmul_rn(__fmul_rn(own, step), exact_power(F::Keys::exponent(n)));
    factors.offset[i] = __fmul_rn(__fmul_rn(own, least), leasts[i]);
  }
  return factors;
}

/// Products with keys of a quarter of an f16 page: of positions 2 g, then 2 g + 1. Other scores stay.
template <class F>
__device__ __forceinline__ ScoreFactors multiply_f16_keys(const CodesShared<F>& shared, const uint8_t* slot,
                                                          float (&scores)[kPageSteps][4]) {
  const unsigned lane = lane_of_warp(), g = lane / 4, t = lane % 4;
#pragma unroll 2
  for (unsigned s = 0; s < F::kSteps; ++s) {
    uint32_t a[4];
    load_f16_operand(
        [&](unsigned row) { return load_word(slot + piece_offset(4 * s + t, 2 * row + g / 4, t) + g % 4 * 4); }, a);
    const uint2 query = query_operand(shared, s);
    mma_f16(scores[0], a, query.x, query.y);
  }
  ScoreFactors factors;
#pragma unroll
  for (int n = 0; n < kPageSteps; ++n)
    factors.by[n][0] = shared.exponent[2 * t], factors.by[n][1] = shared.exponent[2 * t + 1];
  factors.offset[0] = factors.offset[1] = 0;
  return factors;
}

/// All that a warp has weighed so far, of queries 2 t and 2 t + 1: values of elements 16 n + 2 g, then 16 n + 2 g + 1;
/// sums of least values of block g, modulo the number of blocks, which all elements of a block share; the scores that
/// weights are relative to; and sums of weights, 2^-17 times.
template <class F>
struct CodesSums {
  float all[F::kTiles][4], least[2], most[2], total[2];
  uint32_t weights[kPageSteps][2];  // as operands: query g, positions 16 step + 4 t and the three behind
  float newest[2];                  // total of the last item
  bool sees[2];                     // something of it

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& tile : all)
#pragma unroll
      for (float& v : tile) v = 0;
    least[0] = least[1] = 0;
    most[0] = most[1] = -INFINITY;
    total[0] = total[1] = 0;
  }
  /// All of it becomes relative to larger scores, where they are much larger.
  __device__ __forceinline__ void rise(const float (&largest)[2]) {
    float next[2], by[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) next[i] = largest[i] > __fadd_rn(most[i], kMostAbove) ? largest[i] : most[i];
    if (!__any_sync(kAllLanes, next[0] != most[0] || next[1] != most[1])) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      by[i] = power_of_two(__fsub_rn(most[i], shift_of(next[i])));
      most[i] = next[i];
      total[i] = __fmul_rn(total[i], by[i]), least[i] = __fmul_rn(least[i], by[i]);
    }
#pragma unroll
    for (auto& tile : all)
#pragma unroll
      for (int c = 0; c < 4; ++c) tile[c] = __fmul_rn(tile[c], by[c % 2]);
  }
  /// Weights of positions from `first` to before `end`, as many as scores are or fewer.
  __device__ __forceinline__ void weigh(const CodesItems& items, const CodesShared<F>& shared, int first, int end,
                                        ScoreFactors& factors, float (&scores)[kPageSteps][4]) {
    sees[0] = sees[1] = true;
    if (first < items.all_first || first + kTensorPage - 1 > items.all_last || end < first + kTensorPage) {
      const unsigned g = lane_of_warp() / 4, t = lane_of_warp() % 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int from = shared.first[2 * t + i], to = min(shared.last[2 * t + i] + 1, end);
        sees[i] = from < end && to > first;
#pragma unroll
        for (int n = 0; n < kPageSteps; ++n)
#pragma unroll
          for (int c = i; c < 4; c += 2) {
            const int at = first + 16 * n + static_cast<int>(2 * g) + c / 2;
            const float score = __fmaf_rn(scores[n][c], factors.by[n][i], factors.offset[i]);
            scores[n][c] = at < from || at >= to ? -INFINITY : score;
          }
      }
#pragma unroll
      for (int n = 0; n < kPageSteps; ++n) factors.by[n][0] = factors.by[n][1] = 1;
      factors.offset[0] = factors.offset[1] = 0;
    }
    float largest[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      largest[i] = -INFINITY;  // maxima pass a NaN over
#pragma unroll
      for (int n = 0; n < kPageSteps; ++n)
        largest[i] = fmaxf(largest[i], __fmul_rn(fmaxf(scores[n][i], scores[n][2 + i]), factors.by[n][i]));
      largest[i] = __fadd_rn(largest_of_rows(largest[i]), factors.offset[i]);
    }
    rise(largest);
    float sums[4] = {};
    constexpr uint32_t kBytes[4] = {kBytes128, kBytes128, kBytes128, kBytes128};
    const float base[2] = {__fadd_rn(__fsub_rn(factors.offset[0], shift_of(most[0])), kWeightBits),
                           __fadd_rn(__fsub_rn(factors.offset[1], shift_of(most[1])), kWeightBits)};
#pragma unroll
    for (int n = 0; n < kPageSteps; ++n) {
      float e[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) e[c] = power_of_two(__fmaf_rn(scores[n][c], factors.by[n][c % 2], base[c % 2]));
      const uint32_t even = transposed_matrix(f16_pair(e[0], e[1])), odd = transposed_matrix(f16_pair(e[2], e[3]));
      weights[n][0] = __byte_perm(even, odd, 0x5410);
      weights[n][1] = __byte_perm(even, odd, 0x7632);
      mma_f16(sums, kBytes, weights[n][0], weights[n][1]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) newest[i] = sums[i], total[i] = __fadd_rn(total[i], sums[i]);
  }
  __device__ __forceinline__ void add_codes(const uint8_t* slot) {
    const unsigned t = lane_of_warp() % 4;
    const auto side_of = [slot](unsigned block) { return slot + F::kValueCodes + block * F::kBlockSide; };
    const uint8_t* const own = side_of(lane_of_warp() / 4 % F::kBlocks);
    float leasts[4] = {-newest[0], -newest[1], -newest[0], -newest[1]};
#pragma unroll
    for (unsigned s = 0; s < kPageSteps; ++s)
      add_leasts(leasts, own + 8 + kTensorPage + 16 * s + 4 * t, weights[s][0], weights[s][1]);
    const float by = __fmul_rn(supers_of(own).y, kOfByte);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (sees[i]) least[i] = __fmaf_rn(leasts[i], by, least[i]);
#pragma unroll
    for (unsigned block = 0; block < F::kBlocks; ++block) {
      float sums[F::kBlockTiles][4] = {};
#pragma unroll
      for (unsigned s = 0; s < kPageSteps; ++s) {
        uint32_t a[F::kBlockTiles][4];
        F::Values::load(slot + block * F::kBlockCodes, s, a);
        const BytePairs scale = byte_pairs(load_word(side_of(block) + 8 + 16 * s + 4 * t));
        uint32_t second = weights[s][1];
        if constexpr (F::Values::kUneven) second = multiply_f16(second, 0x2c002c00u);  // a sixteenth
        const uint32_t x = multiply_f16(weights[s][0], scale.first), y = multiply_f16(second, scale.second);
#pragma unroll
        for (int n = 0; n < F::kBlockTiles; ++n) mma_f16(sums[n], a[n], x, y);
      }
      const float super = __fmul_rn(supers_of(side_of(block)).x, kOfByte);
#pragma unroll
      for (int n = 0; n < F::kBlockTiles; ++n) {
        const float step = __fmul_rn(super, exact_power(F::Values::exponent(n)));
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float& sum = all[block * F::kBlockTiles + n][c];
          if (sees[c % 2]) sum = __fmaf_rn(sums[n][c], step, sum);  // where nothing is seen a step may be no number
        }
      }
    }
  }
  __device__ __forceinline__ void add_f16_values(const CodesItems& items, const CodesShared<F>& shared, int first,
                                                 const uint8_t* slot) {
    constexpr unsigned kLines = F::kHead / 64;  // of a row
    const unsigned lane = lane_of_warp(), g = lane / 4, t = lane % 4;
    const auto load = [&](unsigned n, uint32_t(&a)[4]) {
      load_f16_operand(
          [&](unsigned row) {
            const unsigned line = (4 * t + row) * kLines + n / 4;
            return load_word(slot + piece_offset(line, n % 4 * 2 + g / 4, t) + g % 4 * 4);
          },
          a);
    };
    bool strange = false;  // 0 times what is no number is no number, either
    const bool all_see = first >= items.all_first && first + kQuarter - 1 <= items.all_last;
#pragma unroll
    for (unsigned n = 0; n < F::kTiles; ++n) {
      uint32_t a[4];
      load(n, a);
      if (!all_see) strange |= has_no_number(a[0]) || has_no_number(a[1]) || has_no_number(a[2]) || has_no_number(a[3]);
    }
    if (!__any_sync(kAllLanes, strange)) {
#pragma unroll
      for (unsigned n = 0; n < F::kTiles; ++n) {
        uint32_t a[4];
        load(n, a);
        mma_f16(all[n], a, weights[0][0], weights[0][1]);
      }
      return;
    }
#pragma unroll 1
    for (unsigned query = 0; query < kCodesQueries; ++query) {
      const int from = shared.first[query], to = shared.last[query], at = first + static_cast<int>(4 * t);
      const auto seen = [&](int i) { return at + i >= from && at + i <= to ? 0xffffu << (i % 2 * 16) : 0u; };
      const uint32_t front = seen(0) | seen(1), back = seen(2) | seen(3);
      const uint32_t x = g == query ? weights[0][0] : 0, y = g == query ? weights[0][1] : 0;
#pragma unroll
      for (unsigned n = 0; n < F::kTiles; ++n) {
        uint32_t a[4];
        load(n, a);
        a[0] &= front, a[1] &= front, a[2] &= back, a[3] &= back;
        float sums[4] = {all[n][0], all[n][1], all[n][2], all[n][3]};
        mma_f16(sums, a, x, y);
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (2 * t + c % 2 == query) all[n][c] = sums[c];
      }
    }
  }
  /// Weighted values, [query][F::kPitch].
  __device__ __forceinline__ void put(float* to) const {
    const unsigned lane = lane_of_warp(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (unsigned n = 0; n < F::kTiles; ++n) {
        const float l = lane_value(least[i], static_cast<int>(4 * (n / F::kBlockTiles) + t));
        *reinterpret_cast<float2*>(to + (2 * t + i) * F::kPitch + 16 * n + 2 * g) = {__fadd_rn(all[n][i], l),
                                                                                     __fadd_rn(all[n][2 + i], l)};
      }
  }
};

}  // namespace lowbit::cuda::block
