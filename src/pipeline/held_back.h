#pragma once
// The part of a calibration text that nothing is fitted to: what the quantized model makes of it, against the source.

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
#include "model/transformer.h"

namespace lowbit {

/// A few windows of tokens, run through the source's blocks and through the quantized ones side by side, one block in memory at a
/// time.
class HeldBack {
 public:
  HeldBack() = default;
  /// tokens [windows, context]. `embeddings` are those of the source.
  HeldBack(std::vector<TokenId> tokens, int64_t context, std::vector<float> embeddings, bool was_seen);

  bool empty() const { return tokens_.empty(); }
  const std::vector<TokenId>& tokens() const { return tokens_; }

  /// The quantized embedding's rows in place of the source's, at the start of the quantized stream.
  void start_quantized(const QTensor& embedding);
  Status run_source(Transformer& block, KvCache& cache);
  Status run_quantized(Transformer& block, KvCache& cache);

  /// After the last block. `head`: the weight that makes logits, of the source and as quantized. Errors: what loading and the
  /// product say.
  Result<HeldBackReport> finish(const WeightSource& source, const QTensor& head, const QTensor& quantized_head, Isa isa,
                                ThreadPool& pool) const;

 private:
  Status run(std::vector<float>& states, Transformer& block, KvCache& cache) const;
  Result<double> perplexity(const std::vector<float>& states, const std::vector<float>& norm, float eps,
                            const QTensor& head, Isa isa, ThreadPool& pool) const;
  int64_t hidden() const { return static_cast<int64_t>(source_.size() / std::max<size_t>(1, tokens_.size())); }

  std::vector<TokenId> tokens_;
  int64_t context_ = 0;
  bool was_seen_ = false;
  std::vector<float> source_, quantized_;  // [windows, context, hidden]
};

}  // namespace lowbit
