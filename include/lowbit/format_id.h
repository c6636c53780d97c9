#pragma once
// The storage formats alone, for code that must not pull in more (device code is parsed once per architecture).

#include <cstdint>

namespace lowbit {

/// Every format. The order is the order of FormatList in src/format/formats.h; files store names,
/// never these numbers.
enum class FormatId : uint8_t {
  // Kept as they are: one float per element, no scale.
  kF32,
  kF16,
  kBf16,
  // Canonical: what a checkpoint holds.
  kInt8,           // two's complement, -128..127
  kInt4,           // two's complement, -8..7
  kUint4,          // 0..15; with an offset this is GGUF's Q4_1
  kInt3,           // code - 4, dense bit stream
  kInt2,           // code - 2: {-2, -1, 0, 1}
  kInt3Odd,        // 2 * code - 7: {-7, -5, ..., 7}
  kInt2Odd,        // 2 * code - 3: {-3, -1, 1, 3}
  kBinary,         // 2 * code - 1: {-1, +1}
  kTernary,        // code - 1 in 2 bits: {-1, 0, +1}
  kTernaryPacked,  // {-1, 0, +1}, five in a byte
  kFp8,            // E4M3
  kCodebook4,      // index into a table of 16 that belongs to the tensor
  kCodebook3,      // ... of 8
  kCodebook2,      // ... of 4
  // Layouts that kernels derive; never in a file.
  kInt2Transposed,  // seed 002: codes 0,4,8,12,1,5,... of a word
  kInt2Planes,      // bit-serial: one word of low bits, one of high bits
  kInt3Planes,
  kInt4Planes,
  kTernaryPlanes,  // one word "is not zero", one word "is positive"
  // Canonical, but a code reads only behind those before it; kernels run them as codebook4.
  kTrellis2,  // 2 bits stored for an index into a table of 16
  kTrellis3,  // 3 bits
};

}  // namespace lowbit
