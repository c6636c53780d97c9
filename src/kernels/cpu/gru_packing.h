#pragma once
// A GRU cell's numbers as the kernels of kernels/cpu/gru_cell.h read them, for any instruction set.

#include <cstdint>

#include "base/isa.h"
#include "kernels/gru_api.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

constexpr int64_t kMaxBytesK = 65536;  // 255 * 128 * 65536 < 2^31
constexpr int64_t kWideRun = 128;      // 255 * 32768 * 128 < 2^31
constexpr int64_t kBlock = 64;
constexpr int kPanels = 4;                          // vectors of rows side by side
constexpr int64_t kPackedBytes = int64_t{1} << 20;  // weights that need more as bytes keep their fields packed

constexpr int64_t gru_round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

/// Where the parts of a packed product lie, in bytes from its start; rounding shifts as x << left, then half-even >>
/// right.
struct PackedProduct {
  int64_t k = 0, k_padded = 0, rows = 0, rows_padded = 0;
  int64_t weights = 0, bias64 = 0, bias32 = 0, left = 0, right = 0, bytes = 0;
  int32_t limbs = 1, wide = 0, fits32 = 0, exact64 = 0, low = 0, high = 0;  // exact64: in double
  int32_t field_bits = 8;                                                   // of byte weights: 8, 4 or 2
  int32_t down = 0;                                                         // sums are 2^down too large
  int32_t plain = 0;  // one limb, fits32, down 0, no left shift: `round` holds what a right shift adds
  int64_t round = 0;
};

/// A table as all its outputs.
struct PackedTable {
  int32_t bytes = 0;  // 256 bytes, read by S::look_up_bytes
  int64_t data = 0;   // those, or u16 [2^bits]: output codes minus lo
};

struct PackedCell {
  int32_t use_reference = 0;
  PackedProduct x, h;
  PackedTable table[3];
  int64_t bytes = 0;
};

template <class S>
PackedProduct plan_product(const GruGrid& in, const GruGrid& out, int64_t rows, int64_t k, int weight_bits, bool fits32,
                           bool exact64, const int32_t* shift, int64_t& at) {
  PackedProduct p;
  p.k = k;
  p.rows = rows;
  p.rows_padded = gru_round_up(rows, kPanels * S::kLanes);
  p.wide = weight_bits > 8;
  p.limbs = in.hi - in.lo > 255 ? 2 : 1;
  p.fits32 = fits32;
  p.exact64 = exact64;
  p.k_padded = gru_round_up(k, p.wide ? 2 : S::kDepth);
  if (S::kUnpacks && weight_bits <= 4 && p.rows_padded * p.k_padded > kPackedBytes) {
    p.field_bits = weight_bits <= 2 ? 2 : 4;
    p.down = 8 - p.field_bits;
    p.k_padded = gru_round_up(p.k_padded, S::kColumns * (8 / p.field_bits));
  }
  p.low = out.lo - out.zp;
  p.high = out.hi - out.zp;
  const auto take = [&](int64_t bytes) {
    const int64_t start = at;
    at += gru_round_up(bytes, 64);
    return start;
  };
  p.weights = take(p.rows_padded * p.k_padded * (p.wide ? 16 : p.field_bits) / 8);
  p.bias64 = take(8 * p.rows_padded);
  p.bias32 = take(4 * p.rows_padded);
  p.left = take(4 * p.rows_padded);
  p.right = take(4 * p.rows_padded);
  p.plain = !p.wide && p.limbs == 1 && fits32 && p.down == 0;
  for (int64_t r = 0; r < rows; ++r) p.plain &= shift[r] >= 0;
  if (p.plain) p.round = take(4 * p.rows_padded);
  return p;
}

inline bool needs_reference(const GruSpec& s) {
  if (s.c > kMaxBytesK || s.h > kMaxBytesK || s.w_bits > 16 || s.r_bits > 16) return true;
  for (int64_t i = 0; i < 3 * s.h; ++i)
    if (s.x_shift[i] > 62 || s.h_shift[i] > 62) return true;
  const GruGrid* g = s.grid;
  return g[kSlotR].shift + g[kSlotHh].shift - g[kSlotNi].shift > 62 || g[kSlotIh].shift - g[kSlotNi].shift > 62 ||
         g[kSlotN].shift - g[kSlotH].shift > 62;
}

template <class S>
PackedCell plan_cell(const GruSpec& s) {
  PackedCell c;
  c.use_reference = needs_reference(s);
  int64_t at = gru_round_up(sizeof(PackedCell), 64);
  if (!c.use_reference) {
    c.x =
        plan_product<S>(s.grid[kSlotX], s.grid[kSlotIh], 3 * s.h, s.c, s.w_bits, s.input32, s.input_f64, s.x_shift, at);
    c.h =
        plan_product<S>(s.grid[kSlotH], s.grid[kSlotHh], 3 * s.h, s.h, s.r_bits, s.state32, s.state_f64, s.h_shift, at);
    const int inputs[3] = {kSlotUi, kSlotRi, kSlotNi}, outputs[3] = {kSlotU, kSlotR, kSlotN};
    for (int i = 0; i < 3; ++i) {
      const int64_t span = int64_t{s.grid[inputs[i]].hi} - s.grid[inputs[i]].lo + 1;
      PackedTable& t = c.table[i];
      t.bytes = S::kByteTables && span <= 256 && s.grid[outputs[i]].hi - s.grid[outputs[i]].lo <= 255;
      t.data = at;
      at += gru_round_up(t.bytes ? 256 : 2 * span, 64);
    }
  }
  c.bytes = at;
  return c;
}

template <class S>
void pack_product(const PackedProduct& p, const GruGrid& in, const int32_t* w, const int64_t* bias,
                  const int32_t* shift, uint8_t* base) {
  const int fields = 8 / p.field_bits, columns = p.wide ? 2 : S::kColumns * fields;
  auto* bias64 = reinterpret_cast<int64_t*>(base + p.bias64);
  auto* bias32 = reinterpret_cast<int32_t*>(base + p.bias32);
  auto* left = reinterpret_cast<int32_t*>(base + p.left);
  auto* right = reinterpret_cast<int32_t*>(base + p.right);
  for (int64_t r = 0; r < p.rows; ++r) {
    const int64_t panel = r / S::kLanes, lane = r % S::kLanes;
    int64_t sum = 0;
    int64_t block = panel * (p.k_padded / columns) * S::kLanes + lane;
    for (int64_t first = 0; first < p.k; first += columns, block += S::kLanes)
      for (int j = 0; j < columns && first + j < p.k; ++j) {
        const auto v = w[r * p.k + first + j];
        sum += v;
        if (p.wide) {
          reinterpret_cast<int16_t*>(base + p.weights)[block * 2 + j] = int16_t(v);
        } else {  // field f of a byte: its bits from 8 - (f + 1) field_bits on
          const int f = j / S::kColumns;
          const uint32_t code = uint32_t(v) & ((1u << p.field_bits) - 1);
          (base + p.weights)[block * S::kColumns + j % S::kColumns] |= uint8_t(code << (8 - (f + 1) * p.field_bits));
        }
      }
    const int64_t centre = S::kCentred && !p.wide ? (p.limbs == 2 ? 128 * 257 : 128) : 0;
    bias64[r] = bias[r] + (int64_t{in.lo} + centre) * sum;
    bias32[r] = int32_t(uint32_t(uint64_t(bias64[r])));
    left[r] = shift[r] < 0 ? -shift[r] : 0;
    right[r] = shift[r] > 0 ? shift[r] : 0;
    if (p.plain) reinterpret_cast<int32_t*>(base + p.round)[r] = shift[r] > 0 ? (1 << (shift[r] - 1)) - 1 : 0;
  }
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
