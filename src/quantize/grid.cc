#include "quantize/grid.h"

#include <algorithm>
#include <cmath>

#include "base/rounding.h"
#include "format/registry.h"
#include "quantize/group_fit.h"
#include "quantize/table_fit.h"

namespace lowbit {
namespace {

struct Level {
  float value;
  uint8_t code;
};

std::vector<Level> levels_of(FormatId format, std::span<const float> codebook) {
  const FormatInfo& info = format_info(format);
  std::vector<Level> levels;
  for (unsigned code = 0; code < 1u << info.code_bits; ++code) {
    const float value = codebook.empty() ? format_ops(format).values[code] : codebook[code];
    if (!std::isfinite(value)) continue;
    if (info.kind == ValueKind::kInteger) {  // codes that no value maps to are not used
      if (value < static_cast<float>(info.min_value) || value > static_cast<float>(info.max_value)) continue;
      if (code_of(format, static_cast<int>(value)) != code) continue;
    }
    levels.push_back({value, static_cast<uint8_t>(code)});
  }
  std::stable_sort(levels.begin(), levels.end(), [](const Level& a, const Level& b) { return a.value < b.value; });
  const auto same = [](const Level& a, const Level& b) { return a.value == b.value; };
  levels.erase(std::unique(levels.begin(), levels.end(), same), levels.end());
  return levels;
}

void detect_uniform(Grid& grid) {
  const size_t n = grid.values.size();
  const float step = n > 1 ? grid.values[1] - grid.values[0] : 1.0f;
  bool uniform = grid.is_integer;
  for (size_t i = 1; i < n; ++i) uniform = uniform && grid.values[i] - grid.values[i - 1] == step;
  if (!uniform) {
    grid.kind = n <= 16 ? Grid::Kind::kTable : Grid::Kind::kSearch;
    return;
  }
  grid.kind = Grid::Kind::kUniform;
  grid.step = step;
  grid.j_min = std::floor(grid.values[0] / step);
  grid.base = grid.values[0] - step * grid.j_min;
  grid.j_max = grid.j_min + static_cast<float>(n - 1);
}

/// Whether codes count up from the first value's, modulo their number.
bool codes_count_up(const Grid& grid, int mask) {
  for (size_t i = 0; i < grid.codes.size(); ++i)
    if (grid.codes[i] != ((grid.codes[0] + static_cast<int>(i)) & mask)) return false;
  return true;
}

/// Minimizes the error over 255 quantiles of the normal distribution.
float find_unit_scale(const Grid& grid) {
  static const std::vector<float> x = normal_quantiles(255);
  const Group group{x.data(), nullptr, static_cast<int64_t>(x.size()), x.back(), x.front(), x.back(), 0.8f};
  float best_scale = 1;
  double best = INFINITY;
  for (float scale = 1.5f * x.back() / grid.reach(); scale > 0.1f / grid.reach(); scale *= 0.94f) {
    const double error = residual_sums(grid, group, scale, 0).dd;
    if (error < best) {
      best = error;
      best_scale = scale;
    }
  }
  return best_scale;
}

}  // namespace

float Grid::reach() const {
  const float shorter = std::min(std::fabs(low()), std::fabs(high()));
  return shorter > 0 ? shorter : std::max(std::fabs(low()), std::fabs(high()));
}

int Grid::nearest(float v) const {
  if (kind == Kind::kUniform) {
    const float j = std::min(std::max((v - base) / step, j_min), j_max);
    return static_cast<int>(round_half_even(j) - j_min);
  }
  size_t level = 0;  // ends as the number of middles below v; no branch that v decides
  for (size_t count = middles.size(); count > 0;) {
    const size_t half = (count + 1) / 2;
    level += middles[level + half - 1] < v ? half : 0;
    count -= half;
  }
  const bool tie = level < middles.size() && middles[level] == v;
  return static_cast<int>(level) + (tie && (codes[level] & 1) && !(codes[level + 1] & 1) ? 1 : 0);
}

Grid make_grid(FormatId format, std::span<const float> codebook) {
  Grid grid;
  grid.is_integer = format_info(format).kind == ValueKind::kInteger;
  for (const Level& level : levels_of(format, codebook)) {
    grid.values.push_back(level.value);
    grid.codes.push_back(level.code);
  }
  if (grid.values.empty()) {  // a table of nothing but NaN: callers reject it
    grid.values.push_back(0);
    grid.codes.push_back(0);
  }
  for (size_t i = 0; i + 1 < grid.values.size(); ++i)
    grid.middles.push_back(grid.values[i] + (grid.values[i + 1] - grid.values[i]) / 2);
  if (const int mask = (1 << format_info(format).code_bits) - 1; codes_count_up(grid, mask)) grid.code_mask = mask;
  detect_uniform(grid);
  for (size_t i = 1; i < grid.values.size(); ++i)
    if (std::fabs(grid.values[i]) < std::fabs(grid.values[static_cast<size_t>(grid.zero_level)]))
      grid.zero_level = static_cast<int>(i);
  if (grid.reach() > 0) grid.unit_scale = find_unit_scale(grid);
  return grid;
}

}  // namespace lowbit
