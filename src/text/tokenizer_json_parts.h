#pragma once
// tokenizer.json taken apart while it is parsed: the vocabulary and the merges, nearly all of the file, as what they
// become; the rest, which is small, as a tree.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/json_input.h"

namespace lowbit::text {

// NOLINTNEXTLINE(bugprone-exception-escape): a tree of JSON is moved without a promise
struct TokenizerParts {
  Json rest;  // model.vocab and model.merges are there only where they are no object and no array
  bool has_vocab = false, has_merges = false;
  std::vector<std::pair<std::string, std::uint64_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;
};

/// Errors: kCorrupt: not JSON, too deep, too much memory, an id that is no number, a merge that is no pair, a part
/// twice.
Result<TokenizerParts> parse_tokenizer_json(std::string_view text, std::string_view where, int max_depth,
                                            Budget& budget);

}  // namespace lowbit::text
