#pragma once
// Observers: what range a stream of activations takes, and the integer grid that suits it.
//
// An observer sees batches of numbers and yields a Range. All are deterministic; MinMax, Percentile
// and Histogram also do not depend on the order of what they see, and can be merged.
// NaN and infinities: never enter a range; they are counted in skipped(), and the caller decides
// whether that is an error. Nothing finite seen: the range is [0, 0].

#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

namespace lowbit {

/// Every range contains 0: min <= 0 <= max.
struct Range {
  float min = 0, max = 0;
  bool operator==(const Range&) const = default;
};

template <class O>
concept Observer = requires(O o, const O& c, std::span<const float> batch) {
  o.observe(batch);
  { c.range() } -> std::same_as<Range>;
  { c.skipped() } -> std::same_as<int64_t>;
};

class MinMaxObserver {
 public:
  void observe(std::span<const float> batch);
  void merge(const MinMaxObserver& other);
  Range range() const { return range_; }
  int64_t skipped() const { return skipped_; }

 private:
  Range range_;
  int64_t skipped_ = 0;
};

/// Exponential moving average of each step's minimum and maximum, separately: the first step sets
/// them, then m <- 0.9 m + 0.1 m_step. One observe() is one time step over the batch; the state
/// carries over batches. Steps without a finite value change nothing. Source: seed 001; gru.md 3.7.
class EmaObserver {
 public:
  explicit EmaObserver(float keep = 0.9f) : keep_(keep) {}
  void observe(std::span<const float> step);
  Range range() const;
  int64_t skipped() const { return skipped_; }

 private:
  float keep_, min_ = 0, max_ = 0;
  bool started_ = false;
  int64_t skipped_ = 0;
};

/// Counts in equal bins on both sides of 0. The bin width is the power of two for which the largest
/// magnitude just fits, and doubles (merging pairs of bins) when a larger one arrives: the counts
/// depend on the multiset of values alone.
class Histogram {
 public:
  static constexpr int kBins = 4096;  // per side

  void observe(std::span<const float> batch);
  void merge(const Histogram& other);
  Range range() const { return range_; }  // exact
  int64_t skipped() const { return skipped_; }
  int64_t count() const { return count_; }

  /// A histogram as a file holds it: bins of 2^bin_exponent, counts as below (shorter is filled with zeros).
  static Histogram from_counts(Range range, int bin_exponent, std::span<const int64_t> positive,
                               std::span<const int64_t> negative);

  double bin_width() const;
  /// Bin i of the positive (or negative) side holds magnitudes in [i, i + 1) * bin_width().
  std::span<const int64_t> positive() const { return positive_; }
  std::span<const int64_t> negative() const { return negative_; }

 private:
  void grow(int exponent);

  Range range_;
  int exponent_ = kEmpty;  // magnitudes are < 2^exponent_
  static constexpr int kEmpty = -200;
  std::vector<int64_t> positive_, negative_;
  int64_t count_ = 0, skipped_ = 0;
};

/// [quantile(1 - p), quantile(p)], 0 included, to the resolution of the histogram's bins and never
/// beyond the exact range. p in (0.5, 1]; 1 is minmax.
class PercentileObserver {
 public:
  explicit PercentileObserver(double p) : p_(p) {}
  void observe(std::span<const float> batch) { histogram_.observe(batch); }
  void merge(const PercentileObserver& other) { histogram_.merge(other.histogram_); }
  Range range() const;
  int64_t skipped() const { return histogram_.skipped(); }

 private:
  double p_;
  Histogram histogram_;
};

/// Integers that values are rounded to. bits in 1..16.
struct IntGrid {
  int bits = 8;
  bool is_unsigned = false;
  bool symmetric = false;  // zero point 0
  int q_min() const { return is_unsigned ? 0 : -(1 << (bits - 1)); }
  int q_max() const { return is_unsigned ? (1 << bits) - 1 : (1 << (bits - 1)) - 1; }
};

/// real = (q - zero) * scale.
struct IntParams {
  float scale = 1;
  int zero = 0;
  int shift = 0;  // power-of-two scales: scale = 2^-shift
  bool operator==(const IntParams&) const = default;
};

/// The smallest scale whose grid covers the range: symmetric |max| -> q_max and |min| -> q_min,
/// whichever needs more; else q_max - q_min steps and a rounded zero point. [0, 0] gives scale 1.
IntParams real_params(Range range, const IntGrid& grid);

/// Power-of-two scales. `saturate` = 1 lets the largest value miss by one step, so that [-1, 1] in
/// int8 has shift 7 and [0, 1] in uint8 shift 8; 0 covers strictly. [0, 0]: shift = bits - 1
/// (unsigned: bits). Source: gru.md 3.7.
IntParams pow2_params(Range range, const IntGrid& grid, int saturate = 1);

/// sum count * error^2 over the bins' centres for these parameters, clipped errors times
/// clip_weight.
double quantization_error(const Histogram& h, const IntParams& p, const IntGrid& grid, double clip_weight = 1);

/// Among ranges shrunk to 1.00, 0.99, .. 0.21 of the seen one, the least error.
IntParams search_real_params(const Histogram& h, const IntGrid& grid);
/// Among the shift of pow2_params(.., 0) and three larger ones, the least error, with clipped
/// errors counting three times (SQNR search of the GRU's calibration; gru.md 3.7).
IntParams search_pow2_params(const Histogram& h, const IntGrid& grid, double clip_weight = 3);

}  // namespace lowbit
