#include "quantize/table_fit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "quantize/grid.h"

namespace lowbit {
namespace {

double normal_cdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752); }
double normal_pdf(double x) { return 0.39894228040143268 * std::exp(-0.5 * x * x); }

std::vector<float> as_floats(const std::vector<double>& table) { return {table.begin(), table.end()}; }

/// A group's scale, and the entries that its elements then take.
struct GroupCodes {
  AffineFit fit;
  std::vector<uint8_t> codes;
};

void choose_codes(const Grid& grid, const Group& g, GroupCodes& group) {
  const AffineFit& fit = group.fit;
  group.codes.resize(static_cast<size_t>(g.n));
  for (int64_t i = 0; fit.scale != 0 && i < g.n; ++i)
    group.codes[static_cast<size_t>(i)] =
        grid.codes[static_cast<size_t>(grid.nearest((g.x[i] - fit.offset) / fit.scale))];
}

/// Adds one group's share to each entry's sums of h s (x - offset) and h s s.
void accumulate(const Group& g, const GroupCodes& group, std::vector<double>& numerator,
                std::vector<double>& denominator) {
  const AffineFit& fit = group.fit;
  if (fit.scale == 0) return;
  for (int64_t i = 0; i < g.n; ++i) {
    const uint8_t code = group.codes[static_cast<size_t>(i)];
    const double hs = (g.h ? g.h[i] : 1.0) * fit.scale;
    numerator[code] += hs * (static_cast<double>(g.x[i]) - fit.offset);
    denominator[code] += hs * fit.scale;
  }
}

struct Table {
  std::vector<float> entries;
  double error = INFINITY;
};

/// Groups are fitted by several threads and added up in their order.
Table improve_table(FormatId format, std::span<const Group> sample, OffsetRule rule, std::vector<float> start,
                    ThreadPool& pool) {
  constexpr int kRounds = 10;
  const auto count = static_cast<int64_t>(sample.size());
  Table table{std::move(start)};
  std::vector<GroupCodes> fitted(sample.size());
  for (int round = 0; round < kRounds; ++round) {
    const Grid grid = make_grid(format, table.entries);
    pool.parallel_for(count, 1, [&](int64_t begin, int64_t end, int) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        AffineFit& fit = fitted[i].fit;
        fit = round == 0 ? fit_least_squares(grid, sample[i], rule) : refit(grid, sample[i], fit, rule);
        choose_codes(grid, sample[i], fitted[i]);
      }
    });
    std::vector<double> numerator(table.entries.size()), denominator(table.entries.size());
    for (size_t i = 0; i < sample.size(); ++i) accumulate(sample[i], fitted[i], numerator, denominator);
    std::vector<double> next(table.entries.begin(), table.entries.end());
    for (size_t c = 0; c < next.size(); ++c)
      if (denominator[c] > 0) next[c] = numerator[c] / denominator[c];
    if (round + 1 == kRounds) to_integers(next);
    std::sort(next.begin(), next.end());
    table.entries = as_floats(next);
  }
  const Grid grid = make_grid(format, table.entries);
  std::vector<double> errors(sample.size());
  pool.parallel_for(count, 1, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const AffineFit fit = fit_least_squares(grid, sample[i], rule);
      if (fit.scale != 0) errors[i] = residual_sums(grid, sample[i], fit.scale, fit.offset).dd;
    }
  });
  table.error = std::accumulate(errors.begin(), errors.end(), 0.0);
  return table;
}

/// Entry i: the (i + 1/2) / entries quantile of all elements, each group brought to 127 at most.
std::vector<float> quantile_table(std::span<const Group> sample, int entries) {
  std::vector<float> all;
  for (const Group& g : sample)
    for (int64_t i = 0; i < g.n; ++i) all.push_back(g.x[i] * (127.0f / g.abs_max));
  std::sort(all.begin(), all.end());
  std::vector<float> table = lloyd_max_table(entries);
  for (size_t i = 0; i < table.size() && !all.empty(); ++i)
    table[i] = all[(2 * i + 1) * all.size() / (2 * table.size())];
  return table;
}

std::vector<float> find_lloyd_max_table(int entries) {
  const auto n = static_cast<size_t>(entries);
  std::vector<double> t(n);
  const std::vector<float> start = normal_quantiles(entries);
  std::copy(start.begin(), start.end(), t.begin());
  for (int round = 0; round < 2000; ++round) {
    double change = 0, left = -40;
    for (size_t i = 0; i < n; ++i) {
      const double right = i + 1 < n ? 0.5 * (t[i] + t[i + 1]) : 40.0;
      const double mass = normal_cdf(right) - normal_cdf(left);
      const double centre = (normal_pdf(left) - normal_pdf(right)) / mass;
      change = std::max(change, std::fabs(centre - t[i]));
      t[i] = centre;
      left = right;
    }
    if (change < 1e-9) break;
  }
  for (size_t i = 0; i < n / 2; ++i) {  // exactly symmetric
    const double half = 0.5 * (t[n - 1 - i] - t[i]);
    t[i] = -half;
    t[n - 1 - i] = half;
  }
  to_integers(t);
  return as_floats(t);
}

}  // namespace

void to_integers(std::vector<double>& table) {
  double largest = 0;
  for (double t : table) largest = std::max(largest, std::fabs(t));
  for (double& t : table) t = largest > 0 ? std::nearbyint(t * (127.0 / largest)) : 0.0;
}

std::vector<float> normal_quantiles(int count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    double low = -9, high = 9;
    const double p = (i + 0.5) / count;
    for (int bit = 0; bit < 60; ++bit) {
      const double middle = 0.5 * (low + high);
      (normal_cdf(middle) < p ? low : high) = middle;
    }
    x[static_cast<size_t>(i)] = static_cast<float>(0.5 * (low + high));
  }
  return x;
}

std::vector<float> lloyd_max_table(int entries) {
  static std::mutex mutex;
  static std::map<int, std::vector<float>> known;  // finding one takes milliseconds, and every fit of a table asks
  const std::lock_guard lock(mutex);
  std::vector<float>& table = known[entries];
  if (table.empty()) table = find_lloyd_max_table(entries);
  return table;
}

std::vector<float> kmeans_table(FormatId format, std::span<const Group> sample, OffsetRule rule, ThreadPool& pool) {
  const int entries = 1 << format_info(format).code_bits;
  Table best = improve_table(format, sample, rule, lloyd_max_table(entries), pool);
  const Table other = improve_table(format, sample, rule, quantile_table(sample, entries), pool);
  if (other.error < best.error) best = other;
  const bool usable = best.entries.front() < 0 && best.entries.back() > 0;
  return usable ? best.entries : lloyd_max_table(entries);
}

}  // namespace lowbit
