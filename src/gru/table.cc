#include "gru/table.h"

#include <algorithm>
#include <cmath>

#include "base/rounding.h"

namespace lowbit {
namespace {

constexpr int kSlopeBits = 15;  // with sign
// Larger powers lower the mean error and raise the worst; at 0.05 both stay under the design's table.
constexpr double kFlatPower = 0.05, kFlatShare = 0.3;

/// The C library takes long for what has no digits left: 1 + exp(-40) is 1, and exp(710) is infinity.
double value_of(GruFunction f, double x) {
  if (f == GruFunction::kTanh) return std::tanh(x);
  return x > 40 ? 1 : x < -710 ? 0 : 1 / (1 + std::exp(-x));
}

/// A run of input codes [first, last] under one line: y = slope * (q - zp) + middle, in output steps without the
/// output's zero point.
struct Line {
  int64_t first = 0, last = 0;
  double slope = 0;
};

/// The wanted function on the input's grid.
class Target {
 public:
  Target(GruFunction f, const GruParam& in, const GruParam& out)
      : first_(in.lo()), zp_(in.scale.zp), out_lo_(out.lo()), out_hi_(out.hi()), out_zp_(out.scale.zp) {
    // The last step above the top is left to the output's clamp: 1.0 is -128 and 127 in eight bits, and so stays odd.
    const double top = out.hi() - static_cast<double>(out.scale.zp) + 1,
                 low = out.lo() - static_cast<double>(out.scale.zp);
    // Products with powers of two are exact, and much faster than ldexp.
    const double step = std::ldexp(1.0, -in.scale.shift), unit = std::ldexp(1.0, out.scale.shift);
    values_.reserve(static_cast<size_t>(int64_t{in.hi()} - in.lo() + 1));
    for (int64_t q = in.lo(); q <= in.hi(); ++q)
      values_.push_back(std::clamp(value_of(f, static_cast<double>(q - zp_) * step) * unit, low, top));
    for (size_t i = 1; i < values_.size(); ++i) steepest_ = std::max(steepest_, values_[i] - values_[i - 1]);
  }
  int64_t first() const { return first_; }
  int64_t last() const { return first_ + static_cast<int64_t>(values_.size()) - 1; }
  int64_t zp() const { return zp_; }
  double at(int64_t q) const { return values_[static_cast<size_t>(q - first_)]; }
  /// rounded_function().
  int64_t rounded(int64_t q) const {
    return std::clamp(static_cast<int64_t>(std::nearbyint(at(q))) + out_zp_, out_lo_, out_hi_);
  }

  /// Slope of the chord, and half the spread of the function around it.
  double chord(int64_t a, int64_t b) const { return b > a ? (at(b) - at(a)) / static_cast<double>(b - a) : 0; }
  /// May end early, with a part of the spread, when that is more than `most`.
  std::array<double, 2> spread(int64_t a, int64_t b, double slope, double most = INFINITY) const {
    constexpr int64_t kLanes = 4, kBlock = 64;  // lanes: no comparison waits for the one before
    std::array<double, kLanes> low, high;
    low.fill(INFINITY);
    high.fill(-INFINITY);
    for (int64_t q = a; q <= b;) {
      for (const int64_t end = std::min(q + kBlock, b + 1); q < end;) {
        for (int64_t lane = 0; lane < kLanes && q < end; ++lane, ++q) {
          const double e = at(q) - slope * static_cast<double>(q - zp_);
          low[size_t(lane)] = std::min(low[size_t(lane)], e);
          high[size_t(lane)] = std::max(high[size_t(lane)], e);
        }
      }
      for (size_t lane = 1; lane < size_t{kLanes}; ++lane) {
        low[0] = std::min(low[0], low[lane]);
        high[0] = std::max(high[0], high[lane]);
      }
      if (high[0] - low[0] > most) break;
    }
    return {low[0], high[0]};
  }
  /// Nothing moves in the outer sixteenth of the grid: what lies further in may join it as a constant.
  bool flat_at_last() const { return at(last()) - at(last() - static_cast<int64_t>(values_.size()) / 16) < 0.5; }
  bool flat_at_first() const { return at(first() + static_cast<int64_t>(values_.size()) / 16) - at(first()) < 0.5; }

  /// Flat segments are long and hold most of the inputs: they get a smaller share of the error, so that the mean falls
  /// for a little more of the worst.
  bool fits(int64_t a, int64_t b, double bound) const {
    const double slope = chord(a, b), most = 2 * bound * std::max(kFlatShare, std::pow(slope / steepest_, kFlatPower));
    const auto [low, high] = spread(a, b, slope, most);
    return high - low <= most;
  }

 private:
  int64_t first_, zp_, out_lo_, out_hi_, out_zp_;
  std::vector<double> values_;
  double steepest_ = 1e-9;
};

/// Longest lines from `from` to the end, each within `bound`; empty when more than `limit` are needed. Flat ends are
/// constants that are exact at the very end: half of all inputs may lie there.
std::vector<Line> cover(const Target& t, int64_t from, double bound, int limit) {
  std::vector<Line> lines;
  int64_t guess = 1, a = from;
  if (from == t.first() && t.flat_at_first()) {
    while (a <= t.last() && t.at(a) <= t.at(from) + bound) ++a;
    lines.push_back({from, a - 1, 0});
  }
  while (a <= t.last()) {
    if (static_cast<int>(lines.size()) == limit) return {};
    if (t.flat_at_last() && t.at(a) >= t.at(t.last()) - bound) {
      lines.push_back({a, t.last(), 0});
      break;
    }
    int64_t good = a, step = guess, bad = t.last() + 1;  // [a, good] fits, [a, bad] does not
    while (good < t.last()) {
      const int64_t next = std::min(good + step, t.last());
      if (!t.fits(a, next, bound)) {
        bad = next;
        break;
      }
      good = next;
      step *= 2;
    }
    while (bad - good > 1) {
      const int64_t middle = good + (bad - good) / 2;
      (t.fits(a, middle, bound) ? good : bad) = middle;
    }
    guess = std::max<int64_t>(1, (good - a) / 2);
    lines.push_back({a, good, t.chord(a, good)});
    a = good + 1;
  }
  return lines;
}

/// The line through the origin that stays within `bound` of an odd function on [-m, m], m as large as possible.
Line central_line(const Target& t, double bound) {
  double low = 0, high = INFINITY;
  Line line{0, 0, 0};
  for (int64_t d = 1; t.zp() + d <= t.last() && t.zp() - d >= t.first(); ++d) {
    const double wanted = t.at(t.zp() + d), per = 1 / static_cast<double>(d);
    low = std::max(low, (wanted - bound) * per);
    high = std::min(high, (wanted + bound) * per);
    if (low > high) break;
    line = {-d, d, (low + high) / 2};
  }
  return line;
}

/// Segments right of the middle one, and their mirror images.
std::vector<Line> cover_odd(const Target& t, double bound, int limit) {
  const Line middle = central_line(t, bound);
  const int64_t start = t.zp() + middle.last + 1;
  std::vector<Line> right = cover(t, start, bound, (limit - 1) / 2);
  if (right.empty() && start <= t.last()) return {};
  std::vector<Line> lines;
  for (size_t i = right.size(); i-- > 0;) {
    const int64_t first = i + 1 == right.size() ? t.first() : 2 * t.zp() - right[i].last;
    lines.push_back({first, 2 * t.zp() - right[i].first, right[i].slope});
  }
  lines.push_back({right.empty() ? t.first() : t.zp() + middle.first, t.zp() + middle.last, middle.slope});
  lines.insert(lines.end(), right.begin(), right.end());
  return lines;
}

std::vector<Line> best_cover(const Target& t, bool odd, int segments) {
  const auto attempt = [&](double bound) {
    return odd ? cover_odd(t, bound, segments) : cover(t, t.first(), bound, segments);
  };
  double low = 0, high = t.at(t.last()) - t.at(t.first()) + 1;
  std::vector<Line> best = attempt(high);
  for (int i = 0; i < 40 && high - low > 1e-3 * high && high > 1e-3; ++i) {
    const double bound = (low + high) / 2;
    auto lines = attempt(bound);
    if (lines.empty()) {
      low = bound;
    } else {
      high = bound;
      best = std::move(lines);
    }
  }
  return best;
}

/// Right shift behind slope * (q - zp): as large as leaves the slope 15 bits, at least `least` so that it is no left
/// shift.
int slope_shift(double slope, int least) {
  if (!(slope > 0)) return std::max(least, 0);
  int exponent = 0;
  std::frexp(slope, &exponent);  // slope < 2^exponent
  return std::clamp(kSlopeBits - 1 - exponent, std::max(least, 0), 30);
}

struct Fitted {
  int32_t slope = 0;
  int shift = 0;
  double middle = 0;
};

Fitted fit_line(const Target& t, const Line& line, bool through_origin) {
  Fitted f;
  f.shift = slope_shift(line.slope, 0);
  f.slope = static_cast<int32_t>(std::nearbyint(std::ldexp(line.slope, f.shift)));
  if (through_origin) return f;
  const auto [low, high] = t.spread(line.first, line.last, std::ldexp(static_cast<double>(f.slope), -f.shift));
  f.middle = (low + high) / 2;
  if (f.slope == 0 && line.last == t.last()) f.middle = t.at(t.last());
  if (f.slope == 0 && line.first == t.first()) f.middle = t.at(t.first());
  return f;
}

void add_segment(GruTable& table, const Fitted& f, int32_t output_zp) {
  table.slope.push_back(f.slope);
  table.shift.push_back(f.shift);
  table.intercept.push_back(table.mode == GruTableMode::kFused
                                ? static_cast<int64_t>(std::nearbyint(std::ldexp(f.middle, f.shift)))
                                : static_cast<int64_t>(std::nearbyint(f.middle)) + output_zp);
}

/// Output before the clamp.
int64_t raw_value(const GruTable& table, size_t i, int64_t d, int32_t output_zp) {
  const int64_t product = int64_t{table.slope[i]} * d;
  if (table.mode == GruTableMode::kSeed) return rounding_shift(product, table.shift[i]) + table.intercept[i];
  return rounding_shift(product + table.intercept[i], table.shift[i]) + output_zp;
}

/// Clamped output of segment i.
int64_t segment_value(const GruTable& table, size_t i, int64_t d, const GruParam& out) {
  return std::clamp<int64_t>(raw_value(table, i, d, out.scale.zp), out.lo(), out.hi());
}

/// Moves each fitted line a little, as long as no error exceeds the table's worst, to where most outputs are right.
void refine_lines(const Target& t, const std::vector<Line>& lines, const GruParam& out, GruTable& table) {
  int64_t worst = 0;
  for (size_t i = 0; i < lines.size(); ++i)
    for (int64_t q = lines[i].first; q <= lines[i].last; ++q)
      worst = std::max(worst, std::abs(segment_value(table, i, q - t.zp(), out) - t.rounded(q)));
  for (size_t i = 0; i < lines.size(); ++i) {
    if (table.slope[i] == 0) continue;
    std::vector<int64_t> wanted;
    for (int64_t q = lines[i].first; q <= lines[i].last; ++q) wanted.push_back(t.rounded(q));
    const int64_t fitted = table.intercept[i];
    const double scale = table.mode == GruTableMode::kFused ? std::ldexp(1.0, table.shift[i]) : 8.0;
    const double reach = static_cast<double>(std::max<int64_t>(worst, 1)) / 8 * scale / 4;
    int64_t best = fitted, least = INT64_MAX;
    for (const int j : {0, 1, -1, 2, -2, 3, -3, 4, -4, 6, -6, 8, -8}) {
      table.intercept[i] = fitted + static_cast<int64_t>(std::nearbyint(j * reach));
      int64_t sum = 0, highest = 0;
      for (size_t q = 0; q < wanted.size() && sum < least; ++q) {
        const int64_t d = lines[i].first + static_cast<int64_t>(q) - t.zp();
        const int64_t e = std::abs(segment_value(table, i, d, out) - wanted[q]);
        sum += e;
        highest = std::max(highest, e);
      }
      if (highest > worst || sum >= least) continue;
      least = sum;
      best = table.intercept[i];
    }
    table.intercept[i] = best;
  }
}

/// Moves segment i up (or down) until its value at d is at least (at most) `wanted`.
void lift(GruTable& table, size_t i, int64_t d, int32_t zp, int64_t wanted, int sign) {
  const int64_t unit = table.mode == GruTableMode::kFused ? int64_t{1} << table.shift[i] : 1;
  while (sign * raw_value(table, i, d, zp) < sign * wanted) {
    const int64_t missing = sign * (wanted - raw_value(table, i, d, zp));
    // The last step in small units: the value must not overshoot by the rounding.
    table.intercept[i] += sign * (missing > 1 ? (missing - 1) * unit : std::max<int64_t>(1, unit / 8));
  }
}

/// From the centre outwards, a segment that begins below its neighbour's end is moved up (left half: down).
void make_monotone(GruTable& table, const GruParam& in, int32_t out_zp, bool odd) {
  const int64_t zp = in.scale.zp;
  const size_t n = table.slope.size();
  size_t centre = 0;  // the segment that holds the zero point
  while (centre + 1 < n && table.threshold[centre] <= zp) ++centre;
  for (size_t i = centre + 1; i < n; ++i) {
    const int64_t d = table.threshold[i - 1] - zp;
    lift(table, i, d, out_zp, raw_value(table, i - 1, d - 1, out_zp), 1);
  }
  for (size_t i = centre; i-- > 0;) {
    if (odd) {  // the mirror image of the right half
      table.intercept[i] = 2 * (table.mode == GruTableMode::kSeed ? out_zp : 0) - table.intercept[n - 1 - i];
      continue;
    }
    const int64_t d = table.threshold[i] - zp;
    lift(table, i, d - 1, out_zp, raw_value(table, i + 1, d, out_zp), -1);
  }
}

}  // namespace

int default_segments(int output_bits) { return output_bits <= 8 ? 16 : output_bits <= 12 ? 64 : 256; }

int32_t rounded_function(GruFunction f, const GruParam& in, const GruParam& out, int64_t q) {
  const double y = std::nearbyint(std::ldexp(value_of(f, dequantize_value(q, in.scale)), out.scale.shift));
  return static_cast<int32_t>(
      std::clamp(y + out.scale.zp, static_cast<double>(out.lo()), static_cast<double>(out.hi())));
}

GruTable make_table(GruFunction f, const GruParam& in, const GruParam& out, GruTableMode mode, int segments) {
  GruTable table;
  table.mode = mode;
  if (mode == GruTableMode::kDirect) {
    for (int64_t q = in.lo(); q <= in.hi(); ++q) table.direct.push_back(rounded_function(f, in, out, q));
    return table;
  }
  const Target target(f, in, out);
  const bool odd = f == GruFunction::kTanh && in.scale.zp == 0 && out.scale.zp == 0 && !in.format.is_unsigned;
  const std::vector<Line> lines = best_cover(target, odd, segments);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) table.threshold.push_back(static_cast<int32_t>(lines[i].first));
    add_segment(table, fit_line(target, lines[i], odd && 2 * i + 1 == lines.size()), out.scale.zp);
  }
  refine_lines(target, lines, out, table);
  if (odd) table.intercept[lines.size() / 2] = mode == GruTableMode::kSeed ? out.scale.zp : 0;
  make_monotone(table, in, out.scale.zp, odd);
  return table;
}

int32_t evaluate_table(const GruTable& table, const GruParam& in, const GruParam& out, int64_t q) {
  if (table.mode == GruTableMode::kDirect) return table.direct[static_cast<size_t>(q - in.lo())];
  const auto i = static_cast<size_t>(std::upper_bound(table.threshold.begin(), table.threshold.end(), q) -
                                     table.threshold.begin());
  const int64_t y = raw_value(table, i, q - in.scale.zp, out.scale.zp);
  return static_cast<int32_t>(std::clamp<int64_t>(y, out.lo(), out.hi()));
}

GruTableError table_error(GruFunction f, const GruTable& table, const GruParam& in, const GruParam& out) {
  GruTableError error;
  for (int64_t q = in.lo(); q <= in.hi(); ++q) {
    const double e = std::abs(evaluate_table(table, in, out, q) - rounded_function(f, in, out, q));
    error.max = std::max(error.max, e);
    error.mean += e;
  }
  error.mean /= static_cast<double>(int64_t{in.hi()} - in.lo() + 1);
  return error;
}

int64_t GruTable::bytes() const {
  return static_cast<int64_t>(4 * (threshold.size() + slope.size() + shift.size()) + 8 * intercept.size() +
                              2 * direct.size());
}

}  // namespace lowbit
