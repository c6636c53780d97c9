#include "quantize/trellis_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "quantize/trellis_fit.h"

namespace lowbit {
namespace {

constexpr FormatId kSearched[] = {FormatId::kTrellis2, FormatId::kTrellis3};

struct SearchProblem {
  FormatId format;
  int64_t rows, k, group;
  std::vector<float> table, x, scales, h;
  std::vector<uint8_t> codes, scratch;

  SearchProblem(FormatId id, int64_t rows_, int64_t k_, int64_t group_, uint64_t seed)
      : format(id), rows(rows_), k(k_), group(group_), table(gaussian_table(id)) {
    Rng rng(seed);
    for (int64_t i = 0; i < rows * k; ++i) x.push_back(float(rng.normal()));
    for (int64_t i = 0; i < rows * groups(); ++i) scales.push_back(float(0.01 + 0.02 * rng.uniform()));
    for (int64_t i = 0; i < k; ++i) h.push_back(float(rng.uniform()));
    codes.resize(x.size());
  }
  int64_t groups() const { return (k + group - 1) / group; }
  TrellisRows job(int64_t first, int64_t count) {
    TrellisRows all;
    all.trellis = trellis_of(format);
    all.table = table.data();
    all.rows = count;
    all.k = k;
    all.group = group;
    all.h = h.data();
    for (int64_t r = 0; r < count; ++r) {
      all.x[r] = x.data() + (first + r) * k;
      all.scales[r] = scales.data() + (first + r) * groups();
      all.codes[r] = codes.data() + (first + r) * k;
    }
    return all;
  }
  double cost(int64_t row, int64_t i, unsigned code) const {
    const double d = x[size_t(row * k + i)] - scales[size_t(row * groups() + i / group)] * double(table[code]);
    return h[size_t(i)] * d * d;
  }
  double cost(int64_t row) const {
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += cost(row, i, codes[size_t(row * k + i)]);
    return sum;
  }
  /// The least cost of all paths from column i and `state` on.
  double least(int64_t row, int64_t i, unsigned state) const {
    if (i == k) return 0;
    const TrellisInfo& t = *trellis_of(format);
    double best = std::numeric_limits<double>::infinity();
    for (unsigned window = state << t.stored_bits; window < (state + 1) << t.stored_bits; ++window)
      best = std::min(best, cost(row, i, t.codes[window]) + least(row, i + 1, window % t.states));
    return best;
  }
};

TEST(trellis_search, finds_the_best_of_all_paths) {
  for (const FormatId id : kSearched)
    for (const int64_t k : {1, 2, 3, 4, 5, 6}) {
      SearchProblem p(id, 5, k, 3, uint64_t(k));
      search_trellis(p.job(0, 5), p.scratch);
      for (int64_t r = 0; r < 5; ++r) {
        std::vector<uint8_t> row(size_t(row_bytes(id, k)));
        EXPECT_EQ(format_ops(id).pack(p.codes.data() + r * k, k, row.data()), k) << "not on the trellis";
        const double best = p.least(r, 0, 0);
        EXPECT_NEAR(p.cost(r), best, 1e-5 * best) << format_info(id).name << " row " << r << " of " << k;
      }
    }
}

/// In double, over windows, from the last column to the first: nothing that the search does.
double least_of_long_row(const SearchProblem& p, int64_t row) {
  const TrellisInfo& t = *trellis_of(p.format);
  std::vector<double> after(t.states, 0.0);
  for (int64_t i = p.k - 1; i >= 0; --i) {
    std::vector<double> now(t.states, std::numeric_limits<double>::infinity());
    for (unsigned window = 0; window < t.states << t.stored_bits; ++window)
      now[window >> t.stored_bits] =
          std::min(now[window >> t.stored_bits], p.cost(row, i, t.codes[window]) + after[window % t.states]);
    after = now;
  }
  return after[0];
}

TEST(trellis_search, long_rows_cost_as_little_as_in_double) {
  for (const FormatId id : kSearched) {
    SearchProblem p(id, 3, 1500, 40, 7);
    search_trellis(p.job(0, 3), p.scratch);
    for (int64_t r = 0; r < 3; ++r) EXPECT_NEAR(p.cost(r), least_of_long_row(p, r), 1e-6 * p.cost(r));
  }
}

TEST(trellis_search, rows_do_not_influence_each_other) {
  for (const FormatId id : kSearched) {
    SearchProblem p(id, kTrellisLanes, 77, 16, 8);
    search_trellis(p.job(0, kTrellisLanes), p.scratch);
    const std::vector<uint8_t> together = p.codes;
    for (int64_t r = 0; r < kTrellisLanes; ++r) search_trellis(p.job(r, 1), p.scratch);
    EXPECT_EQ(p.codes, together);
  }
}

TEST(trellis_search, a_scale_of_zero_leaves_a_row_that_can_be_stored) {
  for (const FormatId id : kSearched) {
    SearchProblem p(id, 2, 50, 10, 9);
    std::fill(p.scales.begin() + 1, p.scales.begin() + 4, 0.0f);
    std::fill(p.x.begin(), p.x.begin() + 30, 0.0f);
    search_trellis(p.job(0, 2), p.scratch);
    std::vector<uint8_t> row(size_t(row_bytes(id, 50)));
    EXPECT_EQ(format_ops(id).pack(p.codes.data(), 50, row.data()), 50);
  }
}

}  // namespace
}  // namespace lowbit
