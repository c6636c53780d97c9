#include "format/scale_row.h"

#include <cstring>

#include "base/float.h"

namespace lowbit {

void scales_of_row(const QTensor& w, int64_t row, float* out) {
  const int64_t cols = w.scale_cols(), first = w.scale_row_of(row) * cols;
  if (w.scaling.scale == ScaleKind::kF16) {
    const std::byte* const from = w.scales.data() + 2 * first;  // of a file, so at any address
    for (int64_t c = 0; c < cols; ++c) {
      uint16_t half;
      std::memcpy(&half, from + 2 * c, 2);
      out[c] = f16_to_f32(half);
    }
  } else if (w.scaling.scale == ScaleKind::kF32) {
    std::memcpy(out, w.scales.data() + 4 * first, static_cast<size_t>(4 * cols));
  } else {
    for (int64_t c = 0; c < cols; ++c) out[c] = w.scale(row, c);
  }
}

}  // namespace lowbit
