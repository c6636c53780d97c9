#pragma once
// The recurrent product of one sequence interleaved with the input product of rows to come. The first waits for its
// weights from the second-level cache and leaves the multipliers idle half of the time; the second has many products
// for each byte.

#include <cstdint>

#include "kernels/cpu/gru_products.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

constexpr int kAheadRows = 8, kAheadPanels = 2;  // of W: a tile of 16 sums
constexpr int kStateGroups = 4;                  // of kPanels panels of R, beside one tile

/// Both in bytes of one limb, of as many columns.
template <class S>
bool may_interleave(const PackedProduct& x, const PackedProduct& h) {
  return S::kInterleaves && x.plain && h.plain && x.field_bits == 8 && h.field_bits == 8 && x.k_padded == h.k_padded &&
         h.k_padded % (S::kColumns * kStateGroups) == 0 && h.rows_padded >= kStateGroups * kPanels * S::kLanes;
}

template <class S>
int64_t interleaved_scratch(const PackedProduct& x, const PackedProduct& h) {
  return gru_round_up(4 * h.rows_padded, 64) + gru_round_up(h.k_padded, 64) +
         gru_round_up(kAheadRows * x.k_padded, 64) + 4 * kAheadRows * kAheadPanels * S::kLanes;
}

/// The epilogue of a product whose sums need one shift alone.
template <class S>
struct PlainFinish {
  const int32_t *bias, *right, *round;
  typename S::Int low, high;
  PlainFinish(const PackedProduct& p, const uint8_t* base)
      : bias(reinterpret_cast<const int32_t*>(base + p.bias32)),
        right(reinterpret_cast<const int32_t*>(base + p.right)),
        round(reinterpret_cast<const int32_t*>(base + p.round)),
        low(S::repeat(p.low)),
        high(S::repeat(p.high)) {}
  /// Codes of rows [row, row + S::kLanes), padding included.
  __attribute__((always_inline)) typename S::Int operator()(typename S::Int sum, int64_t row) const {
    return S::finish(sum, S::load_ints(bias + row), S::load_ints(right + row), S::load_ints(round + row), low, high);
  }
};

/// The input product of the rows to come.
template <class S>
struct InterleavedInput {
  static constexpr int64_t kTileRows = kAheadPanels * S::kLanes;  // of W
  const PackedProduct& p;
  const uint8_t* base;
  PlainFinish<S> finish;
  const typename S::Element* x;  // of arrange_ahead()
  int32_t* spare;                // [kAheadRows, kTileRows]
  int32_t* ih;                   // [kAheadRows, rows]
};

/// The recurrent product; its groups forwards or backwards: what was read last is read first in the next step.
template <class S>
struct InterleavedState {
  static constexpr int64_t kGroupRows = kPanels * S::kLanes;
  const PackedProduct& p;
  PlainFinish<S> finish;
  const typename S::Element* codes;
  int32_t* hh;  // [rows_padded]
  bool backwards;
  int64_t groups() const { return p.rows_padded / kGroupRows; }
  int64_t first_row(int64_t i) const { return (backwards ? groups() - 1 - i : i) * kGroupRows; }
};

/// A tile of W, and kStateGroups groups of R from number `first` on: one step of the tile's columns to every
/// kStateGroups of theirs.
template <class S>
void interleaved_groups(const InterleavedInput<S>& in, int64_t tile, const InterleavedState<S>& h, int64_t first) {
  constexpr int64_t kStepBytes = S::kLanes * S::kColumns, kTileRows = InterleavedInput<S>::kTileRows;
  constexpr int kEach = kAheadRows / kStateGroups;  // rows of x
  const int64_t columns = h.p.k_padded, steps = columns / S::kColumns, panel_bytes = steps * kStepBytes;
  const uint8_t* w = in.base + in.p.weights + tile * kAheadPanels * panel_bytes;
  const typename S::Element* x = in.x;
  typename S::Int acc[kAheadPanels][kAheadRows];
#pragma GCC unroll 16  // here and below: sums must stay in registers
  for (int i = 0; i < kAheadPanels * kAheadRows; ++i) acc[i / kAheadRows][i % kAheadRows] = S::zero();
  for (int g = 0; g < kStateGroups; ++g) {
    typename S::Int own[kPanels];
#pragma GCC unroll 16
    for (int i = 0; i < kPanels; ++i) own[i] = S::zero();
    const typename S::Element* code = h.codes;
    const int64_t row = h.first_row(first + g);
    const uint8_t* r = in.base + h.p.weights + row * columns;
    for (int64_t k = 0; k < steps / kStateGroups; ++k, x += kAheadRows * S::kColumns, w += kStepBytes) {
      typename S::Int tile_weights[kAheadPanels];
#pragma GCC unroll 16
      for (int i = 0; i < kAheadPanels; ++i) tile_weights[i] = S::load_bytes(w + i * panel_bytes);
#pragma GCC unroll 16
      for (int j = 0; j < kStateGroups; ++j, code += S::kColumns, r += kStepBytes) {
        const typename S::Int c = S::broadcast(code);
#pragma GCC unroll 16
        for (int i = 0; i < kPanels; ++i) own[i] = S::dot(own[i], c, S::load_bytes(r + i * panel_bytes));
#pragma GCC unroll 16
        for (int e = 0; e < kEach; ++e) {
          const int m = j * kEach + e;
          const typename S::Int codes = S::broadcast(x + m * S::kColumns);
#pragma GCC unroll 16
          for (int i = 0; i < kAheadPanels; ++i) acc[i][m] = S::dot(acc[i][m], codes, tile_weights[i]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kPanels; ++i) S::store(h.hh + row + i * S::kLanes, h.finish(own[i], row + i * S::kLanes));
  }
  const int64_t left = in.p.rows - tile * kTileRows;
  int32_t* const to = left < kTileRows ? in.spare : in.ih + tile * kTileRows;
  const int64_t stride = left < kTileRows ? kTileRows : in.p.rows;
#pragma GCC unroll 16
  for (int i = 0; i < kAheadPanels; ++i)
#pragma GCC unroll 16
    for (int m = 0; m < kAheadRows; ++m)
      S::store(to + m * stride + i * S::kLanes, in.finish(acc[i][m], tile * kTileRows + i * S::kLanes));
  for (int64_t m = 0; m < kAheadRows && to == in.spare && left > 0; ++m)
    __builtin_memcpy(in.ih + m * in.p.rows + tile * kTileRows, in.spare + m * kTileRows, size_t(4 * left));
}

/// Codes of the rows to come as interleaved_groups() reads them: [k_padded / S::kColumns][kAheadRows][S::kColumns].
template <class S>
void arrange_ahead(const PackedProduct& p, const uint16_t* codes, typename S::Element* x) {
  const int64_t k = p.k, steps = p.k_padded / S::kColumns;
  for (int64_t m = 0; m < kAheadRows; ++m, codes += k)
    for (int64_t s = 0; s < steps; ++s) {
      typename S::Element* to = x + (s * kAheadRows + m) * S::kColumns;
      for (int64_t i = 0; i < S::kColumns; ++i) {
        const int64_t column = s * S::kColumns + i;
        to[i] = column < k ? typename S::Element(codes[column]) : typename S::Element(0);
      }
    }
}

/// hh [rows_padded] from the state, and a share of ih of the rows to come, whose codes come with the first share.
template <class S>
void interleaved_product(const PackedProduct& h, const PackedProduct& p, const uint8_t* base, const uint16_t* state,
                         const GruAhead& ahead, int32_t* hh, typename S::Element* codes, uint8_t* ahead_scratch) {
  auto* x = reinterpret_cast<typename S::Element*>(ahead_scratch);
  if (ahead.share == 0) arrange_ahead<S>(p, ahead.x, x);
  split_codes<false>(h, state, 1, codes);
  const InterleavedInput<S> in{p,
                               base,
                               PlainFinish<S>(p, base),
                               x,
                               reinterpret_cast<int32_t*>(x + gru_round_up(kAheadRows * p.k_padded, 64)),
                               ahead.ih};
  const InterleavedState<S> own{h, PlainFinish<S>(h, base), codes, hh, ahead.share % 2 != 0};
  const int64_t groups = own.groups(), tiles = p.rows_padded / InterleavedInput<S>::kTileRows;
  int64_t done = 0;
  for (int64_t t = tiles * ahead.share / ahead.shares; t < tiles * (ahead.share + 1) / ahead.shares; ++t) {
    // Where shares are uneven some groups are done twice.
    const int64_t first = done + kStateGroups <= groups ? done : groups - kStateGroups;
    interleaved_groups(in, t, own, first);
    done = first + kStateGroups;
  }
  // The groups that are left: behind these, or before.
  const int64_t left = (groups - done) * InterleavedState<S>::kGroupRows,
                from = own.backwards ? 0 : h.rows_padded - left;
  byte_products<S, 1, 1, 8>(h, base, codes, hh, hh, from, from + left);
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
