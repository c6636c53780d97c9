// Attention of rows that decode on packed pages, on tensor cores: the default of a GPU, where attention_packed_span.cu
// has the CPU's bits. Codes are operands as they are; their rows' scales go into queries and weights, each rounded to
// f16, and least values are sums of their own. The order is that of docs/numerics.md ("Packed pages on tensor cores").
//
// A thread block has a unit of the items of a tile, a warp every eighth of them; the last block of a tile puts its
// units together.

#include <algorithm>

#include "kernels/cuda/block/attention_codes.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kWeightBits = 15;  // weights are 2^15 at most
/// 128 * 2^-24 in all places. Least values are read as bytes from 0 to 255, 128 more than they are.
constexpr uint32_t kBytes128 = 0x00800080u, kFlipSigns = 0x80808080u;

__device__ __forceinline__ float power(int e) { return __uint_as_float(static_cast<uint32_t>(127 + e) << 23); }
constexpr float kOfByte = 16777216.0f;  // a byte by its subnormal number

__device__ __forceinline__ float largest_of_rows(float v) {
  v = fmaxf(v, xor_lanes(v, 4));
  v = fmaxf(v, xor_lanes(v, 8));
  return fmaxf(v, xor_lanes(v, 16));
}

/// What the warps of a block share.
template <class F>
struct CodesShared {
  uint2 queries[kCodesQueries][F::kHead / 4 + 4];  // as f16, four to a place, queries in different banks
  int first[kCodesQueries], last[kCodesQueries];  // positions that they see
  float sums[kCodesQueries], exponent[kCodesQueries];  // 2^-17 times; what makes exponents of two of products
  float most[kCodesWarps][kCodesQueries], total[kCodesWarps][kCodesQueries];
  float of_units[kCodesQueries];  // sums of weights of the whole tile
  int units;                      // of the tile
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
  shared.sums[query] = __fmul_rn(sum, power(-17));
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
/// Adds products with least values: all of a product's sixteen rows are the same.
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
#pragma unroll 2
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
    for (int n = 0; n < kPageSteps; ++n) factors.by[n][i] = __fmul_rn(__fmul_rn(own, step), power(F::Keys::unit(n)));
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
    load_f16_operand([&](unsigned row) { return load_word(slot + piece_offset(4 * s + t, 2 * row + g / 4, t) + g % 4 * 4); },
                     a);
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

/// What a warp has weighed so far, of queries 2 t and 2 t + 1: values of elements 16 n + 2 g, then 16 n + 2 g + 1, sums
/// of least values, which all elements of a block share, largest scores, and sums of weights, 2^-17 times.
template <class F>
struct CodesSums {
  float all[F::kTiles][4], least[F::kBlocks][2], most[2], total[2];
  uint32_t weights[kPageSteps][2];  // as operands: query g, positions 16 step + 4 t and the three behind
  float newest[2];                  // total of the last item
  bool sees[2];                     // something of it

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& tile : all)
#pragma unroll
      for (float& v : tile) v = 0;
#pragma unroll
    for (auto& two : least) two[0] = two[1] = 0;
    most[0] = most[1] = -INFINITY;
    total[0] = total[1] = 0;
  }
  /// What is there becomes relative to larger scores.
  __device__ __forceinline__ void rise(const float (&largest)[2]) {
    float next[2], by[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) next[i] = fmaxf(most[i], largest[i]);
    if (!__any_sync(kAllLanes, next[0] != most[0] || next[1] != most[1])) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      by[i] = power_of_two(__fsub_rn(most[i], shift_of(next[i])));
      most[i] = next[i];
      total[i] = __fmul_rn(total[i], by[i]);
    }
#pragma unroll
    for (auto& tile : all)
#pragma unroll
      for (int c = 0; c < 4; ++c) tile[c] = __fmul_rn(tile[c], by[c % 2]);
#pragma unroll
    for (auto& two : least) two[0] = __fmul_rn(two[0], by[0]), two[1] = __fmul_rn(two[1], by[1]);
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
    const float base[2] = {__fadd_rn(__fsub_rn(factors.offset[0], shift_of(most[0])), float{kWeightBits}),
                           __fadd_rn(__fsub_rn(factors.offset[1], shift_of(most[1])), float{kWeightBits})};
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
#pragma unroll
    for (int block = 0; block < F::kBlocks; ++block) {
      const uint8_t* const side = slot + F::kValueCodes + block * F::kBlockSide;
      float leasts[4] = {-newest[0], -newest[1], -newest[0], -newest[1]}, sums[F::kBlockTiles][4] = {};
#pragma unroll
      for (unsigned s = 0; s < kPageSteps; ++s) {
        uint32_t a[F::kBlockTiles][4];
        F::Values::load(slot + block * F::kBlockCodes, s, a);
        const uint8_t* const scales = side + 8 + 16 * s + 4 * t;
        const BytePairs scale = byte_pairs(load_word(scales));
        uint32_t second = weights[s][1];
        if constexpr (F::Values::kUneven) second = multiply_f16(second, 0x2c002c00u);  // a sixteenth
        const uint32_t x = multiply_f16(weights[s][0], scale.first), y = multiply_f16(second, scale.second);
#pragma unroll
        for (int n = 0; n < F::kBlockTiles; ++n) mma_f16(sums[n], a[n], x, y);
        add_leasts(leasts, scales + kTensorPage, weights[s][0], weights[s][1]);
      }
      const float2 supers = supers_of(side);
#pragma unroll
      for (int n = 0; n < F::kBlockTiles; ++n) {
        const float step = __fmul_rn(__fmul_rn(supers.x, kOfByte), power(F::Values::unit(n)));
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float& sum = all[block * F::kBlockTiles + n][c];
          if (sees[c % 2]) sum = __fmaf_rn(sums[n][c], step, sum);  // where nothing is seen a step may be no number
        }
      }
      const float by = __fmul_rn(supers.y, kOfByte);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (sees[i]) least[block][i] = __fmaf_rn(leasts[i], by, least[block][i]);
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
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (unsigned n = 0; n < F::kTiles; ++n) {
        const float l = least[n / F::kBlockTiles][i];
        *reinterpret_cast<float2*>(to + (2 * t + i) * F::kPitch + 16 * n + 2 * g) = {__fadd_rn(all[n][i], l),
                                                                                    __fadd_rn(all[n][2 + i], l)};
      }
    }
  }
};

/// A warp's items, one after the other.
template <class F>
__device__ __forceinline__ void attend_items(const AttendPacked& call, const CodesItems& items, CodesCopies<F>& copies,
                                             int item, uint8_t* slots, const CodesShared<F>& shared,
                                             CodesSums<F>& sums) {
  const int end = copies.end;
  uint8_t* slot = slots;
  const auto slot_arrives = [] {
    wait_for_copies<F::kSlots - 1>();
    sync_warp();
  };
  const auto slot_is_read = [&] {
    sync_warp();
    copies.fetch(call, items, slot);
    slot = slot == slots + (F::kSlots - 1) * F::kSlot ? slots : slot + F::kSlot;
  };
#pragma unroll 1
  for (; item < end; item += kCodesWarps) {
    const bool packed = items.is_packed(item);
    float scores[kPageSteps][4] = {};
    ScoreFactors factors;
    slot_arrives();
    if (packed) {
      factors = multiply_codes<F>(shared, slot, scores);
    } else {
      factors = multiply_f16_keys<F>(shared, slot, scores);
    }
    slot_is_read();
    const int first = packed ? items.page(item) * kTensorPage : items.begin(item);
    sums.weigh(items, shared, first, first + (packed ? kTensorPage : kQuarter), factors, scores);
    slot_arrives();
    if (packed) {
      sums.add_codes(slot);
    } else {
      sums.add_f16_values(items, shared, first, slot);
    }
    slot_is_read();
  }
}

/// Puts the warps' results together: give(query, element, two elements, largest score, sum of weights).
template <class F, class Give>
__device__ __forceinline__ void join_warps(const PagedTile& tile, const CodesShared<F>& shared, const uint8_t* bytes,
                                           const Give& give) {
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < tile.count * F::kHead / 2; at += kCodesThreads) {
    const int q = at / (F::kHead / 2), element = at % (F::kHead / 2) * 2;
    float most = -INFINITY, total = 0;
    float2 all = {0, 0};
#pragma unroll
    for (int w = 0; w < kCodesWarps; ++w) most = fmaxf(most, shared.most[w][q]);
    const float shift = shift_of(most);
#pragma unroll
    for (int w = 0; w < kCodesWarps; ++w) {
      const float by = power_of_two(__fsub_rn(shared.most[w][q], shift));
      const float2 two = *reinterpret_cast<const float2*>(reinterpret_cast<const float*>(bytes + w * F::kWarpBytes) +
                                                          q * F::kPitch + element);
      total = __fmaf_rn(shared.total[w][q], by, total);
      all = {__fmaf_rn(two.x, by, all.x), __fmaf_rn(two.y, by, all.y)};
    }
    give(q, element, all, most, total);
  }
}
/// The tile's outputs, [query][kHead], behind the results of its warps.
template <class F>
__device__ __forceinline__ float* outputs_in(uint8_t* bytes) {
  constexpr int kOutputs = kCodesQueries * F::kHead * 4;
  static_assert(kCodesQueries * F::kPitch * 4 + kOutputs <= F::kWarpBytes);
  return reinterpret_cast<float*>(bytes + F::kBytes - kOutputs);
}
/// Weighted values by their sum of weights: both are multiples, 2^15 and 2^-2.
template <class F>
__device__ __forceinline__ void keep_output(uint8_t* bytes, int q, int element, float2 all, float total) {
  const float by = __fdiv_rn(power(-17), total);
  *reinterpret_cast<float2*>(outputs_in<F>(bytes) + q * F::kHead + element) = {__fmul_rn(all.x, by),
                                                                              __fmul_rn(all.y, by)};
}
/// Stores the outputs, transformed if they are to be (docs/numerics.md#hadamard-transform): a warp has a query.
template <class F>
__device__ __forceinline__ void store_outputs(const AttendPacked& call, const PagedTile& tile, uint8_t* bytes) {
  constexpr int kEach = F::kHead / 32;
  __syncthreads();
  const int q = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (q >= tile.count) return;
  float x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = outputs_in<F>(bytes)[q * F::kHead + lane * kEach + i];
  if (call.hadamard != 0) {
#pragma unroll
    for (int w = 1; w < kEach; w *= 2)
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i & w) continue;
        const float a = x[i], b = x[i + w];
        x[i] = __fadd_rn(a, b), x[i + w] = __fsub_rn(a, b);
      }
#pragma unroll
    for (int w = 1; w < 32; w *= 2)
#pragma unroll
      for (float& v : x) {
        const float other = xor_lanes(v, w);
        v = lane & w ? __fsub_rn(other, v) : __fadd_rn(v, other);
      }
#pragma unroll
    for (float& v : x) v = __fmul_rn(v, call.hadamard);
  }
  float* const to = call.attend.out + tile.offset(call.attend, q) + lane * kEach;
#pragma unroll
  for (int i = 0; i < kEach; i += 2) *reinterpret_cast<float2*>(to + i) = {x[i], x[i + 1]};
}

/// Where one unit's result of a tile's query lies: largest score, sum of weights, weighted values.
__device__ __forceinline__ float* unit_result(const AttendPages& call, int most_units, int unit, int query) {
  const int64_t at = (int64_t{blockIdx.x} * call.kv.kv_heads + blockIdx.y) * most_units + unit;
  return call.results + (at * call.tile_queries + query) * (call.kv.head_dim + 2);
}
/// Puts the units of a tile together.
template <class F>
__device__ __forceinline__ void join_units(const AttendPages& call, const PagedTile& tile, int most_units, int units,
                                           uint8_t* bytes, CodesShared<F>& shared) {
  auto* const factors = reinterpret_cast<float*>(bytes);  // [query][units]
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, q_of_warp = thread / 32;
  if (q_of_warp < tile.count) {
    float most = -INFINITY, total = 0;
    for (int u = lane; u < units; u += 32) {
      const float of = load_from_others(unit_result(call, most_units, u, q_of_warp));
      factors[q_of_warp * units + u] = of;
      most = fmaxf(most, of);
    }
#pragma unroll
    for (int w = 1; w < 32; w *= 2) most = fmaxf(most, xor_lanes(most, w));
    for (int u = lane; u < units; u += 32) {
      float& factor = factors[q_of_warp * units + u];
      factor = power_of_two(__fsub_rn(factor, shift_of(most)));
      total = __fmaf_rn(load_from_others(unit_result(call, most_units, u, q_of_warp) + 1), factor, total);
    }
#pragma unroll
    for (int w = 1; w < 32; w *= 2) total = __fadd_rn(total, xor_lanes(total, w));
    if (lane == 0) shared.of_units[q_of_warp] = total;
  }
  __syncthreads();
  const int64_t apart = int64_t{call.tile_queries} * (call.kv.head_dim + 2);
#pragma unroll 1
  for (int at = thread; at < tile.count * F::kHead / 2; at += kCodesThreads) {
    const int q = at / (F::kHead / 2), element = at % (F::kHead / 2) * 2;
    const float* const from = unit_result(call, most_units, 0, q) + 2 + element;
    float2 all = {0, 0};
#pragma unroll 16
    for (int u = 0; u < units; ++u) {
      const float2 two = load_from_others(reinterpret_cast<const float2*>(from + u * apart));
      const float by = factors[q * units + u];
      all = {__fmaf_rn(two.x, by, all.x), __fmaf_rn(two.y, by, all.y)};
    }
    keep_output<F>(bytes, q, element, all, shared.of_units[q]);
  }
}

template <class F>
__global__ void __launch_bounds__(kCodesThreads, F::kBlocksOfProcessor)
    attend_codes(const __grid_constant__ AttendPacked call, int device_units, int most_units) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  __shared__ CodesShared<F> shared;
  let_successor_start();
  if (!call.overlap) wait_for_predecessor();
  const AttendPages& attend = call.attend;
  const int unit = static_cast<int>(blockIdx.z), warp = static_cast<int>(threadIdx.x) / 32;
  {
    const PagedTile of = packed_tile(attend);
    const CodesItems items(call, of);
    const CodesUnits divided(items, device_units);
    if (unit >= divided.count) return;
    if (threadIdx.x == 0) shared.units = divided.count;
    uint8_t* const slots = bytes + warp * F::kWarpBytes;
    const int first = unit * divided.of_unit + warp;
    CodesCopies<F> copies;
    copies.begin(call, of, items, first, min(items.count, (unit + 1) * divided.of_unit));
#pragma unroll 1
    for (int i = 0; i < F::kSlots; ++i) copies.fetch(call, items, slots + i * F::kSlot);
    wait_for_predecessor();
    load_queries<F>(attend, of, shared);
    __syncthreads();
    CodesSums<F> sums;
    sums.clear();
    attend_items<F>(call, items, copies, first, slots, shared, sums);
    sums.put( reinterpret_cast<float*>(slots));
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (lane < 4)
        shared.most[warp][2 * lane + i] = sums.most[i], shared.total[warp][2 * lane + i] = sums.total[i];
  }
  __syncthreads();
  const PagedTile tile = packed_tile(attend);  // once more: registers had other use
  const int units = shared.units;
  if (units == 1) {
    join_warps<F>(tile, shared, bytes, [&](int q, int element, float2 all, float, float total) {
      keep_output<F>(bytes, q, element, all, total);
    });
    store_outputs<F>(call, tile, bytes);
    return;
  }
  join_warps<F>(tile, shared, bytes, [&](int q, int element, float2 all, float most, float total) {
    float* const to = unit_result(attend, most_units, unit, q);
    *reinterpret_cast<float2*>(to + 2 + element) = all;
    if (element == 0) *reinterpret_cast<float2*>(to) = {most, total};
  });
  __syncthreads();
  if (threadIdx.x == 0)
    shared.is_last = arrives_last(call.arrived + blockIdx.x * attend.kv.kv_heads + blockIdx.y,
                                  static_cast<uint32_t>(units));
  __syncthreads();
  if (!shared.is_last) return;
  join_units<F>(attend, tile, most_units, units, bytes, shared);
  store_outputs<F>(call, tile, bytes);
}

template <class F>
cudaError_t launch_codes(const AttendPacked& call, const Device& device) {
  auto* const kernel = &attend_codes<F>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  AttendPacked part = call;
  AttendPages& a = part.attend;
  // As many thread blocks of a tile as fill the device with the heads of one sequence; fewer where it has fewer items.
  const int64_t of_device = fast_packed_units(int64_t{device.processors} * F::kBlocksOfProcessor, a.kv.kv_heads);
  const int64_t most = std::min(of_device, 2 * (a.spans + 1));
  const int64_t turn =
      call.room_floats / attend_results_floats(1, a.tile_queries, most, a.kv.kv_heads, a.kv.head_dim);
  a.results = call.room;
  for (int64_t first = 0; first < call.attend.tile_count; first += turn) {
    a.tiles = call.attend.tiles + first;
    a.tile_count = std::min(turn, call.attend.tile_count - first);
    const dim3 grid(static_cast<unsigned>(a.tile_count), static_cast<unsigned>(a.kv.kv_heads),
                    static_cast<unsigned>(most));
    const auto e =
        launch(kernel, grid, dim3(kCodesThreads), size_t{F::kBytes}, static_cast<cudaStream_t>(a.stream),
               device.bulk_copies, part, static_cast<int>(of_device), static_cast<int>(most));
    if (e != cudaSuccess) return e;
    part.overlap = true;  // the predecessor is this kernel
  }
  return cudaSuccess;
}

template <int kHead>
cudaError_t launch_code_bits(const AttendPacked& call, const Device& device) {
  const int keys = call.kv.packed.key_bits, values = call.kv.packed.value_bits;
  if (keys == 8) return launch_codes<CodesForm<kHead, 8, 8>>(call, device);
  if (keys == 2) return launch_codes<CodesForm<kHead, 2, 2>>(call, device);
  return values == 2 ? launch_codes<CodesForm<kHead, 4, 2>>(call, device)
                     : launch_codes<CodesForm<kHead, 4, 4>>(call, device);
}

template <int kHead>
constexpr int64_t shared_bytes_of(int key_bits) {
  const int64_t bytes = key_bits == 8   ? CodesForm<kHead, 8, 8>::kBytes
                        : key_bits == 2 ? CodesForm<kHead, 2, 2>::kBytes
                                        : CodesForm<kHead, 4, 4>::kBytes;
  static_assert(CodesForm<kHead, 4, 2>::kBytes <= CodesForm<kHead, 4, 4>::kBytes);
  return bytes + int64_t{sizeof(CodesShared<CodesForm<kHead, 4, 4>>)};
}
bool takes_code_bits(int key_bits, int value_bits, int64_t head_dim, const Device& device) {
  return key_bits != 3 && has_packed_form(key_bits, value_bits, head_dim) &&
         (head_dim == 64 ? shared_bytes_of<64>(key_bits) : shared_bytes_of<128>(key_bits)) <= device.shared_bytes;
}

}  // namespace

bool block::takes_codes(const AttendPacked& call, const Device& device) {
  const PackedPages& packed = call.kv.packed;
  const AttendPages& a = call.attend;
  const auto least_room = fast_packed_floats(device.processors, a.kv.kv_heads, a.kv.head_dim);
  return !a.exact && call.arrived != nullptr && call.room != nullptr && call.room_floats >= least_room &&
         call.kv.old.tables == nullptr && !packed.fp8 && a.tile_queries <= kCodesQueries && call.teams == 0 &&
         takes_code_bits(packed.key_bits, packed.value_bits, a.kv.head_dim, device);
}

bool is_fast_packed(const AttendPacked& call) {
  Device device{};
  return current_device(&device) == cudaSuccess && takes_codes(call, device);
}
bool has_fast_packed(int key_bits, int value_bits, int64_t head_dim) {
  Device device{};
  return current_device(&device) == cudaSuccess && takes_code_bits(key_bits, value_bits, head_dim, device);
}

cudaError_t block::attend_codes(const AttendPacked& call, const Device& device) {
  return call.attend.kv.head_dim == 64 ? launch_code_bits<64>(call, device) : launch_code_bits<128>(call, device);
}

}  // namespace lowbit::cuda
