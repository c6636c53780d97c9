#pragma once
// For tests only: the promise that every file below 10 MB is read in 2 seconds and in the file's size and 256 MiB.

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "text/budget.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOWBIT_TEST_SANITIZED 1
#else
#define LOWBIT_TEST_SANITIZED 0
#endif

namespace lowbit::test {

/// CPU time and peak memory between construction and check().
class Promise {
 public:
  Promise() : start_s_(text::thread_seconds()) {
    // Linux: the peak starts anew.
    if (std::FILE* f = std::fopen("/proc/self/clear_refs", "w")) {
      std::fputs("5", f);
      std::fclose(f);
    }
    start_kib_ = kib("VmRSS:");
  }
  /// `input_bytes`: what was read. Sanitizers take several times as much of both, so nothing is asked of them but to
  /// end.
  void check(std::size_t input_bytes, const std::string& what) const {
    const double seconds = text::thread_seconds() - start_s_;
    const auto grown = static_cast<long long>(kib("VmHWM:")) - static_cast<long long>(start_kib_);
    if (LOWBIT_TEST_SANITIZED) return;
    EXPECT_LT(seconds, 2.0) << what;
    EXPECT_LT(grown, static_cast<long long>((input_bytes >> 10) + 256 * 1024)) << what;
  }

 private:
  static std::size_t kib(const std::string& field) {
    std::ifstream in("/proc/self/status");
    for (std::string name; in >> name;)
      if (std::size_t n = 0; name == field && in >> n) return n;
    return 0;
  }
  double start_s_;
  std::size_t start_kib_ = 0;
};

}  // namespace lowbit::test
