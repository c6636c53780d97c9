#pragma once
// y = x W^T on a GPU: the weight is re-ordered into device memory and its kernel chosen once, at load.

#include <array>
#include <cstdint>
#include <string>

#include "base/threads.h"
#include "format/qtensor.h"
#include "kernels/cuda_api.h"
#include "lowbit/error.h"
#include "ops/activation_rounding.h"
#include "tensor/arena.h"

namespace lowbit {

struct DeviceMatmulOptions {
  Activation activation = Activation::kInt8;
  /// Columns of x that share a scale (kInt8); 0: the whole row. As MatmulOptions has it.
  int64_t activation_group = 0;
  bool fallback = false;  // the kernel that takes everything, whatever else exists
  /// Rows of x that run() will see at most; 0: any number. Kernels for few and for many rows may want the weight in
  /// different orders; with at most 8 rows only one of them is kept.
  int64_t most_rows = 0;
  Arena* arena = nullptr;      // of the device: where the weight lies; null: in memory of its own
  ThreadPool* pool = nullptr;  // shares the work of expanding codes; null: the caller's thread does it
  /// With groups of 32 and weights in groups of 128: scales of x are cuda::RowCodes::exact_scales.
  bool exact_scales = false;
};

/// Rows of x in device memory.
struct DeviceRows {
  const void* x = nullptr;  // [m, ldx]
  cuda::Element element = cuda::Element::kF32;
  int64_t m = 0, ldx = 0;
  /// int8 x: its scales, [m], or [m, groups] when the plan's groups() say so.
  const float* scales = nullptr;
};

/// One weight on the current device. Immutable; run() may be called from several threads, each with a stream and a
/// workspace of its own.
class DeviceMatmulPlan {
 public:
  /// Errors: kUnsupported (no CUDA, no kernel), kOutOfMemory, and what check_qtensor says.
  static Result<DeviceMatmulPlan> make(const QTensor& w, const DeviceMatmulOptions& options);
  /// Rows in a packing that only kernels derive (int2-planes, ...): codes [n, row_bytes(format, k)] in host memory,
  /// scales [n, groups], offsets likewise or null. For tests and for weights that come in such an order.
  static Result<DeviceMatmulPlan> make_derived(FormatId format, const uint8_t* codes, int64_t n, int64_t k,
                                               const float* scales, const float* offsets, int64_t group,
                                               const DeviceMatmulOptions& options);

  /// Enqueues y[m, n] = sum_k x[m, k] real(w)[n, k] + bias[n] on `stream`. Allocates nothing, waits for nothing, may be
  /// captured. bias [n] or null, y [m, ldy]: device memory. `workspace`: workspace_bytes(), null when that is 0.
  /// Errors: kShapeMismatch, kInvalidArgument.
  Status run(const DeviceRows& x, const float* bias, void* y, cuda::Element y_element, int64_t ldy, uint8_t* workspace,
             void* stream, bool overlap = true) const;
  /// The launches of run(), for callers that enqueue them together with something else; x, y and workspace may come
  /// later.
  cuda::Matmul call(const DeviceRows& x, const float* bias, void* y, cuda::Element y_element, int64_t ldy,
                    uint8_t* workspace, void* stream, bool overlap = true) const;
  int64_t workspace_bytes(int64_t m, cuda::Element x) const {
    return order_for(m, x).kernel->workspace_bytes(shape(m), x);
  }

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  int64_t group() const { return group_; }
  int64_t groups() const { return groups_; }
  bool x_groups() const { return x_groups_; }  // x has a scale per group, not per row
  bool exact_scales() const { return exact_scales_; }
  /// That share a scale of x, as names say them; 0: the row.
  int64_t scale_columns() const { return exact_scales_ ? kExactScaleColumns : x_groups_ ? group_ : 0; }
  Activation activation() const { return activation_; }
  /// The kernel for `m` tokens, of codes where activations are int8.
  const cuda::MatmulKernel& kernel(int64_t m = 1) const { return *order_for(m, own_element()).kernel; }
  std::string kernel_name(int64_t m = 1) const { return kernel_name(m, own_element()); }
  std::string kernel_name(int64_t m, cuda::Element x) const;
  const std::string& reason() const { return reason_; }
  /// Whether tensor cores multiply rows in f16 and bf16 as they are; else something else is faster.
  bool takes_halves() const;
  int64_t resident_bytes() const { return few_.codes.size() + many_.codes.size() + factor_bytes(); }
  int64_t factor_bytes() const { return scales_.size() + offsets_.size() + table_.size(); }
  /// Codes in the order for `m` tokens.
  int64_t code_bytes(int64_t m = 1) const { return order_for(m, own_element()).codes.size(); }

 private:
  static constexpr int kBrackets = 15;  // of tokens: up to 1, 2, 4, ..., and more
  /// The weight as one kernel reads it.
  struct Order {
    const cuda::MatmulKernel* kernel = nullptr;
    int64_t row_bytes = 0;
    Buffer codes;
    std::array<int32_t, kBrackets> instances{};  // of the kernel, by bracket
  };
  static int bracket(int64_t m);
  cuda::Element own_element() const {
    return activation_ == Activation::kInt8 ? cuda::Element::kInt8 : cuda::Element::kF32;
  }
  /// A GEMV quantizes floats itself, for which other kernels have a launch; of codes it is faster with one row alone.
  const Order& order_for(int64_t m, cuda::Element x) const {
    const int64_t few = x == cuda::Element::kInt8 ? 1 : few_.kernel->most_rows;
    return many_.kernel != nullptr && m > few ? many_ : few_;
  }
  /// Of the kernels' product.
  cuda::MatmulShape shape(int64_t m) const;
  int64_t kernel_k() const { return shape(1).k; }
  Status choose(FormatId format, const DeviceMatmulOptions& options);
  Status upload_rows(const uint8_t* rows, int64_t row_bytes, Arena* arena);
  Status upload_order(Order& order, const uint8_t* rows, int64_t row_bytes, Arena* arena) const;
  /// `to` = factor(row, scale) in the kernels' order.
  template <class Factor>
  Status upload_factors(Buffer& to, const Factor& factor, Arena* arena) const;

  Order few_, many_;  // many_ without a kernel: few_ takes any number of rows
  Activation activation_ = Activation::kInt8;
  int64_t n_ = 0, k_ = 0, group_ = 0, groups_ = 1, groups_per_scale_ = 1;
  bool x_groups_ = false, has_offsets_ = false;
  bool exact_scales_ = false;
  int64_t wide_ = 0;  // columns that a group has in the kernels' order; 0: its own
  Buffer scales_, offsets_, table_;
  std::array<uint32_t, 4> table_bytes_ = {};  // of a table of integers
  std::string scaling_, reason_;
};

/// The kernels that make() would choose, without a device: for `inspect --kernels`. The reason tells which one more
/// tokens get; its instances are those for the device at hand, or an H200.
struct DeviceKernelChoice {
  std::string name, reason;
};
Result<DeviceKernelChoice> choose_device_kernel(const QTensor& w, const DeviceMatmulOptions& options);
/// DeviceMatmulPlan::takes_halves() of a plan for f32 activations, before it is made.
bool takes_halves(const QTensor& w);

}  // namespace lowbit
