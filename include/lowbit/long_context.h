#pragma once
// Tests of a quantized KV cache on a long text: facts that are asked for at its end, sums of them, and what is
// written behind it.

#include <cstdint>
#include <string>
#include <vector>

#include "lowbit/compute.h"
#include "lowbit/error.h"
#include "lowbit/model.h"

namespace lowbit {

struct LongContextOptions {
  /// Tokens of a text with its questions, ascending; empty: a quarter, a half and all of the context.
  std::vector<int64_t> lengths;
  int64_t texts = 1;     // of each length
  int64_t written = 48;  // tokens that both models write behind each text
  Progress progress;
};

/// Questions whose answer is a number, right when each of its tokens is the likeliest.
struct ProbeScore {
  int64_t asked = 0, base = 0, model = 0;  // right answers of each
  int64_t both = 0;                        // of those that the base has right, how many the model has
};

/// The continuations that both models write, each with its likeliest tokens.
struct WrittenText {
  int64_t alike = 0;                // tokens before they part
  std::string before, base, model;  // UTF-8; bytes that are no character are U+FFFD
};

struct LongContextLength {
  int64_t length = 0;
  ProbeScore needle;  // "Secret number: NAME ...", facts that stand anywhere in the text
  /// A running sum over facts of the text, "NAME has 4 apples, which makes 11": each step needs a fact and the sum
  /// before it, which is given.
  ProbeScore chain;
  std::vector<WrittenText> written;  // of each text
};

struct LongContextReport {
  std::vector<LongContextLength> lengths;
  double seconds = 0;
};

/// Probes `model` beside `base`, the same model with an f16 cache, on texts that are cut from `text`, with facts spread
/// over them evenly. Same questions for every format. Errors: kInvalidArgument (a length below 512 or beyond either
/// context, a text that is too short, other vocabularies), kCancelled, kOutOfMemory.
Result<LongContextReport> probe_long_context(Model& model, Model& base, const std::string& text,
                                             const LongContextOptions& options);

}  // namespace lowbit
