#pragma once
// y = x W^T for a weight in any format: the kernel is chosen once, at load, and kept in a plan.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/threads.h"
#include "format/qtensor.h"
#include "kernels/api.h"
#include "kernels/fp8_api.h"
#include "lowbit/error.h"
#include "ops/activation_rounding.h"
#include "ops/blocking.h"
#include "tensor/arena.h"

namespace lowbit {

/// How int8 codes of x lie in memory, and which columns share a scale.
struct CodeLayout {
  int64_t group = 0;  // columns that share a scale; 0: the row
  int64_t run = 0,
          stride =
              0;  // PanelShape::run and its group of x: columns [j * run, (j + 1) * run) lie at j * stride; 0: as in x
  bool exact_scales = false;  // ActivationRounding::exact_scales
  bool operator==(const CodeLayout&) const = default;
};

/// Activation rows prepared once and shared by every plan that reads them (q, k, v; gate, up).
/// Holds x itself (kF32), its int8 codes with one scale per row or per group of columns, or the values of its fp8 codes
/// with one per group, as the plans ask for.
class ActivationRows {
 public:
  /// Reads x [m, k], row stride ldx in elements. Codes are made when a plan first asks for them, halves at once. `x`
  /// must stay alive and unchanged until then.
  Status prepare(Activation kind, const float* x, int64_t m, int64_t k, int64_t ldx, Isa isa, ThreadPool& pool);
  /// kInt8 only: the same of RMS-normed rows, x * f * weight [k] with f = 1 / sqrt(mean(x^2) + eps), normed when they
  /// are quantized. With scales per group the bits are those of rms_norm_rows() and prepare(); with one scale of a row
  /// codes are those of x * weight, and the scale is times f (docs/numerics.md#activations). `weight` must stay alive,
  /// too.
  Status prepare_normed(const float* x, const float* weight, float eps, int64_t m, int64_t k, int64_t ldx, Isa isa,
                        ThreadPool& pool);
  /// kInt8 rows [m, k] that write_codes() fills part by part, with a scale per group of `layout`, whose runs are none,
  /// and no others.
  Status expect_codes(int64_t m, int64_t k, const CodeLayout& layout, Isa isa);
  /// Columns of the groups that are expected.
  int64_t expected_group() const { return expected_->layout.group; }
  /// Quantizes columns [first, first + n) of row m: x [n]. `first` is a multiple of the group, n too or the row ends
  /// there. Different parts may be written at the same time. Not with a rounding that clips, which needs whole rows.
  void write_codes(int64_t m, int64_t first, int64_t n, const float* x);
  /// How the codes of all rows prepared from here on are rounded.
  void set_rounding(const ActivationRounding& rounding) { rounding_ = rounding; }
  /// Makes what `plan` will read, so that run_matmuls() need not.
  Status prepare_for(const class MatmulPlan& plan, ThreadPool& pool);

  Activation kind() const { return kind_; }
  int64_t m() const { return m_; }
  int64_t k() const { return k_; }

 private:
  friend class MatmulPlan;
  friend class MatmulBatch;
  /// int8 codes of x [m, ld], zero-padded rows.
  struct Codes {
    CodeLayout layout;
    int64_t ld = 0, groups = 0;
    bool valid = false;
    Buffer values;  // int8; grows, never shrinks, so that decoding allocates nothing
    Buffer scales;  // f32 [m] or [m, groups]
    Buffer sums;    // int32, of the codes that share a scale
  };
  /// x in E4M3: values of its codes f32 [m, ld], or in pairs of bf16 (MatmulKernel::pairs), scales f32 [m, groups].
  struct Fp8Rows {
    int64_t group = 0, groups = 0, ld = 0;
    bool in_pairs = false, valid = false;
    Buffer codes, values, scales;  // grow, never shrink
  };
  struct Sums {
    CodeLayout layout;
    int64_t group = 0;
    int factor = 0;  // of code_sums; 0: sums for offsets
    bool valid = false;
    Buffer values;
  };
  void reset(Activation kind, const float* x, int64_t m, int64_t k, int64_t ldx, Isa isa);
  /// Codes of one row of `x`, not yet spread. Not for the default rounding.
  void round_row(const float* x, float factor, int64_t width, Codes& entry, int64_t row) const;
  /// The entry for a layout, with room for m_ rows.
  Result<Codes*> room_for_codes(const CodeLayout& layout);
  /// Computed on first use for each layout and kept for the plans that follow.
  Result<const Codes*> codes(const CodeLayout& layout, ThreadPool& pool);
  Result<const Fp8Rows*> fp8_rows(int64_t group, bool in_pairs, ThreadPool& pool);
  /// MatmulArgs::x_sums [m, groups] of x, or of its codes. Columns of `group` and `k` are counted as they lie in
  /// memory.
  Result<const float*> sums(int64_t group, int64_t k, const CodeLayout& layout, ThreadPool& pool);
  /// MatmulArgs::code_sums [m, x_groups]: factor * sum xq.
  Result<const int32_t*> code_sums(int64_t x_group, int64_t k, const CodeLayout& layout, int factor, ThreadPool& pool);
  int64_t rows_per_chunk() const;
  Sums& sums_entry(int64_t group, const CodeLayout& layout, int factor);
  /// `bytes` for each of `workers`; grows, never shrinks.
  Result<uint8_t*> scratch(int64_t bytes, int workers);

  Activation kind_ = Activation::kF32;
  ActivationRounding rounding_;
  const VectorOps* ops_ = nullptr;
  const Fp8Kernels* fp8_ = nullptr;
  const float* x_ = nullptr;     // null after expect_codes()
  const float* norm_ = nullptr;  // with prepare_normed()
  float eps_ = 0;
  int64_t m_ = 0, k_ = 0, ldx_ = 0;
  std::vector<Codes> codes_;
  std::vector<Fp8Rows> fp8_rows_;
  std::vector<Sums> sums_;
  Codes* expected_ = nullptr;
  Buffer rounded_;  // x [m, k] in the values of halves
  Buffer scratch_;
};

struct MatmulOptions {
  Activation activation = Activation::kInt8;
  Isa isa = Isa::kScalar;  // the strongest table to look in
  bool reference = false;  // the ref/ kernel, whatever else exists
  /// Columns of x that share a scale (kInt8, kFp8); 0: the whole row, or for kFp8 the weight's groups. Where the
  /// weight's own groups are smaller, or no multiple of it, they are used instead.
  int64_t activation_group = 0;
  const KernelTable* first_table = nullptr;  // looked in before those of `isa`: for tests
  Arena* arena = nullptr;                    // where the prepared weight lies; null: in memory of its own
  /// kInt8: the scales of x are ActivationRounding::exact_scales, activation_group is kExactScaleColumns.
  bool exact_scales = false;
};

/// Columns per exact sum: with scales of x per group of columns `activation_group`, where that divides the weight's own
/// groups, else these.
int64_t x_group_of(const QTensor& w, int64_t activation_group);

/// Why sums with int8 activations are sums of floats; empty: they are integers, or integers give the same bits. So they
/// do for a codebook of integers within int8 whose groups are so short that no sum of floats is rounded
/// (docs/numerics.md#matmul).
std::string why_float_sums(const QTensor& w, int64_t activation_group);
/// Whether sums over kExactScaleColumns columns have no more bits than ActivationRounding::exact_scales leaves room
/// for, and one scale of the weight: integers of four bits or fewer in such groups.
bool takes_exact_scales(const QTensor& w);
/// Whether a codebook's entries are integers of 8 bits.
bool has_integers_alone(const QTensor& w);

/// For a reason: "; trellis2 becomes codebook4 in memory", or nothing where both are the same.
std::string about_expanded(FormatId stored, FormatId in_memory);

/// All of a MatmulPlan but its weight.
class MatmulChoice {
 protected:
  const MatmulKernel* kernel_ = nullptr;
  const Blocking* blocking_ = nullptr;
  FormatId format_ = FormatId::kF32;
  Activation activation_ = Activation::kInt8;
  int64_t n_ = 0, k_ = 0, panel_bytes_ = 0;
  int64_t activation_group_ = 0;  // columns of x that share a scale, 0: the row (kInt8)
  bool exact_scales_ = false;
  PanelShape shape_;
  std::vector<float> codebook_;
  std::vector<int8_t> table_int8_;  // with a kernel that reads them
  std::string kernel_name_, reason_;
};

/// One weight prepared for one device. Immutable; run() may be called from one thread at a time per
/// ActivationRows.
class MatmulPlan : private MatmulChoice {
 public:
  /// Chooses the kernel and re-orders the weight for it. After that the QTensor may go away.
  /// Dense weights (f32, f16, bf16) always take f32 activations: ask activation() what to prepare. fp8 activations go
  /// with fp8 weights without zero points. Errors: kUnsupported (no kernel for format x activation), kOutOfMemory, and
  /// what check_qtensor says.
  static Result<MatmulPlan> make(const QTensor& w, const MatmulOptions& options, ThreadPool& pool);

  /// A copy of the plan with panels of its own: timings that read weights from memory need several. Error:
  /// kOutOfMemory.
  Result<MatmulPlan> copy(ThreadPool& pool) const;

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
  const Blocking& blocking() const { return *blocking_; }
  /// For the loop before one over `columns` outputs, of which this plan's are the first.
  ReadAhead read_ahead(int64_t columns) const;
  /// kInt8, kFp8: the codes it reads.
  CodeLayout code_layout() const {
    return {activation_group_, shape_.run, shape_.run > 0 ? shape_.x_group : 0, exact_scales_};
  }

 private:
  friend class ActivationRows;
  friend class MatmulBatch;
  Buffer panels_;
};

/// A product of several that read the same tokens.
struct MatmulCall {
  const MatmulPlan* plan = nullptr;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, n], row stride ldy in elements
  int64_t ldy = 0;
};

/// MatmulPlan::run() of every call, in one loop of the pool: small products share it evenly, and threads meet once.
/// `tuner`: tries cuts in the first calls of a shape; null: the table's. `next`: what the loop behind it reads.
/// Errors: those of MatmulPlan::run().
Status run_matmuls(std::span<const MatmulCall> calls, ActivationRows& x, ThreadPool& pool,
                   BlockingTuner* tuner = nullptr, const ReadAhead& next = {});

/// gate.y = act(gate.y) * up.y by `glu` behind both products, by whoever computed the columns; gate and up have the
/// same n. `next_rows`: those that were told to expect gate.y's codes get them; null: none does. Numerics: the bits of
/// run_matmuls(), then `glu` and quantize_groups_int8 on whole rows. Errors: those of MatmulPlan::run(),
/// kShapeMismatch.
Status run_gated(const MatmulCall& gate, const MatmulCall& up, GluFunction glu, ActivationRows& x,
                 ActivationRows* next_rows, ThreadPool& pool, BlockingTuner* tuner = nullptr,
                 const ReadAhead& next = {});

}  // namespace lowbit
