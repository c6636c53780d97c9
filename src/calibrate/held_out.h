#pragma once
// The part of a calibration text that nothing is fitted to: what the quantized model makes of it, against the source.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/threads.h"
#include "calibrate/hidden_states.h"
#include "format/qtensor.h"
#include "lowbit/quantize.h"
#include "lowbit/tokenizer.h"
#include "model/source.h"

namespace lowbit {

/// The likeliest next token at each position of a text.
struct NextTokens {
  double ppl = 0;
  std::vector<TokenId> likeliest;
  std::vector<char> sure;  // it has half of the probability or more
};

/// same_token, continued and the figures of sure positions, of sequences of `context` tokens; the last position of a
/// sequence has no next token.
void compare_next_tokens(const NextTokens& source, const NextTokens& quantized, int64_t context, HeldOutReport& report);

/// Why a result is of no use, and what it had to be; "" where it is.
struct Verdict {
  std::string what, wanted;
  bool broken() const { return !what.empty(); }
};
/// Perplexity beyond three times the source's; or another token where the source is sure of its own more often than
/// not, over 64 such positions or more: a model may keep its perplexity and say other things.
Verdict judge(const HeldOutReport& held);

/// A few sequences of tokens, run through the source's blocks and through the quantized ones side by side, one block in
/// memory at a time.
class HeldOut {
 public:
  HeldOut() = default;
  /// tokens [sequences, context]; `source` and `quantized` are their embeddings by the source.
  HeldOut(std::vector<TokenId> tokens, int64_t context, HiddenStates source, HiddenStates quantized, bool was_seen);

  bool empty() const { return tokens_.empty(); }
  const std::vector<TokenId>& tokens() const { return tokens_; }

  /// The quantized embedding's rows in place of the source's, at the start of the quantized stream. Without it nothing
  /// runs.
  Status start_quantized(const QTensor& embedding);
  /// Both through their blocks.
  Status advance(BlockProgram& source, BlockProgram& quantized, BatchRoom& room);

  /// After the last block. `head`: the weight that makes logits, of the source and as quantized. Errors: what loading
  /// and the product say.
  Result<HeldOutReport> finish(const WeightSource& source, const QTensor& head, const QTensor& quantized_head, Isa isa,
                               ThreadPool& pool) const;

 private:
  Result<NextTokens> next_tokens(const HiddenStates& states, const std::vector<float>& norm, float eps,
                                 const QTensor& head, Isa isa, ThreadPool& pool) const;

  std::vector<TokenId> tokens_;
  int64_t context_ = 0;
  bool was_seen_ = false, started_ = false;
  HiddenStates source_, quantized_;
};

}  // namespace lowbit
