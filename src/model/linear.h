#pragma once
// A linear layer of a loaded model, and the activation rows that several of them share.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/matmul.h"

namespace lowbit {

/// y = x W^T + bias, prepared for one device.
struct Linear {
  std::string name;  // of the weight tensor
  MatmulPlan plan;
  std::vector<float> bias;  // [n] or empty

  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

/// What a layer takes when the model is asked for `wanted`: int8 only where the weights are integers, whose sums it keeps exact.
Activation layer_activation(FormatId weights, Activation wanted);

/// Sees the input of every linear layer before it runs: x [m, k], dense rows. For calibration.
using LinearObserver = std::function<void(const std::string& name, const float* x, int64_t m, int64_t k)>;

/// Rows that go into one or more linear layers. A recipe may mix integer and float layers behind
/// one norm, so each activation kind is prepared on first use and kept until the next set().
class LinearInput {
 public:
  LinearInput(Isa isa, ThreadPool& pool) : isa_(isa), pool_(&pool) {}

  /// x [m, k], dense rows; must stay alive and unchanged until the last run().
  void set(const float* x, int64_t m, int64_t k);
  /// y [m, n], row stride ldy in elements.
  Status run(const Linear& linear, float* y, int64_t ldy);

  void set_observer(LinearObserver observer) { observer_ = std::move(observer); }

 private:
  struct Rows {
    ActivationRows rows;
    bool ready = false;
  };
  Isa isa_;
  ThreadPool* pool_;
  const float* x_ = nullptr;
  int64_t m_ = 0, k_ = 0;
  Rows float_rows_, int8_rows_;
  LinearObserver observer_;
};

}  // namespace lowbit
