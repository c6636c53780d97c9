#pragma once
// Tiles: the order of packs in a device's memory. Files hold rows; these orders are derived
// at load.

#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Seed 002's order for 2-bit codes: blocks of 16 rows by 32 columns, each 32 words of 16 codes
/// (Transposed4x4). Inside a block, element (n, k) lies in word (n / 8) * 16 + (k / 16) * 8 + n %
/// 8; blocks follow along K, then N.
struct Tile16x32 {
  static constexpr int kRows = 16, kCols = 32, kWords = 32;
  static constexpr LOWBIT_HD int word(int n, int k) { return n / 8 * 16 + k / 16 * 8 + n % 8; }
  /// Word index of element (n, k) in a matrix of `k_total` columns, k_total % 32 == 0.
  static constexpr LOWBIT_HD int64_t word_of(int64_t n, int64_t k, int64_t k_total) {
    const int64_t block = n / kRows * (k_total / kCols) + k / kCols;
    return block * kWords + word(int(n % kRows), int(k % kCols));
  }
};

/// Panels: `Rows` weight rows side by side, `Depth` consecutive bytes of each row at a time, so
/// that one vector load brings the same columns of all rows. Byte b of row r of a panel lies at (b
/// / Depth) * Rows * Depth + r * Depth + b % Depth.
template <int Rows, int Depth>
struct Panel {
  static constexpr int kRows = Rows, kDepth = Depth;
  static constexpr LOWBIT_HD int64_t byte_of(int64_t row, int64_t byte) {
    return byte / Depth * (Rows * Depth) + row * Depth + byte % Depth;
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
