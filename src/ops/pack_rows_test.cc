#include "kernels/pack_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/float.h"
#include "base/rng.h"
#include "base/rounding.h"

namespace lowbit {
namespace {

float squared_error(const std::vector<float>& v, float least, float most, float levels) {
  const float step = (most - least) / levels, inverse = step > 0 ? 1.0f / step : 0.0f;
  float sums[16] = {};
  for (size_t c = 0; c < v.size(); ++c) {
    const float code = std::clamp(round_half_even((v[c] - least) * inverse), 0.0f, levels);
    const float error = v[c] - (least + step * code);
    sums[c % 16] += error * error;
  }
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

/// The definition in pack_rows.h, an element at a time.
void packed_plainly(const std::vector<uint16_t>& rows, const PackedShape& s, std::vector<uint8_t>& codes,
                    std::vector<uint8_t>& side) {
  const auto levels = float((1 << s.bits) - 1);
  std::vector<float> least(size_t(s.rows)), most(least), real(least), steps(least);
  const auto row_of = [&](int64_t r) {
    std::vector<float> v;
    for (int64_t c = 0; c < s.columns; ++c) v.push_back(f16_to_f32(rows[size_t(r * s.columns + c)]));
    return v;
  };
  float supers[2] = {0, 0};
  for (size_t r = 0; r < least.size(); ++r) {
    const std::vector<float> v = row_of(int64_t(r));
    least[r] = *std::ranges::min_element(v);
    most[r] = *std::ranges::max_element(v);
    float best = squared_error(v, least[r], most[r], levels);
    const float middle = 0.5f * least[r] + 0.5f * most[r], half = 0.5f * most[r] - 0.5f * least[r];
    for (int i = 1; i <= (s.bits == 2 ? 8 : s.bits == 4 ? 3 : 0); ++i) {
      const float kept = half * (1.0f - float(i) / 16.0f);
      const float error = squared_error(v, middle - kept, middle + kept, levels);
      if (error >= best) continue;
      best = error;
      least[r] = middle - kept;
      most[r] = middle + kept;
    }
    supers[1] = std::max(supers[1], std::fabs(least[r]) / 127.0f);
  }
  for (size_t r = 0; r < least.size(); ++r) {
    const float code = supers[1] > 0 ? std::clamp(std::floor(least[r] / supers[1]), -127.0f, 127.0f) : 0.0f;
    side[8 + least.size() + r] = uint8_t(int8_t(code));
    real[r] = supers[1] * code;
    steps[r] = most[r] > real[r] ? (most[r] - real[r]) / levels : 0.0f;
    supers[0] = std::max(supers[0], steps[r] / 255.0f);
  }
  std::memcpy(side.data(), supers, sizeof(supers));
  for (size_t r = 0; r < least.size(); ++r) {
    side[8 + r] = uint8_t(supers[0] > 0 ? std::min(std::ceil(steps[r] / supers[0]), 255.0f) : 0.0f);
    const float step = supers[0] * float(side[8 + r]);
    const std::vector<float> v = row_of(int64_t(r));
    for (int64_t c = 0; c < s.columns && step > 0; ++c) {
      const float code = std::clamp(round_half_even((v[size_t(c)] - real[r]) * (1.0f / step)), 0.0f, levels);
      const CodePosition at = code_position(s, int64_t(r), c);
      codes[size_t(at.byte)] |= uint8_t(int(code) << at.shift);
    }
  }
}

TEST(PackRows, IsWhatAPlainLoopMakes) {
  Rng rng(3);
  for (int round = 0; round < 200; ++round)
    for (const int bits : {2, 4, 8}) {
      const PackedShape s = {bits, 16 * int64_t(1 + rng.below(16)), 16 * int64_t(1 + rng.below(4))};
      std::vector<uint16_t> rows(size_t(s.rows * s.columns));
      for (int64_t r = 0; r < s.rows; ++r) {
        const uint64_t kind =
            rng.below(8);  // rows of zeros, of one number, of subnormal ones, of large ones, and others
        const float spread = kind == 0 ? 0.0f : kind == 1 ? 1e-6f : kind == 2 ? 30000.0f : float(rng.uniform());
        const float middle = kind < 2 ? 0.0f : kind == 3 ? 100.0f : float(rng.uniform());
        for (int64_t c = 0; c < s.columns; ++c)
          rows[size_t(r * s.columns + c)] =
              f32_to_f16(middle + (kind == 3 ? 0 : spread * float(2 * rng.uniform() - 1)));
      }
      std::vector<uint8_t> codes(size_t(s.code_bytes())), side(size_t(s.side_bytes()));
      std::vector<uint8_t> wanted_codes(codes), wanted_side(side);
      pack_rows(rows.data(), s.columns, s, codes.data(), side.data());
      packed_plainly(rows, s, wanted_codes, wanted_side);
      ASSERT_EQ(side, wanted_side) << bits << " bits, " << s.rows << " x " << s.columns;
      ASSERT_EQ(codes, wanted_codes) << bits << " bits, " << s.rows << " x " << s.columns;
    }
}

}  // namespace
}  // namespace lowbit
