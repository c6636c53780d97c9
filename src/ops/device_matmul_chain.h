#pragma once
// Matmuls with one row of x that follow each other with nothing but a choice of columns between them, as one launch on a GPU.
// It is for chains of linear layers (experts of a perceptron, adapters, projections in a row) and for measuring what the linears of a
// token cost when nothing else stands between them; a transformer's layers have norms and attention there.

#include <cstdint>
#include <span>
#include <vector>

#include "ops/device_matmul.h"

namespace lowbit {

/// A chain on the current device. Immutable; run() may be called from several threads, each with a stream and a workspace of its
/// own.
class DeviceMatmulChain {
 public:
  /// y_i = real(w_i) x_i, x_0 as run() gets it, x_(i+1) the first k of plan i + 1 outputs of plan i, rounded to `between` (f32: as
  /// they are; bf16: half the traffic between thread blocks). Bits are those of run() of one plan after the other.
  /// Plans: ternary weights with one scale per row, made with most_rows = 1; at most 128 of them, 7680 columns each. They are kept.
  /// Errors: kInvalidArgument, kShapeMismatch, kUnsupported (no CUDA, compute capability below 9, other weights, more rows than
  /// the shared memory of the device holds tiles of), kOutOfMemory.
  static Result<DeviceMatmulChain> make(std::span<const DeviceMatmulPlan> plans, cuda::Element between);

  /// Device memory for run(), ready for its first use. Every launch leaves it ready for the next one.
  Result<Buffer> make_workspace() const;
  /// Enqueues y [n] f32 of the last plan. x [k] of a float type. Allocates nothing, waits for nothing, may be captured. Two launches
  /// that may run at a time need a workspace each, and a device that runs the thread blocks of both: its multiprocessors are all
  /// in use, so launches of another stream wait, or this one does. Errors: kInvalidArgument, kUnsupported.
  Status run(const void* x, cuda::Element x_element, float* y, Buffer& workspace, void* stream) const;

  int64_t size() const { return chain_.count; }
  int64_t n() const { return chain_.n; }
  int64_t k() const { return chain_.k; }

 private:
  std::vector<DeviceMatmulPlan> plans_;  // whose weights the chain reads
  cuda::MatmulChain chain_;
};

}  // namespace lowbit
