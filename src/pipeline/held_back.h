#pragma once
// The part of a calibration text that nothing is fitted to: what the quantized model makes of it, against the source.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/threads.h"
#include "format/qtensor.h"
#include "lowbit/quantize.h"
#include "lowbit/tokenizer.h"
#include "model/source.h"
#include "pipeline/block_runner.h"
#include "tensor/buffer.h"

namespace lowbit {

/// A few windows of tokens, run through the source's blocks and through the quantized ones side by side, one block in memory at a
/// time.
class HeldBack {
 public:
  HeldBack() = default;
  /// tokens [windows, context]; `states` are their embeddings by the source, twice: for its stream and the quantized one. `runner` must
  /// outlive the object.
  HeldBack(std::vector<TokenId> tokens, int64_t context, int64_t hidden, std::array<Buffer, 2> states,
           BlockRunner& runner, bool was_seen);

  bool empty() const { return tokens_.empty(); }
  const std::vector<TokenId>& tokens() const { return tokens_; }

  /// The quantized embedding's rows in place of the source's, at the start of the quantized stream.
  Status start_quantized(const QTensor& embedding);
  /// Through the runner's block.
  Status run_source() { return runner_->advance(source_); }
  Status run_quantized() { return runner_->advance(quantized_); }

  /// After the last block. `head`: the weight that makes logits, of the source and as quantized. Errors: what loading and the
  /// product say.
  Result<HeldBackReport> finish(const WeightSource& source, const QTensor& head, const QTensor& quantized_head, Isa isa,
                                ThreadPool& pool) const;

 private:
  Result<double> perplexity(const Buffer& states, const std::vector<float>& norm, float eps, const QTensor& head,
                            Isa isa, ThreadPool& pool) const;

  std::vector<TokenId> tokens_;
  int64_t context_ = 0, hidden_ = 0;
  bool was_seen_ = false;
  BlockRunner* runner_ = nullptr;
  Buffer source_, quantized_;  // [windows, context, hidden]
};

}  // namespace lowbit
