#pragma once
// Pages of the KV cache as E4M3: a byte for each element, a power of two for each row.

#include <cstdint>

namespace lowbit {

/// Rows of f16, row r at rows + r * ld, to codes [count, columns] and exponents [count].
/// Numerics: real = e4m3(code) * 2^exponent, itself an f16. exponent: the least of -15 to 8 for which all of the row
/// are at most 448; code: the nearest, ties to even, that f16 holds. NaN and infinite elements become NaN. Source: OCP
/// 8-bit floating point, E4M3.
void pack_fp8_rows(const uint16_t* rows, int64_t ld, int64_t count, int64_t columns, uint8_t* codes, int8_t* exponents);
/// And back: [count, columns].
void expand_fp8_rows(const uint8_t* codes, const int8_t* exponents, int64_t count, int64_t columns, uint16_t* rows);

}  // namespace lowbit
