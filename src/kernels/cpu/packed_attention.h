#pragma once
// Products of queries with packed pages of the KV cache, for any instruction set that has 16 lanes: what
// kernels/ref/packed_kv.cc does. Codes are shifted and masked to pairs of rows, side by side, and multiplied by pairs
// of x as 16-bit integers: sums are exact, so their order is free.

#include <cstdint>
#include <utility>

#include "base/isa.h"
#include "kernels/api.h"
#include "kernels/cpu/lane_loops.h"
#include "kernels/packed_kv.h"
#include "kernels/vector_math.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class L>
struct PackedProducts {
  using F = typename L::F;
  using V = typename L::V;
  using W = typename L::W;
  static constexpr int kWidth = L::kWidth, kParts = kLanes / kWidth;  // vectors for the 16 columns of a word's place
  static constexpr int kUnitBytes = 64, kPartBytes = kUnitBytes / kParts;
  static constexpr int kMostQueries = L::kTileSums / 4;  // of a tile

  /// What a product has of its queries: integers, their scale, and what the rows' least values give.
  template <int Q>
  struct Inputs {
    alignas(64) int16_t x[Q][kMostPackedRows];
    float scale[Q], offset[Q];
  };

  /// x: query j at x + j * ldx.
  template <int Q>
  static void prepare(const float* x, int64_t ldx, int64_t rows, const uint8_t* side, Inputs<Q>& in) {
    float units[2];
    __builtin_memcpy(units, side, sizeof(units));
    const uint8_t* const scales = side + sizeof(units);
    const auto* const leasts = reinterpret_cast<const int8_t*>(scales + rows);
    alignas(64) float scaled[kMostPackedRows];
    for (int j = 0; j < Q; ++j) {
      F most = L::zero(), offset = L::zero();
      bool has_nan = false;
      for (int64_t r = 0; r < rows; r += kLanes) {
        const F q = L::load(x + j * ldx + r), v = L::mul(q, L::mul(L::set(units[0]), L::load(scales + r)));
        L::store(scaled + r, v);
        most = L::max(L::abs(v), most);
        has_nan |= L::any_nan(v);
        offset = L::fma(q, L::mul(L::set(units[1]), L::load(leasts + r)), offset);
      }
      const PackedX by = packed_x(L::reduce_max(most), has_nan);
      in.scale[j] = by.scale;
      in.offset[j] = L::reduce(offset);
      for (int64_t r = 0; r < rows; r += kLanes)
        L::store_words(in.x[j] + r, L::to_int(L::mul(L::load(scaled + r), L::set(by.inverse))));
    }
  }

  /// The vectors of one unit, from vector `kFirst` of their group of pairs on.
  template <int Q, int N, int B, int kFirst, int... k>
  __attribute__((always_inline)) static void add_unit(W raw, const Inputs<Q>& in, int64_t row, W (&sums)[Q][N],
                                                      std::integer_sequence<int, k...>) {
    constexpr int kMask = (1 << B) - 1;
    const auto add = [&](auto index) __attribute__((always_inline)) {
      constexpr int v = decltype(index)::value, n = (kFirst + v) % N, pair = (kFirst + v) / N;
      const W codes = L::template codes_of<v * B, kMask>(raw);
#pragma GCC unroll 6
      for (int j = 0; j < Q; ++j) sums[j][n] = L::dot_w(sums[j][n], codes, L::pair_w(in.x[j] + row + 2 * pair));
    };
    (add(std::integral_constant<int, k>()), ...);
  }
  template <int Q, int N, int B, int... u>
  __attribute__((always_inline)) static void add_units(const uint8_t* codes, const Inputs<Q>& in, int64_t row,
                                                       W (&sums)[Q][N], std::integer_sequence<int, u...>) {
    (add_unit<Q, N, B, u * 16 / B>(L::load_w(codes + u * kUnitBytes), in, row, sums,
                                   std::make_integer_sequence<int, 16 / B>()),
     ...);
  }

  /// The code of 3 bits of a vector, from units of its low two bits and of the highest one of 16 vectors.
  template <int v>
  __attribute__((always_inline)) static W codes_of_3(const W (&low)[2], W high) {
    const W top = L::template codes_of<v, 1>(high);
    const W twice = top + top;  // one bit of each word: nothing is carried
    return L::template codes_of<v % 8 * 2, 3>(low[v / 8]) | (twice + twice);
  }
  template <int Q, int N, int kFirst, int... v>
  __attribute__((always_inline)) static void add_units_3(const uint8_t* low, const uint8_t* high, const Inputs<Q>& in,
                                                         int64_t row, W (&sums)[Q][N],
                                                         std::integer_sequence<int, v...>) {
    const W units[2] = {L::load_w(low), L::load_w(low + kUnitBytes)}, top = L::load_w(high);
    const auto add = [&](auto index) __attribute__((always_inline)) {
      constexpr int k = decltype(index)::value, n = (kFirst + k) % N, pair = (kFirst + k) / N;
      const W codes = codes_of_3<k>(units, top);
#pragma GCC unroll 6
      for (int j = 0; j < Q; ++j) sums[j][n] = L::dot_w(sums[j][n], codes, L::pair_w(in.x[j] + row + 2 * pair));
    };
    (add(std::integral_constant<int, v>()), ...);
  }
  /// kVectors / 16 groups of two units of low bits and one of high ones.
  template <int Q, int N, int... g>
  __attribute__((always_inline)) static void add_groups_3(const uint8_t* low, const uint8_t* high, const Inputs<Q>& in,
                                                          int64_t row, W (&sums)[Q][N],
                                                          std::integer_sequence<int, g...>) {
    (add_units_3<Q, N, g * 16>(low + g * 2 * kUnitBytes, high + g * kUnitBytes, in, row, sums,
                               std::make_integer_sequence<int, 16>()),
     ...);
  }

  static constexpr int common_multiple(int a, int b) {
    int m = a;
    while (m % b != 0) m += a;
    return m;
  }

  /// Sums of 16 N columns, those of one part of each 16: take(j, column, products).
  template <int Q, int N, int B, class Take>
  static void multiply(const PackedMatrix& matrix, int64_t rows, const Inputs<Q>& in, const Take& take) {
    // Of 3 bits a unit of high ones, beside two of low ones, has 16 vectors.
    constexpr int kOfUnit = B == 3 ? 16 : 16 / B;
    constexpr int kVectors = common_multiple(N, kOfUnit), kUnits = kVectors / kOfUnit, kRows = 2 * kVectors / N;
    for (int part = 0; part < kParts; ++part) {
      W sums[Q][N];
#pragma GCC unroll 6
      for (int j = 0; j < Q; ++j)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sums[j][n] = L::zero_w();
      const uint8_t* at = matrix.codes + part * kPartBytes;
      if constexpr (B == 3) {
        const uint8_t* high = at + rows * N * kLanes / 4;
        for (int64_t r = 0; r < rows; r += kRows, at += 2 * kUnits * kUnitBytes, high += kUnits * kUnitBytes)
          add_groups_3<Q, N>(at, high, in, r, sums, std::make_integer_sequence<int, kUnits>());
      } else {
        for (int64_t r = 0; r < rows; r += kRows, at += kUnits * kUnitBytes)
          add_units<Q, N, B>(at, in, r, sums, std::make_integer_sequence<int, kUnits>());
      }
#pragma GCC unroll 6
      for (int j = 0; j < Q; ++j)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n)
          take(j, n * kLanes + part * kWidth,
               L::fma_v(L::to_v(sums[j][n]), L::set_v(in.scale[j]), L::set_v(in.offset[j])));
    }
  }

  template <int Q, int N, class Take>
  static void multiply(const PackedMatrix& matrix, int bits, int64_t rows, const Inputs<Q>& in, const Take& take) {
    if (bits == 8) return multiply<Q, N, 8>(matrix, rows, in, take);
    if (bits == 4) return multiply<Q, N, 4>(matrix, rows, in, take);
    if (bits == 3) return multiply<Q, N, 3>(matrix, rows, in, take);
    multiply<Q, N, 2>(matrix, rows, in, take);
  }

  /// s[j][64 positions] = scale * (q[j] . keys), of Q queries.
  template <int Q>
  static void score(const PackedSpanArgs& a, int64_t page, int64_t j, float* scores) {
    Inputs<Q> in;
    prepare<Q>(a.q + j * a.ldq, a.ldq, a.d, a.packed_keys[page].side, in);
    float* const s = scores + j * kAttentionSpan + page * kKvPage;
    const V scale = L::set_v(a.scale);
    const auto take = [&](int i, int64_t column, V products) __attribute__((always_inline)) {
      L::store_v(s + i * kAttentionSpan + column, L::mul_v(scale, products));
    };
    multiply<Q, int(kKvPage) / kLanes>(a.packed_keys[page], a.key_bits[page], a.d, in, take);
  }

  /// o[j] += e[j] . values, of Q queries that see some of the page.
  template <int Q>
  static void weigh(const PackedSpanArgs& a, int64_t page, const int64_t (&queries)[Q], const float* scores) {
    alignas(64) float e[Q][kKvPage];
    for (int i = 0; i < Q; ++i) copy_seen(a, page, queries[i], scores, e[i]);
    PackedMatrix block = a.packed_values[page];
    const int64_t width = value_columns(a.value_bits[page]);
    for (int64_t first = 0; first < a.d; first += width) {
      const PackedShape shape = {a.value_bits[page], kKvPage, width < a.d - first ? width : a.d - first};
      Inputs<Q> in;
      prepare<Q>(e[0], kKvPage, kKvPage, block.side, in);
      const auto take = [&](int i, int64_t column, V products) __attribute__((always_inline)) {
        float* const o = a.o + queries[i] * a.ldo + first + column;
        L::store_v(o, L::add_v(L::load_v(static_cast<const float*>(o)), products));
      };
      switch (shape.columns / kLanes) {
        case 4:
          multiply<Q, 4>(block, shape.bits, kKvPage, in, take);
          break;
        case 3:
          multiply<Q, 3>(block, shape.bits, kKvPage, in, take);
          break;
        case 2:
          multiply<Q, 2>(block, shape.bits, kKvPage, in, take);
          break;
        default:
          multiply<Q, 1>(block, shape.bits, kKvPage, in, take);
      }
      block = {block.codes + shape.code_bytes(), block.side + shape.side_bytes()};
    }
  }

  /// e of the page's positions, 0 for those that the query does not see.
  static void copy_seen(const PackedSpanArgs& a, int64_t page, int64_t query, const float* scores, float* e) {
    const int64_t first = page * kKvPage;
    const float* const from = scores + query * kAttentionSpan + first;
    for (int64_t t = 0; t < kKvPage; ++t)
      e[t] = first + t >= a.begin[query] && first + t < a.end[query] ? from[t] : 0.0f;
  }

  static bool sees(const PackedSpanArgs& a, int64_t page, int64_t query) {
    const int64_t first = page * kKvPage;
    return a.begin[query] < a.end[query] && a.begin[query] < first + kKvPage && a.end[query] > first;
  }
  /// run(queries) with an array of as many of those that see the page as a tile takes, then of those that are left.
  template <int Q, class Run>
  static void for_seeing(const PackedSpanArgs& a, int64_t page, int64_t& from, const Run& run) {
    int64_t queries[Q];
    int count = 0;
    for (int64_t j = from; j < a.queries; ++j) {
      if (!sees(a, page, j)) continue;
      queries[count++] = j;
      if (count < Q) continue;
      run(queries);
      from = j + 1;
      count = 0;
    }
    if constexpr (Q > 1) {
      if (count > 0) for_seeing<(Q + 1) / 2>(a, page, from, run);
    }
  }

  static void weigh_page(const PackedSpanArgs& a, int64_t page, const float* scores) {
    int64_t from = 0;
    for_seeing<kMostQueries>(a, page, from, [&](const auto& queries) { weigh(a, page, queries, scores); });
  }
  /// Also of queries that do not see it: their scores are not looked at.
  static void score_page(const PackedSpanArgs& a, int64_t page, float* scores) {
    score_tiles<kMostQueries>(a, page, 0, scores);
  }
  template <int Q>
  static void score_tiles(const PackedSpanArgs& a, int64_t page, int64_t j, float* scores) {
    for (; j + Q <= a.queries; j += Q) score<Q>(a, page, j, scores);
    if constexpr (Q > 1) {
      if (j < a.queries) score_tiles<(Q + 1) / 2>(a, page, j, scores);
    }
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
