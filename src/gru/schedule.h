#pragma once
// Which rows of x and y belong to a step: sequences of unequal length, both directions, both layouts.

#include <cstdint>
#include <vector>

#include "lowbit/gru.h"

namespace lowbit {

/// Sequences sorted by length, longest first, so that those still running at a step are a prefix.
class GruSchedule {
 public:
  /// The input's shapes fit a network of `input` columns and `state_size` states, its numbers are in range. NaN and
  /// infinities are refused if `finite`. Errors: kShapeMismatch, kInvalidArgument.
  static Result<GruSchedule> make(const GruInput& in, int64_t input, int64_t state_size, bool finite);

  int64_t steps() const { return steps_; }
  int64_t batch() const { return static_cast<int64_t>(order_.size()); }
  int64_t rows() const { return steps_ * batch(); }
  /// Sequences that have a step s.
  int64_t active(int64_t s) const { return active_[static_cast<size_t>(s)]; }
  /// The i-th longest sequence.
  int64_t sequence(int64_t i) const { return order_[static_cast<size_t>(i)]; }
  int64_t length(int64_t i) const { return length_[static_cast<size_t>(i)]; }  // of the i-th longest
  /// Row in x and y of step s of the i-th sequence; direction 1 starts at the sequence's end.
  int64_t row(int direction, int64_t s, int64_t i) const {
    const int64_t t = direction == 0 ? s : length_[static_cast<size_t>(i)] - 1 - s, n = sequence(i);
    return batch_first_ ? n * steps_ + t : t * batch() + n;
  }

 private:
  int64_t steps_ = 0;
  bool batch_first_ = false;
  std::vector<int64_t> order_, length_, active_;
};

}  // namespace lowbit
