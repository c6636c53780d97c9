#pragma once
// Weights prepared for the CPU, and the activation rows that several of them share.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/step.h"
#include "kernels/registry.h"
#include "ops/matmul.h"

namespace lowbit {

/// y = x W^T + bias; rows of the weight where it is an embedding.
struct CpuWeight final : Weight {
  std::string name;  // of the tensor
  MatmulPlan plan;
  std::vector<float> bias;  // [n] or empty
  QTensor table;            // of WeightUse::kRows; borrows the source's bytes where it can
  bool multiplies = false;  // has a plan
  ActivationRounding rounding;

  WeightInfo info() const override;
  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

/// A layer and where its outputs go: y [m, n], row stride ldy in elements.
struct LinearCall {
  const CpuWeight* linear = nullptr;
  float* y = nullptr;
  int64_t ldy = 0;
};

/// Layers that read the same rows, or that will run at once.
using Linears = std::span<const CpuWeight* const>;

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

  /// How rows that are set from here on are rounded.
  void set_rounding(const ActivationRounding& rounding);
  /// x [m, k], dense rows; must stay alive and unchanged until the last run().
  void set(const float* x, int64_t m, int64_t k);
  /// The normed rows, and what `readers` need of them: int8 codes straight from the rows, and, unless all of them take
  /// such, the rows themselves in `normed` [m, k], which must stay alive as x above.
  Status set_normed(const NormedRows& rows, Linears readers, float* normed);
  /// All layers at once; each reads the rows that were set. At most four. `next`: the layers that run behind these,
  /// which threads that wait begin to fetch when there are few rows.
  Status run(std::span<const LinearCall> calls, Linears next = {});
  ReadAhead read_ahead(Linears next) const;
  /// gate.y = act(gate.y) * up.y by `glu` behind both layers, and becomes what is set. With a `reader` it is quantized
  /// on the way for that layer, where it takes int8 codes with a scale per group; gate.y is then not for others to
  /// read.
  Status run_gated(const LinearCall& gate, const LinearCall& up, Glu glu, const CpuWeight* reader, Linears next = {});
  /// Tries cuts of products in the first calls of each shape (ops/blocking.h).
  void tune() { tuner_ = std::make_unique<BlockingTuner>(); }

 private:
  struct Rows {
    ActivationRows rows;
    bool ready = false;
  };
  Result<ActivationRows*> rows_for(Activation kind);
  /// Whether run_gated() may write codes for it.
  bool takes_codes(const CpuWeight& reader) const;

  Isa isa_;
  ThreadPool* pool_;
  const VectorOps* ops_;
  const float* x_ = nullptr;
  int64_t m_ = 0, k_ = 0;
  Rows float_rows_, int8_rows_, fp8_rows_, next_rows_;
  std::unique_ptr<BlockingTuner> tuner_;  // null: no tuning
  bool clips_ = false;                    // rows are rounded whole
};

}  // namespace lowbit
