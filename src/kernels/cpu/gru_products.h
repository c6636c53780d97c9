#pragma once
// Products of the integer GRU on vectors S: a lane is an output row.

#include <cstdint>

#include "kernels/cpu/gru_rounding.h"
#include "kernels/cpu/gru_tiles.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Byte weights: sums[m][l][row] of [first_row, end_row) for M rows of x and L limbs, kPanels vectors of rows at a
/// time, put away at once: that hides behind the next weights' way from the second-level cache. 8 / Bits fields a byte.
template <class S, int M, int L, int Bits>
void byte_products(const PackedProduct& p, const uint8_t* base, const typename S::Element* x, int32_t* sums,
                   int32_t* out, int64_t first_row, int64_t end_row) {
  constexpr int kFields = 8 / Bits, kColumns = S::kColumns * kFields;
  constexpr int kChains = M * L == 1 && kFields == 1 && S::kColumns == 4 ? 2 : 1;  // sums per row, to hide latency
  const int64_t steps = p.k_padded / kColumns, step_bytes = S::kLanes * S::kColumns, panel_bytes = steps * step_bytes;
  typename S::Int start[M][L];
  for (int m = 0; m < M; ++m)
    for (int l = 0; l < L; ++l) start[m][l] = S::start(x + (m * L + l) * p.k_padded, p.k_padded);
  for (int64_t row = first_row; row < end_row; row += kPanels * S::kLanes) {
    const uint8_t* w = base + p.weights + row / S::kLanes * panel_bytes;
    typename S::Int acc[kChains][kPanels][M][L];
    for (int c = 0; c < kChains; ++c)
      for (int i = 0; i < kPanels; ++i)
        for (int m = 0; m < M; ++m)
          for (int l = 0; l < L; ++l) acc[c][i][m][l] = c == 0 ? start[m][l] : S::zero();
    const auto one = [&](int chain, int64_t k) __attribute__((always_inline)) {
      typename S::Int v[kFields][M][L];
      for (int f = 0; f < kFields; ++f)
        for (int m = 0; m < M; ++m)
          for (int l = 0; l < L; ++l)
            v[f][m][l] = S::broadcast(x + (m * L + l) * p.k_padded + k * kColumns + f * S::kColumns);
      for (int i = 0; i < kPanels; ++i) {
        const typename S::Int wi = S::load_bytes(w + i * panel_bytes + k * step_bytes);
        for (int f = 0; f < kFields; ++f) {
          const typename S::Int wf = S::template field<Bits>(wi, f);
          for (int m = 0; m < M; ++m)
            for (int l = 0; l < L; ++l) acc[chain][i][m][l] = S::dot(acc[chain][i][m][l], v[f][m][l], wf);
        }
      }
    };
    int64_t k = 0;
    if constexpr (kChains == 2)
      for (; k + 2 <= steps; k += 2) {  // spelled out: sums must stay in registers
        one(0, k);
        one(1, k + 1);
      }
    for (; k < steps; ++k) one(0, k);
    for (int i = 0; i < kPanels; ++i)
      for (int m = 0; m < M; ++m)
        for (int l = 0; l < L; ++l) {
          typename S::Int sum = acc[0][i][m][l];
          for (int c = 1; c < kChains; ++c) sum = S::add(sum, acc[c][i][m][l]);
          S::store(sums + (m * L + l) * p.rows_padded + row + i * S::kLanes, sum);
        }
    const int64_t left = p.rows - row, count = left < kPanels * S::kLanes ? left : kPanels * S::kLanes;
    for (int m = 0; m < M && count > 0; ++m)
      finish_rows(p, base, sums + m * L * p.rows_padded + row, p.rows_padded, row, count, out + m * p.rows);
  }
}

/// 16-bit weights: one row of x; int32 sums are moved to int64 every kWideRun columns.
template <class S>
void wide_products(const PackedProduct& p, const uint8_t* weights, const int16_t* x, int64_t* sums) {
  const int64_t steps = p.k_padded / 2;
  int32_t part[S::kLanes];
  for (int l = 0; l < p.limbs; ++l)
    for (int64_t row = 0; row < p.rows_padded; row += S::kLanes) {
      const auto* w = reinterpret_cast<const int16_t*>(weights) + row * p.k_padded;
      int64_t* to = sums + l * p.rows_padded + row;
      for (int i = 0; i < S::kLanes; ++i) to[i] = 0;
      for (int64_t k = 0; k < steps; k += kWideRun / 2) {
        const int64_t end = k + kWideRun / 2 < steps ? k + kWideRun / 2 : steps;
        typename S::Int acc = S::zero();
        for (int64_t j = k; j < end; ++j)
          acc = S::dot_pairs(acc, S::broadcast_pair(x + l * p.k_padded + 2 * j), S::load_words(w + j * 2 * S::kLanes));
        S::store(part, acc);
        for (int i = 0; i < S::kLanes; ++i) to[i] += part[i];
      }
    }
}

/// Codes as limbs, less 128 where a product wants them so, zero-padded: [rows][limbs][k_padded].
template <bool Centred, class E>
void split_codes(const PackedProduct& p, const uint16_t* codes, int64_t rows, E* out) {
  const int64_t k = p.k, padded = p.k_padded, limbs = p.limbs;  // `out` may alias p for all that the compiler knows
  constexpr int kFlip = Centred ? 128 : 0;
  for (int64_t m = 0; m < rows; ++m, codes += k)
    for (int64_t l = 0; l < limbs; ++l, out += padded) {
      if (l == 0)
        for (int64_t i = 0; i < k; ++i) out[i] = E(uint8_t(codes[i]) ^ kFlip);
      else
        for (int64_t i = 0; i < k; ++i) out[i] = E(uint8_t(codes[i] >> 8) ^ kFlip);
      for (int64_t i = k; i < padded; ++i) out[i] = 0;
    }
}

template <class S, int M, int L>
void byte_rows(const PackedProduct& p, const uint8_t* base, const typename S::Element* x, int32_t* sums, int32_t* out) {
  if constexpr (S::kUnpacks) {
    if (p.field_bits == 4) return byte_products<S, M, L, 4>(p, base, x, sums, out, 0, p.rows_padded);
    if (p.field_bits == 2) return byte_products<S, M, L, 2>(p, base, x, sums, out, 0, p.rows_padded);
  }
  byte_products<S, M, L, 8>(p, base, x, sums, out, 0, p.rows_padded);
}

/// As many rows of x at a time as there are registers for.
template <class S, int L>
void all_byte_rows(const PackedProduct& p, const uint8_t* base, const typename S::Element* x, int64_t rows,
                   int32_t* sums, int32_t* out) {
  constexpr int M = S::kRows / L > 1 ? S::kRows / L : 1;
  const int64_t stride = L * p.k_padded;
  int64_t m = 0;
  for (; m + M <= rows; m += M) byte_rows<S, M, L>(p, base, x + m * stride, sums, out + m * p.rows);
  for (; m < rows; ++m) byte_rows<S, 1, L>(p, base, x + m * stride, sums, out + m * p.rows);
}

/// Bytes: limbs of up to `rows` rows, then sums (S::kRows rows of them in int32, or one in int64, or a block of tiles
/// and the bytes of its weights).
template <class S>
int64_t product_scratch(const PackedProduct& p, int64_t rows) {
  const int64_t narrow = 4 * S::kRows * p.limbs * p.rows_padded, wide = 8 * p.limbs * p.rows_padded;
  const int64_t tiles = S::kTileRows > 0 ? 2 * 32 * 32 * 4 + 32 * p.k_padded : 0;
  const int64_t sums = narrow > wide ? narrow : wide;
  return gru_round_up(rows * p.limbs * p.k_padded * 2, 64) + gru_round_up(sums > tiles ? sums : tiles, 64);
}

template <class S>
void product(const PackedProduct& p, const uint8_t* base, const uint16_t* codes, int64_t rows, int32_t* out,
             uint8_t* scratch) {
  auto* sums = reinterpret_cast<int32_t*>(scratch + gru_round_up(rows * p.limbs * p.k_padded * 2, 64));
  if (p.wide) {
    auto* x = reinterpret_cast<int16_t*>(scratch);
    split_codes<false>(p, codes, rows, x);
    auto* wide = reinterpret_cast<int64_t*>(sums);
    for (int64_t m = 0; m < rows; ++m) {
      wide_products<S>(p, base + p.weights, x + m * p.limbs * p.k_padded, wide);
      finish_product<int64_t>(p, base, wide, p.rows_padded, 0, p.rows, out + m * p.rows);
    }
    return;
  }
  auto* x = reinterpret_cast<typename S::Element*>(scratch);
  split_codes<S::kCentred>(p, codes, rows, x);
  if constexpr (S::kTileRows > 0) {
    if (rows >= S::kTileRows) return tile_products<S>(p, base, x, rows, out, reinterpret_cast<uint8_t*>(sums));
  }
  if (p.limbs == 1)
    all_byte_rows<S, 1>(p, base, x, rows, sums, out);
  else
    all_byte_rows<S, 2>(p, base, x, rows, sums, out);
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
