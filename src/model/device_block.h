#pragma once
// One block of a transformer on the GPU, in f32, with the bits of the CPU: for calibration, whose windows are many and independent.

#include <cstdint>
#include <functional>
#include <string>

#include "base/threads.h"
#include "format/qtensor.h"
#include "kernels/cuda_block_api.h"
#include "lowbit/error.h"
#include "model/model_spec.h"
#include "model/source.h"
#include "tensor/buffer.h"

namespace lowbit {

/// y = x W^T + bias on f32 rows in device memory, any format of W: its values as f32, its scales and offsets beside them.
class DeviceLinear {
 public:
  /// bias [n] or null. Errors: kOutOfMemory, kUnsupported (no GPU).
  static Result<DeviceLinear> upload(const std::string& name, const QTensor& w, const float* bias, ThreadPool& pool);
  /// x [m, k] to y [m, n], on the default stream.
  Status run(const float* x, int64_t m, float* y) const;
  const std::string& name() const { return name_; }
  int64_t k() const { return k_; }

 private:
  std::string name_;
  int64_t n_ = 0, k_ = 0, group_ = 0;
  Buffer values_, scales_, offsets_, bias_;
};

/// Sees the input of every linear layer before it runs: x [m, k] in device memory.
using DeviceObserver = std::function<Status(const DeviceLinear& layer, const float* x, int64_t m)>;

/// Rows of some windows; allocated once for all blocks.
class DeviceBlockWorkspace {
 public:
  /// As many windows of `context` positions at once, at most `windows`, as a gigabyte holds. Errors: kOutOfMemory, kUnsupported.
  static Result<DeviceBlockWorkspace> make(const ModelSpec& spec, int64_t context, int64_t windows, ThreadPool& pool);
  int64_t windows() const { return windows_; }

 private:
  friend class DeviceBlock;
  int64_t context_ = 0, windows_ = 0;
  Buffer h_;          // [rows, hidden] normed rows, outputs of o and down
  Buffer q_, attn_;   // [rows, q_size]
  Buffer k_, v_;      // [rows, kv_size]
  Buffer gate_, up_;  // [rows, intermediate]
  Buffer scores_;
  Buffer cos_, sin_;  // [context, head_dim / 2]
};

class DeviceBlock {
 public:
  /// `spec`: check_executable(). Errors: those of Transformer::load for this block; kOutOfMemory, kUnsupported (no GPU).
  static Result<DeviceBlock> load(const WeightSource& source, const ModelSpec& spec, int64_t block, ThreadPool& pool);

  /// `windows` windows [windows, context, hidden] in device memory, each at positions 0..context-1, in place: what
  /// Transformer::run_block() does, bit for bit. windows <= work.windows().
  Status run(DeviceBlockWorkspace& work, float* x, int64_t windows, const DeviceObserver& observer = {}) const;

 private:
  DeviceBlock(const BlockSpec& spec, int64_t hidden) : spec_(spec), hidden_(hidden) {}
  Status attention_part(DeviceBlockWorkspace& work, float* x, int64_t windows, const DeviceObserver& observer) const;
  Status feed_forward_part(DeviceBlockWorkspace& work, float* x, int64_t windows, const DeviceObserver& observer) const;

  /// Null: not executed.
  DeviceLinear* linear(LinearRole role);
  Buffer* norm(InputRole role);

  BlockSpec spec_;
  int64_t hidden_;
  Buffer input_norm_, post_norm_, q_norm_, k_norm_;
  DeviceLinear q_, k_, v_, o_, gate_, up_, down_;
};

}  // namespace lowbit
