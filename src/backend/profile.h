#pragma once
// Where the time of a forward pass goes. Off unless a Profile is given; then two readings of the clock per step.

#include <array>
#include <chrono>
#include <cstdint>

namespace lowbit {

/// Steps of a forward pass. A step includes the preparation of what it reads, unless it is a step of its own here.
enum class ModelStep : uint8_t {
  kEmbed,      // embedding rows, and cos and sin of the positions
  kNorm,       // norms, with the quantization of their results
  kQkv,        // projections to queries, keys and values
  kRotate,     // norms of heads, rotation, new rows of the KV cache
  kAttention,  // softmax(q k) v
  kOutput,     // its quantization and projection
  kGateUp,     // both projections, act(gate) * up and its quantization
  kDown,       // the projection back
  kAdd,        // residual additions
  kHead,       // logits
  kCount,
};
const char* model_step_name(ModelStep step);

struct StepTime {
  int64_t calls = 0;
  double seconds = 0;
  double bytes = 0;       // of weights, or of keys and values, that were read
  double operations = 0;  // 2 per multiplication of a weight, key or value
};

class Profile {
 public:
  StepTime& at(ModelStep step) { return steps_[static_cast<size_t>(step)]; }
  const StepTime& at(ModelStep step) const { return steps_[static_cast<size_t>(step)]; }
  void clear() { steps_ = {}; }

 private:
  std::array<StepTime, static_cast<size_t>(ModelStep::kCount)> steps_;
};

/// Adds the time until its end to a step; does nothing without a profile.
class StepTimer {
 public:
  StepTimer(Profile* profile, ModelStep step, double bytes = 0, double operations = 0)
      : step_(profile == nullptr ? nullptr : &profile->at(step)) {
    if (step_ == nullptr) return;
    step_->bytes += bytes;
    step_->operations += operations;
    start_ = std::chrono::steady_clock::now();
  }
  ~StepTimer() {
    if (step_ == nullptr) return;
    ++step_->calls;
    step_->seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

 private:
  StepTime* step_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace lowbit
