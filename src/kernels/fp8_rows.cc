#include "kernels/fp8_rows.h"

#include <array>
#include <cmath>

#include "base/float.h"

namespace lowbit {
namespace {

constexpr int kLeastExponent = -15, kMostExponent = 8;
constexpr float kMostCode = 448.0f, kMostF16 = 65504.0f;

using Row = std::array<uint16_t, 256>;
using Table = std::array<Row, kMostExponent - kLeastExponent + 1>;

/// The value of each code with each exponent.
const Table& table() {
  static const Table made = [] {
    Table t{};
    for (int e = kLeastExponent; e <= kMostExponent; ++e)
      for (int code = 0; code < 256; ++code)
        t[size_t(e - kLeastExponent)][size_t(code)] = f32_to_f16(std::ldexp(e4m3_to_f32(uint8_t(code)), e));
    return t;
  }();
  return made;
}

int exponent_of(const uint16_t* row, int64_t columns) {
  float most = 0;
  for (int64_t c = 0; c < columns; ++c) {
    const float x = std::fabs(f16_to_f32(row[c]));
    if (x <= kMostF16 && x > most) most = x;
  }
  int e = kLeastExponent;
  while (e < kMostExponent && most > std::ldexp(kMostCode, e)) ++e;
  return e;
}

}  // namespace

void pack_fp8_rows(const uint16_t* rows, int64_t ld, int64_t count, int64_t columns, uint8_t* codes,
                   int8_t* exponents) {
  for (int64_t r = 0; r < count; ++r) {
    const int e = exponent_of(rows + r * ld, columns);
    // The next code beyond the largest f16 would be none.
    const float most = e == kMostExponent ? 240.0f : kMostCode;
    exponents[r] = int8_t(e);
    for (int64_t c = 0; c < columns; ++c) {
      const float x = f16_to_f32(rows[r * ld + c]);
      const bool finite = std::fabs(x) <= kMostF16;
      const float scaled = std::ldexp(x, -e);
      codes[r * columns + c] = f32_to_e4m3(!finite          ? std::nanf("")
                                           : scaled > most  ? most
                                           : scaled < -most ? -most
                                                            : scaled);
    }
  }
}

void expand_fp8_rows(const uint8_t* codes, const int8_t* exponents, int64_t count, int64_t columns, uint16_t* rows) {
  const Table& real = table();
  for (int64_t r = 0; r < count; ++r) {
    const Row& of_row = real[size_t(exponents[r] - kLeastExponent) % real.size()];
    for (int64_t c = 0; c < columns; ++c) rows[r * columns + c] = of_row[codes[r * columns + c]];
  }
}

}  // namespace lowbit
