#pragma once
// Text that a model writes itself, to be calibrated on: what it was trained on is rarely at hand, what it says always
// is.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lowbit/error.h"
#include "lowbit/tokenizer.h"
#include "model/source.h"
#include "runtime/engine.h"

namespace lowbit {

/// The beginning of a sequence; the model writes the rest.
struct Beginnings {
  std::vector<TokenId> prefix;  // BOS where the vocabulary wants it
  std::vector<TokenId> first;   // the token that begins a document or a chat; empty: none is known
  std::vector<TokenId> chat;    // all that the model's template puts before a user's first word; empty: no template
  std::vector<std::vector<TokenId>>
      openings;  // first words of stories, letters, lessons, code; with a template, of requests too
  int64_t vocab_size = 0;
};

/// Beginnings from the list of `python -m lowbit.sample`, and from the tokenizer's own template. Openings without
/// tokens are left out.
Result<Beginnings> beginnings_of(const Tokenizer& tokenizer, int64_t vocab_size);

/// The beginning of each of `count` sequences, at most context - 1 tokens: of those that the model has, in these shares
/// and in random order, 1 its first token, 2 a chat, 3 an opening, 1 any token.
std::vector<std::vector<TokenId>> draw_beginnings(const Beginnings& from, int64_t count, int64_t context,
                                                  uint64_t seed);

struct WritingOptions {
  int64_t tokens = 65536;
  int64_t context = 512;  // of a sequence, at most what the model has
  uint64_t seed = 0;
  std::function<bool(int64_t done, int64_t total)> progress;  // false: stop, kCancelled
};

/// Sequences of `context` tokens, one behind the other, drawn at temperature 1 from all tokens. Int8 activations. The
/// same tokens for any thread count, instruction set and device. Errors: those of Transformer::load and of
/// tokenizer_of; kInvalidArgument (fewer tokens than a sequence); kCancelled.
Result<std::vector<TokenId>> write_text(const WeightSource& source, const Engine& engine,
                                        const WritingOptions& options);

}  // namespace lowbit
