#include "quantize/allocation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

namespace lowbit {
namespace {

double saving(const SizeChoice& from, const SizeChoice& to) {
  return (from.loss - to.loss) / static_cast<double>(to.bytes - from.bytes);
}

/// Indices of a part's choices on the lower convex hull of loss over bytes, smallest first.
std::vector<size_t> hull_of(const std::vector<SizeChoice>& choices) {
  std::vector<size_t> order(choices.size()), hull;
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return choices[a].bytes != choices[b].bytes ? choices[a].bytes < choices[b].bytes
                                                : choices[a].loss < choices[b].loss;
  });
  for (const size_t i : order) {
    if (!hull.empty() && choices[i].loss >= choices[hull.back()].loss) continue;  // larger and no better
    while (hull.size() > 1 &&
           saving(choices[hull[hull.size() - 2]], choices[hull.back()]) <= saving(choices[hull.back()], choices[i]))
      hull.pop_back();
    hull.push_back(i);
  }
  return hull;
}

Status check(const std::vector<std::vector<SizeChoice>>& parts) {
  for (const auto& part : parts) {
    if (part.empty()) return fail(ErrorCode::kInvalidArgument, "allocation", "a part without choices", "at least one");
    for (const SizeChoice& c : part)
      if (!std::isfinite(c.loss))
        return fail(ErrorCode::kInvalidArgument, "allocation", "a loss of " + std::to_string(c.loss), "finite losses");
  }
  return {};
}

}  // namespace

Result<std::vector<size_t>> allocate_sizes(const std::vector<std::vector<SizeChoice>>& parts, int64_t budget) {
  if (auto status = check(parts); !status) return tl::unexpected<Error>(std::move(status.error()));
  std::vector<std::vector<size_t>> hulls;
  std::vector<size_t> at(parts.size(), 0);
  int64_t used = 0;
  for (const auto& part : parts) {
    hulls.push_back(hull_of(part));
    used += part[hulls.back()[0]].bytes;
  }
  if (used > budget)
    return fail(ErrorCode::kInvalidArgument, "size budget", std::to_string(budget) + " bytes",
                "at least " + std::to_string(used) + ", with the smallest choice everywhere");
  for (;;) {
    size_t best = parts.size();
    double most = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      if (at[p] + 1 >= hulls[p].size()) continue;
      const SizeChoice &from = parts[p][hulls[p][at[p]]], &to = parts[p][hulls[p][at[p] + 1]];
      if (used + to.bytes - from.bytes > budget) continue;
      if (const double gain = saving(from, to); gain > most) {
        most = gain;
        best = p;
      }
    }
    if (best == parts.size()) break;
    used += parts[best][hulls[best][at[best] + 1]].bytes - parts[best][hulls[best][at[best]]].bytes;
    ++at[best];
  }
  std::vector<size_t> chosen;
  for (size_t p = 0; p < parts.size(); ++p) chosen.push_back(hulls[p][at[p]]);
  return chosen;
}

std::vector<size_t> worthwhile_sizes(const std::vector<SizeChoice>& choices) { return hull_of(choices); }

}  // namespace lowbit
