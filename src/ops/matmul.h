#pragma once
// y = x W^T for a weight in any format: the kernel is chosen once, at load, and kept in a plan.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/threads.h"
#include "format/qtensor.h"
#include "kernels/api.h"
#include "lowbit/error.h"

namespace lowbit {

/// Activation rows prepared once and shared by every plan that reads them (q, k, v; gate, up).
/// Holds x itself (kF32) or its int8 codes, scales and sums per `sum_group` columns.
class ActivationRows {
 public:
  /// Reads x [m, k], row stride ldx in elements. For kInt8 quantizes each row on its own. `x` must
  /// stay alive.
  Status prepare(Activation kind, const float* x, int64_t m, int64_t k, int64_t ldx, Isa isa, ThreadPool& pool);

  Activation kind() const { return kind_; }
  int64_t m() const { return m_; }
  int64_t k() const { return k_; }

 private:
  friend class MatmulPlan;
  /// Sums per group [m, groups], computed on first use for each group size and kept for the plans that follow.
  Result<const float*> sums(int64_t group, ThreadPool& pool);
  /// `bytes` for each of `workers`; grows, never shrinks.
  Result<uint8_t*> scratch(int64_t bytes, int workers);

  Activation kind_ = Activation::kF32;
  const float* x_ = nullptr;
  int64_t m_ = 0, k_ = 0, ldx_ = 0, ldxq_ = 0;
  Buffer codes_;   // int8 [capacity, ldxq]; grows, never shrinks, so that decoding allocates nothing
  Buffer scales_;  // f32 [capacity]
  struct Sums {
    int64_t group = 0;
    bool valid = false;
    Buffer values;
  };
  std::vector<Sums> sums_;
  Buffer scratch_;
};

struct MatmulOptions {
  Activation activation = Activation::kInt8;
  Isa isa = Isa::kScalar;  // the strongest table to look in
  bool reference = false;  // the ref/ kernel, whatever else exists
};

/// One weight prepared for one device. Immutable; run() may be called from one thread at a time per
/// ActivationRows.
class MatmulPlan {
 public:
  /// Chooses the kernel and re-orders the weight for it. After that the QTensor may go away.
  /// Dense weights (f32, f16, bf16) always take f32 activations: ask activation() what to prepare.
  /// Errors: kUnsupported (no kernel for format x activation), kOutOfMemory, and what check_qtensor
  /// says.
  static Result<MatmulPlan> make(const QTensor& w, const MatmulOptions& options, ThreadPool& pool);

  /// y[m, n] = sum_k x[m,k] real(w)[n,k] + bias[n].  bias: [n] or null. ldy in elements.
  /// Errors: kShapeMismatch when x has another k or another activation kind.
  Status run(ActivationRows& x, const float* bias, float* y, int64_t ldy, ThreadPool& pool) const;

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  FormatId format() const { return format_; }
  Activation activation() const { return activation_; }
  const MatmulKernel& kernel() const { return *kernel_; }
  const std::string& kernel_name() const { return kernel_name_; }  // full name, scaling included
  const std::string& reason() const { return reason_; }            // why this kernel, for people
  int64_t resident_bytes() const { return panels_.size(); }

 private:
  const MatmulKernel* kernel_ = nullptr;
  FormatId format_ = FormatId::kF32;
  Activation activation_ = Activation::kInt8;
  int64_t n_ = 0, k_ = 0, panel_bytes_ = 0;
  PanelShape shape_;
  Buffer panels_;
  std::vector<float> codebook_;
  std::string kernel_name_, reason_;
};

}  // namespace lowbit
