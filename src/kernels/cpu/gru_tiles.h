#pragma once
// Products of the integer GRU on a matrix unit of 16 x 16 x 64 tiles.

#include <cstdint>

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/gru_rounding.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// The fields of two panels as bytes, in the order of byte weights: values times 2^down.
template <class S, int Bits>
void unpack_panels(const PackedProduct& p, const uint8_t* panels, uint8_t* bytes) {
  constexpr int kFields = 8 / Bits;
  const int64_t blocks = 2 * p.k_padded / (S::kColumns * kFields), step_bytes = S::kLanes * S::kColumns;
  for (int64_t b = 0; b < blocks; ++b)
    for (int f = 0; f < kFields; ++f)
      S::store_bytes(bytes + (b * kFields + f) * step_bytes,
                     S::template field<Bits>(S::load_bytes(panels + b * step_bytes), f));
}

/// 32 rows of x by 32 rows of weights at a time: a panel of 16 rows is a column of B tiles as it lies.
template <class S>
void tile_products(const PackedProduct& p, const uint8_t* base, const uint8_t* x, int64_t rows, int32_t* out,
                   uint8_t* scratch) {
  using Tiles = typename S::Tiles;
  auto* block = reinterpret_cast<int32_t*>(scratch);  // [limb][32][32]
  uint8_t* unpacked = scratch + 2 * 32 * 32 * 4;
  const int64_t stride = p.limbs * p.k_padded, panel_bytes = p.k_padded * S::kLanes * p.field_bits / 8;
  int64_t configured = -1;
  for (int64_t row = 0; row < p.rows; row += 2 * S::kLanes) {
    const uint8_t* w = base + p.weights + row / S::kLanes * panel_bytes;
    if (p.field_bits == 4) unpack_panels<S, 4>(p, w, unpacked);
    if (p.field_bits == 2) unpack_panels<S, 2>(p, w, unpacked);
    if (p.field_bits != 8) w = unpacked;
    const uint8_t* second = w + p.k_padded * S::kLanes;
    const int64_t count = p.rows - row < 2 * S::kLanes ? p.rows - row : 2 * S::kLanes;
    for (int64_t m = 0; m < rows; m += 32) {
      const int64_t n = rows - m < 32 ? rows - m : 32;
      if (n != configured) {
        TileConfig config;
        for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64;
        const uint8_t upper = uint8_t(n < 16 ? n : 16), lower = uint8_t(n > 16 ? n - 16 : 1);
        config.rows[0] = config.rows[1] = config.rows[4] = upper;
        config.rows[2] = config.rows[3] = config.rows[5] = lower;
        config.rows[6] = config.rows[7] = 16;
        Tiles::configure(config);
        configured = n;
      }
      for (int l = 0; l < p.limbs; ++l) {
        const uint8_t* a = x + m * stride + l * p.k_padded;
        const uint8_t* b = a + 16 * stride;
        Tiles::template zero<0>(), Tiles::template zero<1>(), Tiles::template zero<2>(), Tiles::template zero<3>();
        for (int64_t k = 0; k < p.k_padded; k += 64) {
          Tiles::template load<6>(w + k * S::kLanes, 64);
          Tiles::template load<7>(second + k * S::kLanes, 64);
          Tiles::template load<4>(a + k, stride);
          Tiles::template dot_unsigned<0, 4, 6>();
          Tiles::template dot_unsigned<1, 4, 7>();
          if (n <= 16) continue;
          Tiles::template load<5>(b + k, stride);
          Tiles::template dot_unsigned<2, 5, 6>();
          Tiles::template dot_unsigned<3, 5, 7>();
        }
        int32_t* to = block + l * 32 * 32;
        Tiles::template store<0>(to, 128);
        Tiles::template store<1>(to + 16, 128);
        if (n <= 16) continue;
        Tiles::template store<2>(to + 16 * 32, 128);
        Tiles::template store<3>(to + 16 * 32 + 16, 128);
      }
      for (int64_t i = 0; i < n; ++i) {
        finish_rows(p, base, block + i * 32, 32 * 32, row, count, out + (m + i) * p.rows);
      }
    }
  }
  Tiles::release();
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
