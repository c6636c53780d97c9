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
/// Holds x itself (kF32) or its int8 codes, with one scale per row or per group of columns, as the plans ask for.
class ActivationRows {
 public:
  /// Reads x [m, k], row stride ldx in elements. int8 codes are made when a plan first asks for them. `x` must stay alive
  /// and unchanged until then.
  Status prepare(Activation kind, const float* x, int64_t m, int64_t k, int64_t ldx, Isa isa, ThreadPool& pool);

  Activation kind() const { return kind_; }
  int64_t m() const { return m_; }
  int64_t k() const { return k_; }

 private:
  friend class MatmulPlan;
  /// int8 codes of x [m, ldxq], zero-padded rows.
  struct Codes {
    int64_t group = 0;  // columns that share a scale; 0: the row
    bool valid = false;
    Buffer values;  // int8; grows, never shrinks, so that decoding allocates nothing
    Buffer scales;  // f32 [m] or [m, groups]
  };
  struct Sums {
    int64_t code_group = 0, group = 0;
    int factor = 0;  // of code_sums; 0: sums for offsets
    bool valid = false;
    Buffer values;
  };
  /// Computed on first use for each group size and kept for the plans that follow.
  Result<const Codes*> codes(int64_t group, ThreadPool& pool);
  /// MatmulArgs::x_sums [m, groups] of x, or of its codes with scales per `code_group`.
  Result<const float*> sums(int64_t group, int64_t code_group, ThreadPool& pool);
  /// MatmulArgs::code_sums [m, segments]: factor * sum xq.
  Result<const int32_t*> code_sums(int64_t segment, int64_t code_group, int factor, ThreadPool& pool);
  int64_t rows_per_chunk() const;
  Sums& sums_entry(int64_t group, int64_t code_group, int factor);
  /// `bytes` for each of `workers`; grows, never shrinks.
  Result<uint8_t*> scratch(int64_t bytes, int workers);

  Activation kind_ = Activation::kF32;
  Isa isa_ = Isa::kScalar;
  const float* x_ = nullptr;
  int64_t m_ = 0, k_ = 0, ldx_ = 0, ldxq_ = 0;
  std::vector<Codes> codes_;
  std::vector<Sums> sums_;
  Buffer scratch_;
};

struct MatmulOptions {
  Activation activation = Activation::kInt8;
  Isa isa = Isa::kScalar;  // the strongest table to look in
  bool reference = false;  // the ref/ kernel, whatever else exists
  /// Columns of x that share a scale (kInt8); 0: the whole row. Where the weight's own groups are smaller, or no multiple
  /// of it, they are used instead.
  int64_t activation_group = 0;
  const KernelTable* first_table = nullptr;  // looked in before those of `isa`: for tests
};

/// Columns per exact sum: with scales of x per group of columns `activation_group`, where that divides the weight's own
/// groups, else these.
int64_t segment_of(const QTensor& w, int64_t activation_group);

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
  int64_t activation_group_ = 0;  // shape_.group when x has a scale per group, 0 when per row
  PanelShape shape_;
  Buffer panels_;
  std::vector<float> codebook_;
  std::string kernel_name_, reason_;
};

}  // namespace lowbit
