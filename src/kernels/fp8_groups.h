#pragma once
// Groups of rows in a product of FP8 codes, on the host or on a device.

#include <cstdint>

#include "base/isa.h"

namespace lowbit {

/// Rows of a product's a that multiply a b of their own, as experts of a mixture do: b of group i begins n rows, and
/// its scales ceil(n / b_rows) rows, behind those of the group before. Rows of c that belong to no group stay as they
/// are.
struct Fp8Groups {
  int64_t count = 0;
  const int32_t* ends =
      nullptr;  // [count] ascending: group i has the rows from ends[i - 1], or 0, to ends[i]; or null:
  const int32_t* rows = nullptr;  // [count] the first rows[i] of the group's rows_of_group
  int64_t rows_of_group = 0;
};

/// Row range of group i, within what a product has; of numbers that are not what they should be, too.
struct Fp8GroupRange {
  int64_t first = 0, last = 0;
};
constexpr LOWBIT_HD Fp8GroupRange fp8_group_range(const Fp8Groups& groups, int64_t i, int64_t m) {
  if (groups.ends != nullptr) {
    const int64_t first = i == 0 ? 0 : groups.ends[i - 1], last = groups.ends[i];
    return {first < 0 ? 0 : first, last > m ? m : last};
  }
  const int64_t first = i * groups.rows_of_group, rows = groups.rows[i];
  return {first, first + (rows > groups.rows_of_group ? groups.rows_of_group : rows)};
}

}  // namespace lowbit
