#include "kernels/ref/packed_kv.h"

#include <cmath>
#include <cstring>

#include "base/rounding.h"
#include "kernels/vector_math.h"

namespace lowbit {

void packed_product(const float* x, const PackedShape& shape, const PackedMatrix& matrix, float* y) {
  float supers[2], scaled[kMostPackedRows], absmax = 0, leasts[kLanes] = {};
  std::memcpy(supers, matrix.side, sizeof(supers));
  const uint8_t* const scales = matrix.side + sizeof(supers);
  const uint8_t* const least = scales + shape.rows;
  bool has_nan = false;
  for (int64_t r = 0; r < shape.rows; ++r) {
    scaled[r] = x[r] * (supers[0] * float(scales[r]));
    has_nan |= scaled[r] != scaled[r];
    absmax = std::fabs(scaled[r]) > absmax ? std::fabs(scaled[r]) : absmax;
    leasts[r % kLanes] = __builtin_fmaf(x[r], supers[1] * float(int8_t(least[r])), leasts[r % kLanes]);
  }
  const PackedX by = packed_x(absmax, has_nan);
  const float offset = reduce_lanes(leasts);
  int32_t sums[64] = {};
  for (int64_t r = 0; r < shape.rows && by.inverse != 0; ++r) {
    const auto xi = int32_t(round_half_even(scaled[r] * by.inverse));
    for (int64_t c = 0; c < shape.columns; ++c) sums[c] += xi * code_at(matrix.codes, shape, r, c);
  }
  for (int64_t c = 0; c < shape.columns; ++c) y[c] = __builtin_fmaf(float(sums[c]), by.scale, offset);
}

}  // namespace lowbit
