#include "runtime/scheduler.h"

#include <algorithm>

namespace lowbit {

void share_rows(std::span<const int64_t> left, int64_t budget, std::span<int64_t> rows) {
  std::fill(rows.begin(), rows.end(), 0);
  const auto give = [&](size_t i, int64_t most) {
    const int64_t more = std::min({left[i] - rows[i], most, budget});
    rows[i] += more;
    budget -= more;
  };
  const auto prompt = std::find_if(left.begin(), left.end(), [](int64_t n) { return n > 1; });
  if (prompt != left.end()) give(size_t(prompt - left.begin()), budget / 4);
  for (size_t i = 0; i < left.size(); ++i)
    if (left[i] == 1) give(i, 1);
  for (size_t i = 0; i < left.size(); ++i) give(i, left[i]);
}

}  // namespace lowbit
