#pragma once
// Memory and time that one file or one text may still use. Whoever makes or reads text charges it first, so that no
// chain of steps, each harmless alone, takes more memory or time than the size of what came in allows.

#include <cstddef>
#include <cstdint>

#include "lowbit/error.h"

namespace lowbit::text {

class Budget {
 public:
  /// For reading a file of that size. Exhausted: kCorrupt.
  static Budget of_file(std::size_t bytes);
  /// For building what a description with that much text describes. Exhausted: kCorrupt.
  static Budget of_spec(std::size_t bytes);
  /// For one call on a text of that size. Exhausted: kInvalidArgument.
  static Budget of_text(std::size_t bytes);

  /// Memory, counted when it is made. False once the budget is exhausted.
  bool spend_bytes(std::size_t n) { return spend(bytes_, n, "memory"); }
  /// Work; a step is about a nanosecond, such as a byte copied or compared.
  bool spend_steps(std::size_t n) { return spend(steps_, n, "steps"); }
  /// Spends n times `each`.
  bool spend_bytes(std::size_t n, std::size_t each) { return spend_product(bytes_, n, each, "memory"); }
  bool spend_steps(std::size_t n, std::size_t each) { return spend_product(steps_, n, each, "steps"); }
  /// Memory that was spent and is free again.
  void give_back(std::size_t n) { bytes_ += n; }
  bool exhausted() const { return exhausted_ != nullptr; }

  /// CPU time for regular expressions, whose steps cannot be counted from outside. Starts counting at the first call.
  /// False when `next_s` more seconds would pass the limit.
  bool has_time(double next_s = 0);

  /// The error, once the budget is exhausted; `where` names what did it.
  Status status(const char* where) const { return exhausted() ? error(where) : Status{}; }

 private:
  Status error(const char* where) const;
  Budget(ErrorCode code, std::size_t size, std::size_t bytes, std::size_t steps, double seconds)
      : code_(code), size_(size), bytes_(bytes), steps_(steps), seconds_(seconds) {}
  bool spend(std::size_t& left, std::size_t n, const char* what) {
    if (exhausted()) return false;
    if (n > left) {
      exhausted_ = what;
      return false;
    }
    left -= n;
    return true;
  }
  bool spend_product(std::size_t& left, std::size_t n, std::size_t each, const char* what);

  ErrorCode code_;
  std::size_t size_, bytes_, steps_;
  double seconds_, started_s_ = -1;
  const char* exhausted_ = nullptr;
};

/// CPU time of this thread.
double thread_seconds();

}  // namespace lowbit::text
