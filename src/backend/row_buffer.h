#pragma once
// Rows of slots as they wait between two runs, in a backend's memory.

#include <cstdint>
#include <utility>

#include "base/float.h"
#include "tensor/buffer.h"

namespace lowbit {

/// kBf16: numbers are rounded to bf16 when they come. Hosts keep two bytes of each; a GPU keeps floats.
enum class RowFormat : uint8_t { kF32, kBf16 };

struct RowBuffer {
  RowBuffer() = default;
  RowBuffer(Buffer rows, int64_t count, RowFormat form) : bytes(std::move(rows)), numbers(count), format(form) {}
  RowBuffer(Buffer floats)  // NOLINT: rows that an observer was shown are such a buffer
      : RowBuffer(floats, floats.size() / int64_t(sizeof(float)), RowFormat::kF32) {}

  Buffer bytes;
  int64_t numbers = 0;
  RowFormat format = RowFormat::kF32;
};

/// A number as a buffer of that format gives it back.
constexpr float as_kept(RowFormat format, float x) {
  return format == RowFormat::kBf16 ? bf16_to_f32(f32_to_bf16(x)) : x;
}

/// Bytes that a host keeps of a number.
constexpr int64_t host_bytes(RowFormat format) { return format == RowFormat::kBf16 ? 2 : 4; }

/// Numbers [at, at + n) of a buffer in the host's memory.
void put_rows(const float* from, int64_t n, RowBuffer& to, int64_t at);
void get_rows(const RowBuffer& from, int64_t at, int64_t n, float* to);

}  // namespace lowbit
