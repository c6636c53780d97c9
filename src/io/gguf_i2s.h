#pragma once
// I2_S, bitnet.cpp's ternary type (GGUF type 36): 2-bit codes 0, 1, 2 = -1, 0, +1, then one f32 scale for the tensor in
// a tail of 32 bytes. Its builds order the codes differently, and the file does not say how.

#include <cstdint>
#include <string>

#include "format/qtensor.h"
#include "lowbit/error.h"
#include "tensor/buffer.h"

namespace lowbit {

inline constexpr int64_t kI2sTailBytes = 32;

/// Where code e = row * k + column lies. Earlier elements have the higher bits of a byte.
enum class I2sLayout : uint8_t {
  kX86,    // blocks of 128 in 32 bytes: element j of a block in byte j % 32, bits 6 - 2 * (j / 32)
  kArm,    // blocks of 64 in 16 bytes: byte j % 16, bits 6 - 2 * (j / 16)
  kRows4,  // byte [row / 4, column], bits 6 - 2 * (row % 4)
};

/// "x86", "arm" or "rows4". Errors: kInvalidArgument.
Result<I2sLayout> parse_i2s_layout(const std::string& text, const std::string& where);

/// The ternary matrix with one f32 scale. Errors: kShapeMismatch (bytes, rows that the layout cannot hold), kCorrupt (a
/// code 3, a scale that is not positive: often a sign of the wrong layout), kOutOfMemory.
Result<QTensor> i2s_to_qtensor(int64_t n, int64_t k, const Buffer& raw, I2sLayout layout);

}  // namespace lowbit
