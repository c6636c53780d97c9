#pragma once
// Grid: the values a format's codes can mean, in ascending order, and how to find the nearest one.
// Fitters know a format only through this, so a format added to formats.h needs nothing here.

#include <cstdint>
#include <span>
#include <vector>

#include "lowbit/format.h"

namespace lowbit {

struct Grid {
  enum class Kind : uint8_t {
    kUniform,  // value = step * j + base, j_min <= j <= j_max
    kTable,    // up to 16 uneven values: compare with each midpoint
    kSearch,   // more: binary search among the midpoints
  };

  Kind kind = Kind::kUniform;
  bool is_integer = false;                         // ValueKind::kInteger
  std::vector<float> values;                       // ascending, distinct, finite
  std::vector<uint8_t> codes;                      // code of each value
  int code_mask = 0;                               // not 0: code of value i = (code of the first + i) & code_mask
  std::vector<float> middles;                      // between neighbours, values.size() - 1 of them
  float step = 1, base = 0, j_min = 0, j_max = 0;  // kUniform
  int zero_level = 0;                              // index of the value nearest to 0
  float unit_scale = 1;                            // scale with the least squared error for a standard normal variable
  bool may_flip = true;                            // false where scales are stored without a sign

  float low() const { return values.front(); }
  float high() const { return values.back(); }
  /// How far the grid reaches on both sides of zero.
  float reach() const;
  /// True when a negative scale offers other values than a positive one and few enough values
  /// exist to make that worth trying: {-2, -1, 0, 1} gains 10 % of the error, -128..127 nothing.
  bool wants_sign() const { return may_flip && is_integer && values.size() <= 16 && low() != -high(); }

  /// Level (index into values) nearest to v, for finite and infinite v. Ties: uniform grids round
  /// half to even in units of the step, others take the even code, or the lower of two odd or even
  /// ones.
  int nearest(float v) const;
};

/// The grid of a packed format; `codebook` holds 2^code_bits entries for ValueKind::kTable, else is
/// empty. Entries of a codebook need not be sorted or distinct.
Grid make_grid(FormatId format, std::span<const float> codebook);

}  // namespace lowbit
