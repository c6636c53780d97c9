#pragma once
// The limit of every fuzz target: one input takes at most 2 seconds of CPU time. libFuzzer's own limits are given by
// scripts/fuzz.sh: -rss_limit_mb for memory, and -timeout for inputs that wait without working; replay_main.cc has
// limits of its own.

#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace lowbit::fuzz {

/// Aborts, which libFuzzer reports with the input, when the time between construction and destruction is over the
/// limit.
class TimeLimit {
 public:
  TimeLimit() : start_s_(now_s()) {}
  ~TimeLimit() {
    if (now_s() - start_s_ <= kSeconds) return;
    std::fprintf(stderr, "fuzz: one input took %.1f s of CPU time, over %.0f s\n", now_s() - start_s_, kSeconds);
    std::abort();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  // AddressSanitizer and the coverage counters take three times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
  static constexpr double kSeconds = 2 * 3;
#else
  static constexpr double kSeconds = 2;
#endif
  static double now_s() {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  double start_s_;
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Cuts off what comes before the first byte 0: inputs of several texts.
inline std::string_view next_part(std::string_view& rest) {
  const std::size_t end = rest.find('\0');
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return part;
}

/// For what must hold whatever the input is.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

}  // namespace lowbit::fuzz
