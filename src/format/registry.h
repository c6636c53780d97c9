#pragma once
// Run-time access to the format list: one row per format, found by FormatId.

#include <cstdint>

#include "lowbit/format.h"

namespace lowbit {

/// The functions of a packed format (all but the dense ones).
struct FormatOps {
  /// codes[0..n) = codes of elements [first, first + n) of a packed row.
  void (*unpack)(const uint8_t* row, int64_t first, int64_t n, uint8_t* codes);
  /// row = codes[0..n), exactly row_bytes(id, n) bytes; unused bits are zero. Returns n, or where the first code is
  /// that the format cannot store there; the row is not whole then.
  int64_t (*pack)(const uint8_t* codes, int64_t n, uint8_t* row);
  /// Value of each code as float: 2^code_bits entries; for codebooks the index itself.
  const float* values;
  /// The codes in use are 0 .. codes - 1: all that the bits can hold, but for ternary.
  unsigned codes;
};

const FormatOps& format_ops(FormatId id);

/// A format's trellis, for those who search it. The state behind a weight is its window without the oldest code, window
/// % states.
struct TrellisInfo {
  int stored_bits;
  unsigned states;
  const uint8_t* codes;   // [states << stored_bits]: the code of window = state << stored_bits | stored
  const uint8_t* stored;  // [states][16]: what to store for a code, or kOffTrellis (format/trellis.h)

  /// The state behind a weight of `code`, which `state` must offer.
  uint8_t next(unsigned state, unsigned code) const {
    return static_cast<uint8_t>((state << stored_bits | stored[16 * state + code]) % states);
  }
};
/// Null for formats without one.
const TrellisInfo* trellis_of(FormatId id);

/// Makes codes[0..n) a row that the format can store: behind those before it, each becomes the nearest one that the
/// trellis offers. Formats without a trellis keep all.
void make_storable(FormatId id, uint8_t* codes, int64_t n);

/// Bytes of a packed (or dense) row of k elements.
int64_t row_bytes(FormatId id, int64_t k);

/// Code of an integer value inside the alphabet.
uint8_t code_of(FormatId id, int value);

}  // namespace lowbit
