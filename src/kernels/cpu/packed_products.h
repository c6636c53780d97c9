#pragma once
// Products of queries with packed matrices of the KV cache, for any instruction set that has 16 lanes: what
// kernels/ref/packed_kv.cc does. Codes are shifted and masked to pairs of rows, side by side, and multiplied by pairs
// of x as 16-bit integers: sums are exact, so their order is free.

#include <cstdint>
#include <utility>

#include "base/isa.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/packed_inputs.h"
#include "kernels/packed_kv.h"
#include "kernels/vector_math.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Before x is multiplied its integers take a chain of dependent operations (maximum, division, rounding). So run()
/// prepares a product, then multiplies the one before: the core does one while it waits for the other.
template <class L>
class PackedProducts {
 public:
  static constexpr int kMostQueries = L::kPackedQueries;

  /// Of some queries with a matrix. What query i gets is y[c] of packed_product(): to[c] = scale * y[c], or where
  /// `adds` to[c] = to[c] + y[c].
  struct Product {
    PackedShape shape;
    PackedMatrix matrix;
    PackedMatrix ahead;  // is fetched meanwhile; null: nothing
    bool adds = false;
    float scale = 0;
    int queries = 0;
    const float* x[kMostQueries];  // [rows], read by run()
    float* to[kMostQueries];       // [columns], written by the next run() or by finish()
  };

  /// The product that run() takes next, as the one before the last left it. Written in place: copies of what was just
  /// written in parts would wait for it.
  Product& next() { return products_[turn_]; }
  void run() {
    const Product& p = products_[turn_];
    for (int64_t b = 0; p.ahead.side != nullptr && b < p.shape.side_bytes() + kLineBytes; b += kLineBytes)
      fetch(p.ahead.side + b);
    inputs_[turn_].prepare(p.x, p.queries, p.matrix.side, p.shape.rows);
    finish();
    is_open_ = true;
    turn_ ^= 1;
  }
  void finish() {
    if (is_open_) multiply(products_[turn_ ^ 1], inputs_[turn_ ^ 1]);
    is_open_ = false;
  }

 private:
  using Inputs = PackedInputs<L>;
  static_assert(kMostQueries <= Inputs::kMostQueries);
  using V = typename L::V;
  using W = typename L::W;
  static constexpr int kWidth = L::kWidth, kParts = kLanes / kWidth;  // vectors for the 16 columns of a word's place
  static constexpr int kLineBytes = 64, kPartBytes = kLineBytes / kParts;
  /// Of 16 columns, whose sums are made at a time: of 16 registers Q elements of x need some, too.
  template <int Q>
  static constexpr int kColumns = L::kTileSums > 16 || 5 * Q <= L::kTileSums ? 4 : 2;

  /// Whether every second vector's sums are of two neighbours in a word, code + 2^bits * next, which take fewer shifts:
  /// 32767 * 255 * 256 rows fit in 32 bits. Those of the first are subtracted at the end.
  template <int N, int B>
  static constexpr bool kInPairs = N % 2 == 0 && (B == 2 || B == 4);

  /// The vectors of one line of codes (64 bytes), from vector `kFirst` of their group of pairs on, that belong to sums
  /// from `kFrom` on.
  template <int Q, int N, int kFrom, int S, int B, int kFirst, int... k>
  __attribute__((always_inline)) static void add_line(W raw, const Inputs& in, int64_t row, W (&sums)[Q][S],
                                                      std::integer_sequence<int, k...>) {
    const auto add = [&](auto index) __attribute__((always_inline)) {
      constexpr int v = decltype(index)::value, n = (kFirst + v) % N - kFrom, pair = (kFirst + v) / N;
      if constexpr (n >= 0 && n < S) {
        constexpr int kBefore = kInPairs<N, B> ? v % 2 : 0, kMask = (1 << (1 + kBefore) * B) - 1;
        const W codes = L::template codes_of<(v - kBefore) * B, kMask>(raw);
#pragma GCC unroll 6
        for (int j = 0; j < Q; ++j) sums[j][n] = L::dot_w(sums[j][n], codes, L::pair_w(in.x[j] + row + 2 * pair));
      }
    };
    (add(std::integral_constant<int, k>()), ...);
  }
  template <int Q, int N, int kFrom, int S, int B, int... u>
  __attribute__((always_inline)) static void add_lines(const uint8_t* codes, const Inputs& in, int64_t row,
                                                       W (&sums)[Q][S], std::integer_sequence<int, u...>) {
    (add_line<Q, N, kFrom, S, B, u * 16 / B>(L::load_w(codes + u * kLineBytes), in, row, sums,
                                             std::make_integer_sequence<int, 16 / B>()),
     ...);
  }

  /// The code of 3 bits of a vector, from lines of its low two bits and of the highest one of 16 vectors.
  template <int v>
  __attribute__((always_inline)) static W codes_of_3(const W (&low)[2], W high) {
    const W top = L::template codes_of<v, 1>(high);
    const W twice = top + top;  // one bit of each word: nothing is carried
    return L::template codes_of<v % 8 * 2, 3>(low[v / 8]) | (twice + twice);
  }
  template <int Q, int N, int kFrom, int S, int kFirst, int... v>
  __attribute__((always_inline)) static void add_lines_3(const uint8_t* low, const uint8_t* high, const Inputs& in,
                                                         int64_t row, W (&sums)[Q][S],
                                                         std::integer_sequence<int, v...>) {
    const W lines[2] = {L::load_w(low), L::load_w(low + kLineBytes)}, top = L::load_w(high);
    const auto add = [&](auto index) __attribute__((always_inline)) {
      constexpr int k = decltype(index)::value, n = (kFirst + k) % N - kFrom, pair = (kFirst + k) / N;
      if constexpr (n >= 0 && n < S) {
        const W codes = codes_of_3<k>(lines, top);
#pragma GCC unroll 6
        for (int j = 0; j < Q; ++j) sums[j][n] = L::dot_w(sums[j][n], codes, L::pair_w(in.x[j] + row + 2 * pair));
      }
    };
    (add(std::integral_constant<int, v>()), ...);
  }
  /// kVectors / 16 groups of two lines of low bits and one of high ones.
  template <int Q, int N, int kFrom, int S, int... g>
  __attribute__((always_inline)) static void add_groups_3(const uint8_t* low, const uint8_t* high, const Inputs& in,
                                                          int64_t row, W (&sums)[Q][S],
                                                          std::integer_sequence<int, g...>) {
    (add_lines_3<Q, N, kFrom, S, g * 16>(low + g * 2 * kLineBytes, high + g * kLineBytes, in, row, sums,
                                         std::make_integer_sequence<int, 16>()),
     ...);
  }

  static constexpr int common_multiple(int a, int b) {
    int m = a;
    while (m % b != 0) m += a;
    return m;
  }

  /// Of 16 N columns, those of one part of 16 S of them from 16 kFrom on.
  template <int Q, int N, int kFrom, int S, int B>
  static void multiply_part(const Product& p, const Inputs& in, int part, const uint8_t* ahead) {
    // Of 3 bits a line of high ones, beside two of low ones, has 16 vectors.
    constexpr int kOfLine = B == 3 ? 16 : 16 / B;
    constexpr int kVectors = common_multiple(N, kOfLine), kSteps = kVectors / kOfLine, kRows = 2 * kVectors / N;
    constexpr int kLines = B == 3 ? 3 * kSteps : kSteps;
    const int64_t rows = p.shape.rows;
    W sums[Q][S];
#pragma GCC unroll 6
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 4
      for (int n = 0; n < S; ++n) sums[j][n] = L::zero_w();
    const uint8_t *at = p.matrix.codes + part * kPartBytes, *high = at + rows * N * kLanes / 4;
    for (int64_t r = 0; r < rows; r += kRows, at += kSteps * kLineBytes) {
      if (kFrom == 0 && part == 0) {
#pragma GCC unroll 12
        for (int u = 0; u < kLines; ++u) fetch(ahead + u * kLineBytes);
        ahead += kLines * kLineBytes;
      }
      if constexpr (B == 3) {
        add_groups_3<Q, N, kFrom>(at, high, in, r, sums, std::make_integer_sequence<int, kSteps>());
        at += kSteps * kLineBytes;
        high += kSteps * kLineBytes;
      } else {
        add_lines<Q, N, kFrom, S, B>(at, in, r, sums, std::make_integer_sequence<int, kSteps>());
      }
    }
    if constexpr (kInPairs<N, B>) {
#pragma GCC unroll 6
      for (int j = 0; j < Q; ++j)
#pragma GCC unroll 2
        for (int n = 1; n < S; n += 2) sums[j][n] = L::template next_codes<B>(sums[j][n], sums[j][n - 1]);
    }
    const V scale = L::set_v(p.scale);
#pragma GCC unroll 6
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 4
      for (int n = 0; n < S; ++n) {
        float* const to = p.to[j] + (kFrom + n) * kLanes + part * kWidth;
        const V y = L::fma_v(L::to_v(sums[j][n]), L::set_v(in.scale[j]), L::set_v(in.offset[j]));
        L::store_v(to, p.adds ? L::add_v(L::load_v(static_cast<const float*>(to)), y) : L::mul_v(scale, y));
      }
  }
  /// All columns, as many at a time as sums find room for beside what they are made of.
  template <int Q, int N, int B, int kFrom = 0>
  static void multiply_codes(const Product& p, const Inputs& in) {
    constexpr int S = N - kFrom > kColumns<Q> ? kColumns<Q> : N - kFrom;
    for (int part = 0; part < kParts; ++part)
      multiply_part<Q, N, kFrom, S, B>(p, in, part, p.ahead.codes != nullptr ? p.ahead.codes : p.matrix.codes);
    if constexpr (kFrom + S < N) multiply_codes<Q, N, B, kFrom + S>(p, in);
  }

  template <int Q, int N>
  static void multiply_bits(const Product& p, const Inputs& in) {
    if (p.shape.bits == 8) return multiply_codes<Q, N, 8>(p, in);
    if (p.shape.bits == 4) return multiply_codes<Q, N, 4>(p, in);
    if (p.shape.bits == 3) return multiply_codes<Q, N, 3>(p, in);
    multiply_codes<Q, N, 2>(p, in);
  }
  template <int Q = kMostQueries>
  static void multiply(const Product& p, const Inputs& in) {
    if constexpr (Q > 1) {
      if (p.queries < Q) return multiply<Q - 1>(p, in);
    }
    switch (p.shape.columns / kLanes) {
      case 4:
        return multiply_bits<Q, 4>(p, in);
      case 3:
        return multiply_bits<Q, 3>(p, in);
      case 2:
        return multiply_bits<Q, 2>(p, in);
      default:
        return multiply_bits<Q, 1>(p, in);
    }
  }

  Inputs inputs_[2];
  Product products_[2];
  int turn_ = 0;
  bool is_open_ = false;
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
