#pragma once
// A linear layer of a loaded model, and the activation rows that several of them share.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "ops/matmul.h"

namespace lowbit {

/// y = x W^T + bias, prepared for one device.
struct Linear {
  std::string name;  // of the weight tensor
  MatmulPlan plan;
  std::vector<float> bias;  // [n] or empty

  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

/// What a layer takes when the model is asked for `wanted` with `group` columns of x per scale.
struct LayerActivation {
  Activation kind = Activation::kF32;
  std::string reason;  // why not what was wanted; empty: it is
};
/// int8 only where the sums are those of integers, which it keeps exact: not for fp8, nor for all tables (why_float_sums()).
LayerActivation layer_activation(const QTensor& w, Activation wanted, int64_t group);

/// Columns of x per scale in a layer whose model leaves that to its weights: 0, one scale per token, for ternary and binary weights
/// with one scale per row or more, as such networks are trained (docs/adr/0047-scales-of-x-as-trained.md); else `group`.
int64_t trained_activation_group(const QTensor& w, int64_t group);

/// Sees the input of every linear layer before it runs: x [m, k], dense rows. For calibration.
using LinearObserver = std::function<void(const std::string& name, const float* x, int64_t m, int64_t k)>;

/// A layer and where its outputs go: y [m, n], row stride ldy in elements.
struct LinearCall {
  const Linear* linear = nullptr;
  float* y = nullptr;
  int64_t ldy = 0;
};

/// Layers that will run at once.
using NextLinears = std::initializer_list<const Linear*>;

/// RMS norm of rows x [m, k], dense, by weight [k].
struct NormedRows {
  const float* x = nullptr;
  const float* weight = nullptr;
  float eps = 0;
  int64_t m = 0, k = 0;
};

/// Rows that go into one or more linear layers. A recipe may mix integer and float layers behind
/// one norm, so each activation kind is prepared on first use and kept until the next set().
class LinearInput {
 public:
  LinearInput(Isa isa, ThreadPool& pool) : isa_(isa), pool_(&pool), ops_(&vector_ops(isa)) {}

  /// How rows that are set from here on are rounded for integer layers.
  void set_rounding(const ActivationRounding& rounding);
  /// x [m, k], dense rows; must stay alive and unchanged until the last run().
  void set(const float* x, int64_t m, int64_t k);
  /// The normed rows, and what `readers` need of them: int8 codes straight from the rows when all of them take int8, else
  /// the rows themselves in `normed` [m, k], which must stay alive as x above.
  Status set_normed(const NormedRows& rows, std::span<const Linear* const> readers, float* normed);
  /// All layers at once; each reads the rows that were set. At most four. `next`: the layers that run behind these, which
  /// threads that wait begin to fetch when there are few rows.
  Status run(std::span<const LinearCall> calls, NextLinears next = {});
  Status run(const Linear& linear, float* y, int64_t ldy, NextLinears next = {});
  ReadAhead read_ahead(NextLinears next) const;
  /// gate.y = silu(gate.y) * up.y behind both layers, and becomes what is set: rows for `reader`, quantized on the way
  /// where that takes int8 codes with a scale per group. `hadamard` > 0: each so many columns are transformed first
  /// (VectorOps::hadamard).
  Status run_gated(const LinearCall& gate, const LinearCall& up, const Linear& reader, int64_t hadamard = 0);

  /// The observer sees what is set as this layer's input.
  Status show(const Linear& linear) const {
    observe(linear);
    return {};
  }
  void set_observer(LinearObserver observer) { observer_ = std::move(observer); }
  /// Tries cuts of products in the first calls of each shape (ops/blocking.h).
  void tune() { tuner_ = std::make_unique<BlockingTuner>(); }

 private:
  struct Rows {
    ActivationRows rows;
    bool ready = false;
  };
  Result<ActivationRows*> rows_for(Activation kind);
  /// Sets rows that the gate left in y [m, width].
  void set_gated(float* y, int64_t m, int64_t width, int64_t hadamard);
  void observe(const Linear& linear) const {
    if (observer_) observer_(linear.name, x_, m_, k_);
  }

  Isa isa_;
  ThreadPool* pool_;
  const VectorOps* ops_;
  const float* x_ = nullptr;
  int64_t m_ = 0, k_ = 0;
  Rows float_rows_, int8_rows_, next_rows_;
  LinearObserver observer_;
  std::unique_ptr<BlockingTuner> tuner_;  // null: no tuning
  bool clips_ = false;                    // rows are rounded whole
};

}  // namespace lowbit
