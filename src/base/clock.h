#pragma once
// Wall-clock time of measurements.
#include <algorithm>
#include <chrono>

namespace lowbit {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Seconds of the quickest of the calls that fit `limit` seconds: on a shared machine only that says what the code
/// costs.
template <class F>
double best_seconds(double limit, const F& call) {
  double best = 1e9;
  const auto start = Clock::now();
  do {
    const auto before = Clock::now();
    call();
    best = std::min(best, seconds_since(before));
  } while (seconds_since(start) < limit);
  return best;
}

}  // namespace lowbit
