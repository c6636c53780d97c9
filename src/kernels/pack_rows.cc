#include "kernels/pack_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float.h"
#include "kernels/vector_math.h"

namespace lowbit {
namespace {

constexpr int64_t kMostColumns = 64;

struct Range {
  float least, most;
};

/// sum (v - nearest of the levels)^2, in 16 partial sums.
float squared_error(const float* v, int64_t n, Range range, float levels) {
  const float step = (range.most - range.least) / levels, inverse = step > 0 ? 1.0f / step : 0.0f;
  float sums[kLanes] = {};
  for (int64_t c = 0; c < n; c += kLanes)
    for (int64_t i = 0; i < kLanes; ++i) {
      const float code = round_half_even((v[c + i] - range.least) * inverse);
      const float kept = code < 0 ? 0 : code > levels ? levels : code;
      const float error = v[c + i] - (range.least + step * kept);
      sums[i] += error * error;
    }
  return fold_lanes(sums);
}

/// Where few codes are spread over a row, its extremes are worth less than finer steps: ranges shrunk about their middle by 1/16 at a
/// time are tried, the first of the least squared error is taken.
Range choose_range(const float* v, int64_t n, int bits) {
  Range whole = {v[0], v[0]};
  for (int64_t c = 1; c < n; ++c) {
    whole.least = v[c] < whole.least ? v[c] : whole.least;
    whole.most = v[c] > whole.most ? v[c] : whole.most;
  }
  const int tries = bits == 2 ? 8 : bits == 4 ? 3 : 0;
  if (tries == 0) return whole;
  const float levels = float((1 << bits) - 1);
  Range best = whole;
  float least_error = squared_error(v, n, whole, levels);
  const float middle = 0.5f * whole.least + 0.5f * whole.most, half = 0.5f * whole.most - 0.5f * whole.least;
  for (int i = 1; i <= tries; ++i) {
    const float kept = half * (1.0f - float(i) / 16.0f);
    const Range range = {middle - kept, middle + kept};
    const float error = squared_error(v, n, range, levels);
    if (error < least_error) {
      least_error = error;
      best = range;
    }
  }
  return best;
}

}  // namespace

void pack_rows(const uint16_t* rows, int64_t ld, const PackedShape& shape, uint8_t* codes, uint8_t* side) {
  const auto levels = float((1 << shape.bits) - 1);
  float values[kMostColumns], steps[kMostPackedRows];
  Range ranges[kMostPackedRows];
  uint8_t* const scale_codes = side + 2 * sizeof(float);
  uint8_t* const least_codes = scale_codes + shape.rows;
  std::memset(codes, 0, size_t(shape.code_bytes()));
  std::memset(side, 0, size_t(shape.side_bytes()));
  const auto convert = [&](int64_t r) {
    bool finite = true;
    for (int64_t c = 0; c < shape.columns; ++c) {
      values[c] = f16_to_f32(rows[r * ld + c]);
      finite &= std::isfinite(values[c]);
    }
    return finite;
  };
  float units[2] = {0, 0}, farthest = 0;
  for (int64_t r = 0; r < shape.rows; ++r) {
    if (!convert(r)) {  // the whole matrix says so
      units[0] = units[1] = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(side, units, sizeof(units));
      return;
    }
    ranges[r] = choose_range(values, shape.columns, shape.bits);
    farthest = std::max(farthest, std::fabs(ranges[r].least));
  }
  units[1] = farthest / 127.0f;
  float widest = 0;
  for (int64_t r = 0; r < shape.rows; ++r) {
    float code = units[1] > 0 ? std::floor(ranges[r].least / units[1]) : 0.0f;  // never above the least
    code = code < -127.0f ? -127.0f : code > 127.0f ? 127.0f : code;
    least_codes[r] = uint8_t(int8_t(code));
    const float least = units[1] * code;
    steps[r] = ranges[r].most > least ? (ranges[r].most - least) / levels : 0.0f;
    widest = std::max(widest, steps[r]);
  }
  units[0] = widest / 255.0f;
  std::memcpy(side, units, sizeof(units));
  for (int64_t r = 0; r < shape.rows; ++r) {
    const float code = units[0] > 0 ? std::ceil(steps[r] / units[0]) : 0.0f;  // never below the step
    scale_codes[r] = uint8_t(code > 255.0f ? 255.0f : code);
    const float step = units[0] * float(scale_codes[r]), least = units[1] * float(int8_t(least_codes[r]));
    if (!(step > 0)) continue;
    const float inverse = 1.0f / step;
    convert(r);
    for (int64_t c = 0; c < shape.columns; c += kLanes) {
      const CodePlace first = code_place(shape, r, c);
      uint8_t* const at = codes + first.byte;
      for (int64_t i = 0; i < kLanes; ++i) {
        const float nearest = round_half_even((values[c + i] - least) * inverse);
        at[4 * i] |= uint8_t(int(nearest < 0 ? 0 : nearest > levels ? levels : nearest) << first.shift);
      }
    }
  }
}

}  // namespace lowbit
