#pragma once
// Tables of sixteen integers of 8 bits as kernels on a GPU look them up: four indices in one instruction (PRMT), in
// eight bytes at a time.
//
// Such a look-up takes three bits of an index. Where the fourth one is set it gives the sign of the byte that the three
// choose: 0 or -1. So an index and its complement, each looked up in one half of a table, give an entry and a sign, and
// products with both are added: no instruction has to choose between halves, whose bytes allow for each other's signs.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/isa.h"

namespace lowbit::cuda {

/// Sixteen bytes.
using ByteTable = std::array<uint32_t, 4>;

constexpr void put_entry(ByteTable& table, int at, int value) {
  table[static_cast<size_t>(at / 4)] |= uint32_t{static_cast<uint8_t>(value)} << (8 * (at % 4));
}
constexpr int entry_at(const ByteTable& table, int at) {
  return static_cast<int8_t>(table[static_cast<size_t>(at / 4)] >> (8 * (at % 4)));
}
/// Up to sixteen integers, zeros behind them.
constexpr ByteTable byte_table(std::span<const float> entries) {
  ByteTable table = {};
  for (size_t i = 0; i < entries.size(); ++i) put_entry(table, static_cast<int>(i), static_cast<int>(entries[i]));
  return table;
}

/// Index i as kernels have it: entries 2 j and 2 j + 1 share three bits.
constexpr LOWBIT_HD int stored_index(int i) { return i / 2 + i % 2 * 8; }
/// A table by stored indices.
constexpr ByteTable stored_order(const ByteTable& table) {
  ByteTable stored = {};
  for (int i = 0; i < 16; ++i) put_entry(stored, stored_index(i), entry_at(table, i));
  return stored;
}

/// low + (high < 0 ? -1 : 0) = even and high + (low < 0 ? -1 : 0) = odd; false: no bytes are so.
constexpr bool split_pair(int even, int odd, int& low, int& high) {
  for (const int low_sign : {0, 1})
    for (const int high_sign : {0, 1}) {
      low = even + high_sign, high = odd + low_sign;
      if ((low < 0) == (low_sign == 1) && (high < 0) == (high_sign == 1) && low <= 127 && high <= 127) return true;
    }
  return false;
}

/// The halves of a table: the bytes for a stored index, and those for its complement. None where 127 and a negative
/// number share three bits; of a sorted table that is so only where all that is not negative is 127.
constexpr std::optional<ByteTable> split_table(const ByteTable& table) {
  ByteTable halves = {};
  for (int j = 0; j < 8; ++j) {
    int low = 0, high = 0;
    if (!split_pair(entry_at(table, 2 * j), entry_at(table, 2 * j + 1), low, high)) return std::nullopt;
    put_entry(halves, j, low);
    put_entry(halves, 8 + 7 - j, high);
  }
  return halves;
}

}  // namespace lowbit::cuda
