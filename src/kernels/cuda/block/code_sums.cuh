#pragma once
// Products of attention_codes.cu: queries with the keys of an item, and weights with its values. The order is that of
// docs/numerics.md ("Packed pages on tensor cores").
//
// Weights are integers of 16 bits as queries are (code_queries.cuh), of bytes without signs.

#include "kernels/cuda/block/code_queries.cuh"

namespace lowbit::cuda::block {

/// The largest weight of an item is 2 to the power of this, so that rounding it up by half a low byte stays in 15 bits.
constexpr float kWeightBits = 14.98f;
/// A score that is larger by less than 2 to the power of this stays relative to the score that others are relative to.
constexpr float kMostAbove = 32;
constexpr uint32_t kOnes = 0x01010101u, kF16Ones = 0x3c003c00u;
/// Added to a number of 24 bits: its middle byte is rounded, and its high one by the middle one as a signed number.
constexpr uint32_t kHalf = 0x80, kHalfBytes = 0x8080;
constexpr float kPositive = 8388608.0f;  // added: the low bits are the nearest integer

/// 2^e as a float.
__device__ __forceinline__ float exact_power(int e) { return __uint_as_float(static_cast<uint32_t>(127 + e) << 23); }
/// The number whose bytes two columns have.
__device__ __forceinline__ int both_bytes(int high, int low) { return 256 * high + low; }
/// Products with codes of the columns of a tile, of sums of operands: of row i of two.
template <class Operands, int kTiles>
__device__ __forceinline__ void products_of(const int (&sums)[kTiles][4], int i, float (&products)[kTiles]) {
  int before = 0;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int sum = both_bytes(sums[n][2 * i], sums[n][2 * i + 1]);
    products[n] = static_cast<float>(Operands::has_lower(n) ? sum - before : sum);
    before = sum;
  }
}

__device__ __forceinline__ float largest_of_rows(float v) {
  v = fmaxf(v, xor_lanes(v, 4));
  v = fmaxf(v, xor_lanes(v, 8));
  return fmaxf(v, xor_lanes(v, 16));
}

/// A lane's bytes of four numbers of 24 bits: high bytes where its column is even.
template <bool kCrossed>
__device__ __forceinline__ uint32_t chosen_bytes(const uint32_t (&y)[4], uint32_t which) {
  const uint32_t front = __byte_perm(y[0], y[kCrossed ? 2 : 1], which);
  return __byte_perm(front, __byte_perm(y[kCrossed ? 1 : 2], y[3], which), 0x5410);
}
/// The bytes of four integers times their rows' scales. `half`: what rounds them.
template <bool kCrossed>
__device__ __forceinline__ uint32_t scaled_bytes(uint4 integers, uint32_t scales, uint32_t which, uint32_t half) {
  return chosen_bytes<kCrossed>(
      {multiply_two<false>(integers.x, scales, half), multiply_two<false>(integers.y, scales, half),
       multiply_two<true>(integers.z, scales, half), multiply_two<true>(integers.w, scales, half)},
      which);
}
template <bool kCrossed>
__device__ __forceinline__ uint32_t scaled_bytes(uint2 integers, uint32_t scales, uint32_t which, uint32_t half) {
  const uint32_t even = scales & 0x00ff00ffu, odd = scales & 0xff00ff00u;
  return chosen_bytes<kCrossed>(
      {multiply_two<false>(integers.x, even, half), multiply_two<false>(integers.x, odd, half),
       multiply_two<true>(integers.y, even, half), multiply_two<true>(integers.y, odd, half)},
      which);
}
/// by times 2^-exponent.
__device__ __forceinline__ float lowered(float by, int exponent) {
  return exponent == 0 ? by : __fmul_rn(by, exact_power(-exponent));
}

/// The two factors of a matrix, behind its codes.
__device__ __forceinline__ float2 supers_of(const uint8_t* side) { return *reinterpret_cast<const float2*>(side); }

/// Scores of an item, as exponents of two, of positions 16 n + 2 g and 16 n + 2 g + 1; 0, or no number where a scale of
/// all of them is none.
template <class F>
struct Scores {
  float of[F::kSets][kPageSteps][2], wrong[F::kSets];
};

/// Products of the queries with a packed page's keys.
template <class F>
__device__ __forceinline__ void multiply_codes(const CodesShared<F>& shared, const uint8_t* slot, Scores<F>& scores) {
  const unsigned lane = lane_of_warp(), g = lane / 4, t = lane % 4;
  const uint32_t which = g % 2 == 0 ? 0x0062 : 0x0051, round = g % 2 == 0 ? kHalfBytes : kHalf;
  const uint8_t* const side = slot + F::kKeySideAt;
  // Rows of an operand of least values are all the same: those of the first eight are summed in `even`, of the others
  // in `odd`, each with half of the lane's rows.
  int sums[F::kSets][kPageSteps][4] = {}, even[F::kSets][4] = {}, odd[F::kSets][4] = {};
#pragma unroll
  for (unsigned part = 0; part < F::kHead / 64; ++part) {
    const uint8_t* const of_rows = side + 8 + 64 * part + 16 * t;
    const uint4 four_scales = load_sixteen(of_rows), four_leasts = load_sixteen(of_rows + F::kHead);
    const uint32_t scales[4] = {four_scales.x, four_scales.y, four_scales.z, four_scales.w};
    const uint32_t leasts[4] = {four_leasts.x, four_leasts.y, four_leasts.z, four_leasts.w};
#pragma unroll
    for (unsigned s = 2 * part; s < 2 * part + 2; ++s) {
      uint32_t a[kPageSteps][4];
      F::Keys::load(slot, s, a);
#pragma unroll
      for (unsigned set = 0; set < F::kSets; ++set) {
        const auto* const integers = shared.integers[4 * set + g / 2] + 20 * part + 5 * t + s % 2 * 2;
        uint32_t b[2];
#pragma unroll
        for (unsigned half = 0; half < 2; ++half)
          b[half] = scaled_bytes<F::Keys::kCrossed>(integers[half], scales[s % 2 * 2 + half], which, round);
#pragma unroll
        for (int n = 0; n < kPageSteps; ++n) multiply_bytes<true>(sums[set][n], a[n], b[0], b[1]);
      }
    }
#pragma unroll
    for (unsigned set = 0; set < F::kSets; ++set) {
      const uint4 bytes = shared.bytes[8 * set + g][4 * part + t];
      multiply_signed_bytes<true>(even[set], leasts, bytes.x, bytes.y);
      multiply_signed_bytes<true>(odd[set], leasts, bytes.z, bytes.w);
    }
  }
  const float2 supers = supers_of(side);
#pragma unroll
  for (unsigned set = 0; set < F::kSets; ++set) {
    const float exponent = shared.exponent[4 * set + t];
    const float by = __fmul_rn(__fmul_rn(supers.x, 256.0f), exponent);
    const float offset =
        __fmul_rn(__fmul_rn(supers.y, exponent),
                  static_cast<float>(both_bytes(even[set][0] + odd[set][2], even[set][1] + odd[set][3])));
    scores.wrong[set] = __fmul_rn(__fadd_rn(by, offset), 0.0f);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float products[kPageSteps];
      products_of<typename F::Keys>(sums[set], i, products);
#pragma unroll
      for (int n = 0; n < kPageSteps; ++n)
        scores.of[set][n][i] = __fmaf_rn(products[n], lowered(by, F::Keys::exponent(n)), offset);
    }
  }
}

/// Products with keys of a quarter of an f16 page; other positions have no scores.
template <class F>
__device__ __forceinline__ void multiply_f16_keys(const CodesShared<F>& shared, const uint8_t* slot,
                                                  Scores<F>& scores) {
  const unsigned lane = lane_of_warp(), g = lane / 4, t = lane % 4;
  float sums[F::kSets][4] = {};
#pragma unroll 2
  for (unsigned s = 0; s < F::kHead / 16; ++s) {
    uint32_t a[4];
    load_f16_operand(
        [&](unsigned row) { return load_word(slot + piece_offset(4 * s + t, 2 * row + g / 4, t) + g % 4 * 4); }, a);
#pragma unroll
    for (unsigned set = 0; set < F::kSets; ++set) {
      const uint2 query = shared.halves[8 * set + g][4 * s + t];
      mma_f16(sums[set], a, query.x, query.y);
    }
  }
#pragma unroll
  for (unsigned set = 0; set < F::kSets; ++set) {
    scores.wrong[set] = 0;
#pragma unroll
    for (int n = 0; n < kPageSteps; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        scores.of[set][n][i] =
            n > 0 ? -INFINITY
                  : __fmul_rn(__fadd_rn(sums[set][2 * i], sums[set][2 * i + 1]), shared.exponent[4 * set + t]);
  }
}

/// All that a warp has weighed so far: values of elements 16 n + 2 g, then 16 n + 2 g + 1; sums of least values of
/// block g, modulo the number of blocks, which all elements of a block share; the scores that it is relative to; and
/// sums of weights.
template <class F>
struct CodesSums {
  float all[F::kSets][F::kTiles][2], least[F::kSets], most[F::kSets], total[F::kSets];
  float factor[F::kSets];  // of the item's weights, which are relative to its largest score
  int sees[F::kSets];      // whether it sees something of it

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int set = 0; set < F::kSets; ++set) {
#pragma unroll
      for (auto& tile : all[set]) tile[0] = tile[1] = 0;
      least[set] = total[set] = 0;
      most[set] = -INFINITY;
    }
  }
  /// All of a set becomes relative to a larger score, where it is much larger.
  __device__ __forceinline__ void rise(int set, float largest) {
    const bool rises = largest > __fadd_rn(most[set], kMostAbove);
    if (!__any_sync(kAllLanes, rises)) return;
    const float next = rises ? largest : most[set], by = power_of_two(__fsub_rn(most[set], shift_of(next)));
    most[set] = next;
    total[set] = __fmul_rn(total[set], by), least[set] = __fmul_rn(least[set], by);
#pragma unroll
    for (auto& tile : all[set]) tile[0] = __fmul_rn(tile[0], by), tile[1] = __fmul_rn(tile[1], by);
  }
  /// Makes weights, not yet rounded, of an item's scores.
  __device__ __forceinline__ void weigh(const CodesShared<F>& shared, const ItemOfWarp& of, Scores<F>& scores) {
#pragma unroll
    for (int set = 0; set < F::kSets; ++set) {
      sees[set] = 1;
      if (!of.all_see()) {
        const int first = shared.items.begin(of.item), end = first + shared.items.positions(of.item);
        const unsigned g = lane_of_warp() / 4, query = 4 * set + lane_of_warp() % 4;
        const int from = shared.first[query], to = min(shared.last[query] + 1, end);
        sees[set] = from < end && to > first ? 1 : 0;
#pragma unroll
        for (int n = 0; n < kPageSteps; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int at = first + 16 * n + static_cast<int>(2 * g) + i;
            if (at < from || at >= to) scores.of[set][n][i] = -INFINITY;
          }
      }
      float largest = -INFINITY;  // maxima pass a NaN over
#pragma unroll
      for (int n = 0; n < kPageSteps; ++n) largest = fmaxf(largest, fmaxf(scores.of[set][n][0], scores.of[set][n][1]));
      largest = largest_of_rows(largest);
      rise(set, largest);
      factor[set] = power_of_two(__fsub_rn(largest, shift_of(most[set])));
      if (sees[set] != 0) factor[set] = __fadd_rn(factor[set], scores.wrong[set]);
      const float base = __fsub_rn(kWeightBits, shift_of(largest));
#pragma unroll
      for (int n = 0; n < kPageSteps; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) scores.of[set][n][i] = power_of_two(__fadd_rn(scores.of[set][n][i], base));
    }
  }
  __device__ __forceinline__ void add_codes(const uint8_t* slot, const Scores<F>& weights) {
    const unsigned g = lane_of_warp() / 4, t = lane_of_warp() % 4;
    const auto side_of = [slot](unsigned block) { return slot + F::kValueCodes + block * F::kBlockSide; };
    float of_scales[F::kSets];  // what sums of bytes of products are to be multiplied with, but for the block's factor
    uint32_t even[F::kSets][kPageSteps], odd[F::kSets][kPageSteps];  // integers of 16 bits, low and high in a word
    const uint8_t* const own = side_of(g % F::kBlocks);
    const float2 own_supers = supers_of(own);
#pragma unroll
    for (int set = 0; set < F::kSets; ++set) {
      uint32_t plain[kPageSteps];
      int sums[4] = {};
#pragma unroll
      for (int n = 0; n < kPageSteps; ++n) {
        even[set][n] = __float_as_uint(__fadd_rn(weights.of[set][n][0], kPositive)) & 0xffffu;
        odd[set][n] = __float_as_uint(__fadd_rn(weights.of[set][n][1], kPositive)) << 16;
        plain[n] = transposed_matrix(__byte_perm(even[set][n], odd[set][n], 0x6071));
      }
#pragma unroll
      for (int s = 0; s < kPageSteps / 2; ++s) {  // least values in the first eight rows, ones in the others
        const uint8_t* const leasts = own + 8 + kTensorPage + 32 * s + 4 * t;
        const uint32_t a[4] = {load_word(leasts), kOnes, load_word(leasts + 16), kOnes};
        multiply_signed_bytes<false>(sums, a, plain[2 * s], plain[2 * s + 1]);
      }
      of_scales[set] = __fmul_rn(factor[set], 256.0f);
      total[set] = __fmaf_rn(static_cast<float>(both_bytes(sums[2], sums[3])), factor[set], total[set]);
      const float by = sees[set] != 0 ? __fmul_rn(own_supers.y, factor[set]) : 0.0f;
      least[set] = __fmaf_rn(static_cast<float>(both_bytes(sums[0], sums[1])), by, least[set]);
    }
#pragma unroll
    for (unsigned block = 0; block < F::kBlocks; ++block) {
      const uint8_t* const side = side_of(block);
      uint32_t b[F::kSets][kPageSteps];
#pragma unroll
      for (int n = 0; n < kPageSteps; ++n) {
        const uint32_t scales = *reinterpret_cast<const uint16_t*>(side + 8 + 16 * n + 2 * g);
#pragma unroll
        for (int set = 0; set < F::kSets; ++set)
          b[set][n] = transposed_matrix(__byte_perm(multiply_two<false>(even[set][n], scales, kHalf),
                                                    multiply_two<false>(odd[set][n], scales, kHalf), 0x5162));
      }
      int sums[F::kSets][F::kBlockTiles][4] = {};
#pragma unroll
      for (unsigned s = 0; s < kPageSteps / 2; ++s) {
        uint32_t a[F::kBlockTiles][4];
        F::Values::load(slot + block * F::kBlockCodes, s, a);
#pragma unroll
        for (int set = 0; set < F::kSets; ++set) {
          uint32_t first = b[set][2 * s], second = b[set][2 * s + 1];
          if constexpr (F::Values::kPairs) {
            const uint32_t front = first;
            first = __byte_perm(front, second, 0x5410), second = __byte_perm(front, second, 0x7632);
          }
#pragma unroll
          for (int n = 0; n < F::kBlockTiles; ++n) multiply_bytes<false>(sums[set][n], a[n], first, second);
        }
      }
      const float super = supers_of(side).x;
#pragma unroll
      for (int set = 0; set < F::kSets; ++set) {
        const float by = sees[set] != 0 ? __fmul_rn(super, of_scales[set]) : 0.0f;  // unseen, a step may be no number
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float products[F::kBlockTiles];
          products_of<typename F::Values>(sums[set], i, products);
#pragma unroll
          for (int n = 0; n < F::kBlockTiles; ++n) {
            float& sum = all[set][block * F::kBlockTiles + n][i];
            sum = __fmaf_rn(products[n], lowered(by, F::Values::exponent(n)), sum);
          }
        }
      }
    }
  }
  /// Weights as sums of two f16, an operand of sixteen positions.
  __device__ __forceinline__ static void f16_weights(const float (&of)[2], uint32_t (&b)[2]) {
    uint32_t both[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float high = f16_value(static_cast<uint16_t>(f16_pair(of[i], 0)));
      both[i] = transposed_matrix(f16_pair(high, __fsub_rn(of[i], high)));
    }
    b[0] = __byte_perm(both[0], both[1], 0x5410), b[1] = __byte_perm(both[0], both[1], 0x7632);
  }
  __device__ __forceinline__ void add_f16_values(const CodesShared<F>& shared, const ItemOfWarp& of,
                                                 const uint8_t* slot, const Scores<F>& weights) {
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
    const auto add = [&](int set, unsigned n, const uint32_t(&a)[4], uint32_t x, uint32_t y, bool is_own) {
      float sums[4] = {};
      mma_f16(sums, a, x, y);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (is_own) all[set][n][i] = __fmaf_rn(__fadd_rn(sums[2 * i], sums[2 * i + 1]), factor[set], all[set][n][i]);
    };
    uint32_t b[F::kSets][2];
#pragma unroll
    for (int set = 0; set < F::kSets; ++set) {
      f16_weights(weights.of[set][0], b[set]);
      constexpr uint32_t kAll[4] = {kF16Ones, kF16Ones, kF16Ones, kF16Ones};
      float sums[4] = {};
      mma_f16(sums, kAll, b[set][0], b[set][1]);
      total[set] = __fmaf_rn(__fadd_rn(sums[0], sums[1]), factor[set], total[set]);
    }
    // 0 times what is no number is no number, either; values that no query sees are zeros.
    const bool may_be = !of.all_see() && !shared.items.all_see_the_same();
    bool strange = false;
#pragma unroll
    for (unsigned n = 0; n < F::kTiles; ++n) {
      uint32_t a[4];
      load(n, a);
      if (may_be) strange |= has_no_number(a[0]) || has_no_number(a[1]) || has_no_number(a[2]) || has_no_number(a[3]);
    }
    if (!__any_sync(kAllLanes, strange)) {
#pragma unroll
      for (unsigned n = 0; n < F::kTiles; ++n) {
        uint32_t a[4];
        load(n, a);
#pragma unroll
        for (int set = 0; set < F::kSets; ++set) add(set, n, a, b[set][0], b[set][1], true);
      }
      return;
    }
#pragma unroll
    for (int set = 0; set < F::kSets; ++set)
#pragma unroll 1
      for (unsigned query = 0; query < 4; ++query) {
        const int from = shared.first[4 * set + query], to = shared.last[4 * set + query];
        const int at = shared.items.begin(of.item) + static_cast<int>(4 * t);
        const auto seen = [&](int i) { return at + i >= from && at + i <= to ? 0xffffu << (i % 2 * 16) : 0u; };
        const uint32_t front = seen(0) | seen(1), back = seen(2) | seen(3);
#pragma unroll
        for (unsigned n = 0; n < F::kTiles; ++n) {
          uint32_t a[4];
          load(n, a);
          a[0] &= front, a[1] &= front, a[2] &= back, a[3] &= back;
          add(set, n, a, b[set][0], b[set][1], t == query);
        }
      }
  }
  /// Weighted values, [query][F::kPitch].
  __device__ __forceinline__ void put(float* to, unsigned lane) const {
    const unsigned g = lane / 4, t = lane % 4;
#pragma unroll
    for (int set = 0; set < F::kSets; ++set)
#pragma unroll
      for (unsigned n = 0; n < F::kTiles; ++n) {
        const float l = lane_value(least[set], static_cast<int>(4 * (n / F::kBlockTiles) + t));
        *reinterpret_cast<float2*>(to + (4 * set + t) * F::kPitch + 16 * n + 2 * g) = {__fadd_rn(all[set][n][0], l),
                                                                                       __fadd_rn(all[set][n][1], l)};
      }
  }
};

}  // namespace lowbit::cuda::block
