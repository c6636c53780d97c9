#include "quantize/trellis_fit.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <utility>

#include "base/checked.h"
#include "base/rng.h"
#include "base/try.h"
#include "quantize/table_fit.h"
#include "quantize/trellis_search.h"

namespace lowbit {
namespace {

constexpr int kRounds = 4;                             // of scales and codes in turn
constexpr int kTableRounds = 8;                        // of codes, scales and entries in turn
constexpr int64_t kSampleElements = int64_t{1} << 16;  // of a table

/// A scale times the root mean square of gaussian_table(), where that suits a variable of mismatch 1.
constexpr double kStart = 1.16;

/// Up to kTrellisLanes rows in units of their own powers of two, with scales that are not rounded.
class RowBatch {
 public:
  RowBatch(const FitPlan& plan, int64_t rows)
      : plan_(&plan),
        x_(static_cast<size_t>(rows * plan.k)),
        scales_(static_cast<size_t>(rows * plan.scale_cols())),
        codes_(x_.size()),
        exponents_(static_cast<size_t>(rows)) {
    job_.trellis = plan.trellis;
    job_.rows = rows;
    job_.k = plan.k;
    job_.group = plan.group();
    job_.h = plan.weights.empty() ? nullptr : plan.weights.data();
    for (int64_t r = 0; r < rows; ++r) {
      job_.x[r] = x_.data() + r * plan.k;
      job_.scales[r] = scales(r);
      job_.codes[r] = codes(r);
    }
  }

  /// False when a weight is NaN or infinite.
  bool load(int64_t r, const float* w) {
    float largest = 0;
    for (int64_t i = 0; i < job_.k; ++i) {
      if (!std::isfinite(w[i])) return false;
      largest = std::max(largest, std::fabs(w[i]));
    }
    const int exponent = largest > 0 ? std::ilogb(largest) : 0;
    exponents_[static_cast<size_t>(r)] = exponent;
    float* const x = x_.data() + r * job_.k;
    for (int64_t i = 0; i < job_.k; ++i) x[i] = std::ldexp(w[i], -exponent);
    return true;
  }

  /// Every group's scale from its energy.
  void start(const std::vector<float>& table) {
    double energy = 0;
    for (const float v : table) energy += double(v) * v / static_cast<double>(table.size());
    for (int64_t r = 0; r < job_.rows; ++r)
      for_groups([&](int64_t g, int64_t begin, int64_t end) {
        double sum = 0, weight = 0;
        for (int64_t i = begin; i < end; ++i) {
          const double h = job_.h == nullptr ? 1.0 : job_.h[i], x = job_.x[r][i];
          sum += h * x * x;
          weight += h;
        }
        scales(r)[g] = static_cast<float>(kStart * std::sqrt(sum / (weight * energy)));
      });
  }

  void search(const std::vector<float>& table) {
    job_.table = table.data();
    search_trellis(job_, scratch_);
  }

  /// The best scales for the codes; those that codes would only be worse with become 0.
  void improve_scales(const std::vector<float>& table) {
    for (int64_t r = 0; r < job_.rows; ++r)
      for_groups([&](int64_t g, int64_t begin, int64_t end) {
        double xv = 0, vv = 0;
        for (int64_t i = begin; i < end; ++i) {
          const double h = job_.h == nullptr ? 1.0 : job_.h[i], v = table[codes(r)[i]];
          xv += h * job_.x[r][i] * v;
          vv += h * v * v;
        }
        scales(r)[g] = vv > 0 ? static_cast<float>(std::max(0.0, xv / vv)) : 0.0f;
      });
  }

  /// Adds each entry's sums of h s x and h s s.
  void accumulate(std::array<double, 16>& numerator, std::array<double, 16>& denominator) {
    for (int64_t r = 0; r < job_.rows; ++r)
      for_groups([&](int64_t g, int64_t begin, int64_t end) {
        const double s = scales(r)[g];
        for (int64_t i = begin; i < end; ++i) {
          const double hs = (job_.h == nullptr ? 1.0 : job_.h[i]) * s;
          numerator[codes(r)[i]] += hs * job_.x[r][i];
          denominator[codes(r)[i]] += hs * s;
        }
      });
  }

  /// The scales as stored, and from here on those.
  void round_scales(int64_t r, const ScaleRow& out) {
    const ScaleKind kind = plan_->options.scaling.scale;
    const int64_t cols = plan_->scale_cols();
    const int exponent = exponents_[static_cast<size_t>(r)];
    for (int64_t g = 0; g < cols; ++g) {
      const float scale = std::ldexp(scales(r)[g], exponent);
      out.scales[g] = kind == ScaleKind::kDouble ? scale : round_scale(scale, kind);
    }
    if (kind == ScaleKind::kDouble) double_quantize(out.scales, cols, out.supers);
    for (int64_t g = 0; g < cols; ++g) scales(r)[g] = std::ldexp(out.scales[g], -exponent);
  }

  uint8_t* codes(int64_t r) { return codes_.data() + r * job_.k; }

 private:
  float* scales(int64_t r) { return scales_.data() + r * plan_->scale_cols(); }
  template <class Call>
  void for_groups(const Call& call) const {
    for (int64_t g = 0, begin = 0; begin < job_.k; ++g, begin += job_.group)
      call(g, begin, std::min(begin + job_.group, job_.k));
  }

  const FitPlan* plan_;
  TrellisRows job_;
  std::vector<float> x_, scales_;
  std::vector<uint8_t> codes_, scratch_;
  std::vector<int> exponents_;
};

RowError error_of(const FitPlan& plan, const float* w, const float* scales, const uint8_t* codes) {
  const std::vector<float>& table = plan.options.codebook;
  const int64_t group = plan.group();
  RowError sums;
  std::vector<float> reals(static_cast<size_t>(plan.k));
  for (int64_t i = 0; i < plan.k; ++i) reals[static_cast<size_t>(i)] = table[codes[i]] * scales[i / group];
  add_error(w, reals.data(), plan.importance, plan.k, sums);
  return sums;
}

}  // namespace

std::vector<float> gaussian_table(FormatId format) {
  // Found with the masks of format/trellis.h, for a variable of mismatch 1.
  constexpr double kOfTwoBits[16] = {-2.117, -1.447, -1.020, -0.986, -0.585, -0.499, -0.225, -0.130,
                                     0.210,  0.126,  0.463,  0.640,  1.109,  0.869,  1.429,  2.123};
  constexpr double kOfThreeBits[16] = {-2.472, -1.768, -1.316, -0.987, -0.724, -0.494, -0.286, -0.086,
                                       0.108,  0.309,  0.521,  0.748,  1.007,  1.337,  1.794,  2.495};
  const double* const entries = trellis_of(format)->stored_bits == 2 ? kOfTwoBits : kOfThreeBits;
  std::vector<double> table(entries, entries + 16);
  to_integers(table);
  return {table.begin(), table.end()};
}

Result<std::vector<float>> fit_trellis_table(const FitPlan& plan, const RowReader& rows, ThreadPool& pool) {
  const int64_t wanted = std::max<int64_t>(kTrellisLanes, kSampleElements / plan.k), count = std::min(wanted, plan.n);
  std::vector<float> row(static_cast<size_t>(plan.k));
  std::vector<RowBatch> batches;
  for (int64_t i = 0; i < count; ++i) {
    if (i % kTrellisLanes == 0) batches.emplace_back(plan, std::min(kTrellisLanes, count - i));
    Rng rng(plan.options.seed, static_cast<uint64_t>(i));
    LOWBIT_TRY(
        rows(count == plan.n ? i : static_cast<int64_t>(rng.below(static_cast<uint64_t>(plan.n))), 1, row.data()));
    batches.back().load(i % kTrellisLanes,
                        row.data());  // one that is not finite stays zeros: the fit itself will name it
  }
  std::vector<float> table = gaussian_table(plan.options.format);
  for (RowBatch& batch : batches) batch.start(table);
  for (int round = 0; round < kTableRounds; ++round) {
    pool.parallel_for(static_cast<int64_t>(batches.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        batches[i].search(table);
        batches[i].improve_scales(table);
      }
    });
    std::array<double, 16> numerator{}, denominator{};
    for (RowBatch& batch : batches) batch.accumulate(numerator, denominator);
    std::vector<double> next(table.begin(), table.end());
    for (size_t c = 0; c < next.size(); ++c)
      if (denominator[c] > 0) next[c] = numerator[c] / denominator[c];
    if (round + 1 == kTableRounds) to_integers(next);
    table.assign(next.begin(), next.end());
  }
  const auto [low, high] = std::ranges::minmax(table);
  return low < 0 && high > 0 ? table : gaussian_table(plan.options.format);
}

bool fit_trellis_rows(const FitPlan& plan, const RowSlice& w, int64_t first, int64_t count, ScaleArrays& arrays,
                      uint8_t* codes, RowError* errors) {
  const std::vector<float>& table = plan.options.codebook;
  for (int64_t begin = 0; begin < count; begin += kTrellisLanes) {
    const int64_t rows = std::min(kTrellisLanes, count - begin);
    RowBatch batch(plan, rows);
    for (int64_t r = 0; r < rows; ++r)
      if (!batch.load(r, w.row(first + begin + r, plan.k))) return false;
    batch.start(table);
    for (int round = 0; round < kRounds; ++round) {
      batch.search(table);
      batch.improve_scales(table);
    }
    for (int64_t r = 0; r < rows; ++r) batch.round_scales(r, arrays.at(first + begin + r));
    if (codes == nullptr) continue;
    batch.search(table);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = begin + r;
      std::copy_n(batch.codes(r), plan.k, codes + row * plan.k);
      errors[row] = error_of(plan, w.row(first + row, plan.k), arrays.at(first + row).scales, batch.codes(r));
    }
  }
  return true;
}

Result<TrellisRowFits> fit_all_trellis_rows(const FitPlan& plan, const float* w, bool scales_alone, ThreadPool& pool) {
  TrellisRowFits fits{ScaleArrays(plan, 0, plan.n), std::vector<uint8_t>(static_cast<size_t>(plan.n * plan.k)),
                      std::vector<RowError>(static_cast<size_t>(plan.n))};
  const RowSlice slice{w, 0};
  std::atomic<bool> finite = true;
  pool.parallel_for(ceil_div(plan.n, kTrellisLanes), 1, [&](int64_t begin, int64_t end, int) {
    const int64_t first = begin * kTrellisLanes, count = std::min(plan.n, end * kTrellisLanes) - first;
    uint8_t* const codes = scales_alone ? nullptr : fits.codes.data() + first * plan.k;
    if (!fit_trellis_rows(plan, slice, first, count, fits.arrays, codes, fits.errors.data() + first)) finite = false;
  });
  if (!finite) return find_not_finite(slice, 0, plan.n, plan.k);
  return fits;
}

}  // namespace lowbit
