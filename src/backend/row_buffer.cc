#include "backend/row_buffer.h"

#include <algorithm>

namespace lowbit {

void put_rows(const float* from, int64_t n, RowBuffer& to, int64_t at) {
  if (to.format == RowFormat::kBf16) {
    std::transform(from, from + n, to.bytes.as<uint16_t>() + at, f32_to_bf16);
  } else {
    std::copy_n(from, n, to.bytes.as<float>() + at);
  }
}

void get_rows(const RowBuffer& from, int64_t at, int64_t n, float* to) {
  if (from.format == RowFormat::kBf16) {
    std::transform(from.bytes.as<uint16_t>() + at, from.bytes.as<uint16_t>() + at + n, to, bf16_to_f32);
  } else {
    std::copy_n(from.bytes.as<float>() + at, n, to);
  }
}

}  // namespace lowbit
