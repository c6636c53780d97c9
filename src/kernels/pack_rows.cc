#include "kernels/pack_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float.h"
#include "kernels/vector_math.h"

namespace lowbit {
namespace {

constexpr int64_t kMostColumns = 64;

// Columns side by side, as many as any machine takes at once.
using Floats = float __attribute__((vector_size(16)));
using Words = uint32_t __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
constexpr int64_t kWidth = sizeof(Floats) / sizeof(float), kVectors = kLanes / kWidth;

template <class V, class T>
V load(const T* from) {
  V v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
template <class V, class T>
void store(T* to, V v) {
  std::memcpy(to, &v, sizeof(v));
}

struct Range {
  float least, most;
};

/// Codes of v as floats: the nearest, ties to even. What is clamped first lies where adding 1.5 * 2^23 rounds.
Floats nearest_codes(Floats v, float least, float inverse, float levels) {
  constexpr float kMagic = 12582912.0f;
  Floats code = (v - least) * inverse;
  code = code < 0.0f ? Floats{} : code;
  code = code > levels ? Floats{} + levels : code;
  return (code + kMagic) - kMagic;
}

/// sum (v - nearest of the levels)^2, in 16 partial sums.
float squared_error(const float* v, int64_t n, Range range, float levels) {
  const float step = (range.most - range.least) / levels, inverse = step > 0 ? 1.0f / step : 0.0f;
  Floats sums[kVectors] = {};
  for (int64_t c = 0; c < n; c += kLanes)
    for (int64_t i = 0; i < kVectors; ++i) {
      const auto x = load<Floats>(v + c + i * kWidth);
      const Floats error = x - (range.least + step * nearest_codes(x, range.least, inverse, levels));
      sums[i] += error * error;
    }
  float partial[kLanes];
  std::memcpy(partial, sums, sizeof(partial));
  return reduce_lanes(partial);
}

Range whole_range(const float* v, int64_t n) {
  auto least = load<Floats>(v), most = least;
  for (int64_t c = kWidth; c < n; c += kWidth) {
    const auto x = load<Floats>(v + c);
    least = x < least ? x : least;
    most = x > most ? x : most;
  }
  Range range = {least[0], most[0]};
  for (int64_t i = 1; i < kWidth; ++i) range = {std::min(range.least, least[i]), std::max(range.most, most[i])};
  return range;
}

/// Where few codes are spread over a row, its extremes are worth less than finer steps: ranges shrunk about their
/// middle by 1/16 at a time are tried, the first of the least squared error is taken.
Range choose_range(const float* v, int64_t n, int bits) {
  const Range whole = whole_range(v, n);
  const int tries = bits == 2 ? 8 : bits == 3 ? 5 : bits == 4 ? 3 : 0;
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

/// f16 to f32; whether all are finite, else `values` mean nothing. A half's bits, where a float has its own, are 2^112
/// times too small.
bool convert(const uint16_t* from, int64_t n, float* values) {
  Words infinite = {};
  for (int64_t c = 0; c < n; c += kWidth) {
    const uint16_t* const at = from + c;
    const Words h = {at[0], at[1], at[2], at[3]};
    infinite |= (h & 0x7c00u) == 0x7c00u;
    const Floats magnitude = std::bit_cast<Floats>((h & 0x7fffu) << 13) * 0x1p112f;
    store(values + c, std::bit_cast<Words>(magnitude) | (h & 0x8000u) << 16);
  }
  for (int64_t i = 0; i < kWidth; ++i)
    if (infinite[i] != 0) return false;
  return true;
}

/// Puts codes of kWidth columns where they belong; the bits there are 0. A pack is 16 columns of 32 bits: a row's codes
/// are at one place in all of them.
void put(const Ints& nearest, const PackedShape& shape, int64_t row, int64_t column, uint8_t* codes) {
  if (shape.bits == 3) {
    put(nearest & 3, low_bits(shape), row, column, codes);
    return put(nearest >> 2, high_bit(shape), row, column, codes + low_bits(shape).code_bytes());
  }
  const CodePosition first = code_position(shape, row, column / kLanes * kLanes);
  uint8_t* const at = codes + first.byte / 4 * 4 + 4 * (column % kLanes);
  store(at, load<Words>(at) | std::bit_cast<Words>(nearest) << (int(first.byte % 4) * 8 + first.shift));
}

}  // namespace

void pack_rows(const uint16_t* rows, int64_t ld, const PackedShape& shape, uint8_t* codes, uint8_t* side) {
  const auto levels = float((1 << shape.bits) - 1);
  float values[kMostPackedRows * kMostColumns], steps[kMostPackedRows];
  Range ranges[kMostPackedRows];
  uint8_t* const scale_codes = side + 2 * sizeof(float);
  uint8_t* const least_codes = scale_codes + shape.rows;
  std::memset(codes, 0, size_t(shape.code_bytes()));
  std::memset(side, 0, size_t(shape.side_bytes()));
  float supers[2] = {0, 0}, farthest = 0;
  for (int64_t r = 0; r < shape.rows; ++r) {
    float* const row = values + r * shape.columns;
    if (!convert(rows + r * ld, shape.columns, row)) {  // the whole matrix says so
      supers[0] = supers[1] = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(side, supers, sizeof(supers));
      return;
    }
    ranges[r] = choose_range(row, shape.columns, shape.bits);
    farthest = std::max(farthest, std::fabs(ranges[r].least));
  }
  supers[1] = farthest / 127.0f;
  float widest = 0;
  for (int64_t r = 0; r < shape.rows; ++r) {
    float code = supers[1] > 0 ? std::floor(ranges[r].least / supers[1]) : 0.0f;  // never above the least
    code = code < -127.0f ? -127.0f : code > 127.0f ? 127.0f : code;
    least_codes[r] = uint8_t(int8_t(code));
    const float least = supers[1] * code;
    steps[r] = ranges[r].most > least ? (ranges[r].most - least) / levels : 0.0f;
    widest = std::max(widest, steps[r]);
  }
  supers[0] = widest / 255.0f;
  std::memcpy(side, supers, sizeof(supers));
  for (int64_t r = 0; r < shape.rows; ++r) {
    const float code = supers[0] > 0 ? std::ceil(steps[r] / supers[0]) : 0.0f;  // never below the step
    scale_codes[r] = uint8_t(code > 255.0f ? 255.0f : code);
    const float step = supers[0] * float(scale_codes[r]), least = supers[1] * float(int8_t(least_codes[r]));
    if (!(step > 0)) continue;
    const float inverse = 1.0f / step;
    for (int64_t c = 0; c < shape.columns; c += kWidth) {
      const auto x = load<Floats>(values + r * shape.columns + c);
      put(__builtin_convertvector(nearest_codes(x, least, inverse, levels), Ints), shape, r, c, codes);
    }
  }
}

void unpack_rows(const PackedMatrix& matrix, const PackedShape& shape, int64_t ld, uint16_t* rows) {
  constexpr float kMost = 65504.0f;
  float supers[2];
  std::memcpy(supers, matrix.side, sizeof(supers));
  const uint8_t* const scales = matrix.side + sizeof(supers);
  const uint8_t* const leasts = scales + shape.rows;
  for (int64_t r = 0; r < shape.rows; ++r) {
    const float step = supers[0] * float(scales[r]), least = supers[1] * float(int8_t(leasts[r]));
    for (int64_t c = 0; c < shape.columns; ++c) {
      float v = std::fma(step, float(code_at(matrix.codes, shape, r, c)), least);
      v = v < -kMost ? -kMost : v > kMost ? kMost : v;
      rows[r * ld + c] = f32_to_f16(v);
    }
  }
}

}  // namespace lowbit
