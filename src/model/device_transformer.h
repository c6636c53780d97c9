#pragma once
// A whole model on the GPU, in f32 and with the bits of the CPU: for scoring texts window by window. It keeps no cache and generates nothing.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/threads.h"
#include "lowbit/error.h"
#include "model/device_block.h"
#include "model/source.h"
#include "tensor/buffer.h"

namespace lowbit {

class DeviceTransformer {
 public:
  /// For windows of at most `context` tokens. All weights lie in device memory as f32. Errors: those of Transformer::load;
  /// kOutOfMemory, kUnsupported (no GPU).
  static Result<std::unique_ptr<DeviceTransformer>> load(const WeightSource& source, int64_t context, ThreadPool& pool);

  /// Logits [tokens - first, vocab] of tokens first.. of a text that begins at position 0: what Transformer::forward() with exact
  /// activations gives, bit for bit. Errors: kInvalidArgument (more tokens than the context, an id outside the vocabulary, a
  /// buffer that is too small), what CUDA says.
  Status logits(std::span<const int32_t> tokens, int64_t first, std::span<float> out);

 private:
  DeviceTransformer() = default;

  ModelSpec spec_;
  int64_t context_ = 0;
  QTensor embedding_;
  std::vector<DeviceBlock> blocks_;
  DeviceLinear head_;
  DeviceBlockWorkspace work_;
  Buffer final_norm_;  // [hidden]
  Buffer x_;           // [context, hidden]
  Buffer logits_;      // [kRowsOfLogits, vocab]
};

}  // namespace lowbit
