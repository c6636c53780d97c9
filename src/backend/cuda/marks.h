#pragma once
// Rows of a decoded token that tell by themselves whether they have been written (kernels/cuda/marks.cuh), so that a
// kernel need not wait for the end of the one before.

#include <vector>

#include "backend/step.h"
#include "kernels/cuda_step_api.h"

namespace lowbit {

/// Each step of a pass writes its rows to a place of its own, besides the slot. All places are unwritten before a pass.
class Marks {
 public:
  Status reserve(std::span<const Step> steps, std::span<const int64_t> widths);
  /// A pass begins; `rows`: of its batch.
  Status begin(int64_t rows, void* stream);
  /// The slot's row, if the step that wrote it last did so with marks; else null.
  const float* of(Slot slot) const { return places_[slot]; }
  /// A place for what the current step writes to the slot; null where nothing is marked.
  float* add(Slot slot);
  /// Slots that the current step wrote have no marks, except those that it add()ed.
  void end_step(const Step& step);
  /// The slot has been changed otherwise.
  void forget(Slot slot) { places_[slot] = nullptr; }
  int64_t bytes() const { return floats_.size(); }

 private:
  std::vector<int64_t> widths_;
  std::vector<float*> places_, next_;  // of slots
  Buffer floats_;
  int64_t used_ = 0;
  bool active_ = false;
};

}  // namespace lowbit
