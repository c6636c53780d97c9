#pragma once
// The state of a Tokenizer once it is built. Nothing here changes afterwards.

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lowbit/tokenizer.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/budget.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace lowbit {

struct Tokenizer::Impl {
  TokenizerSpec spec;
  std::unordered_map<std::string_view, TokenId> ids;    // views into spec.tokens
  std::vector<std::string> pieces;                      // by id: the bytes that decode gives
  std::unordered_map<std::string_view, TokenId> words;  // views into pieces; ignore_merges only
  std::vector<bool> special;                            // by id
  std::vector<TokenId> eos_ids;
  text::MergeTable merges;
  text::Normalizer normalizer;
  text::PreTokenizer pre_tokenizer;
  std::array<TokenId, 256> byte_ids;           // the token of a byte on its own, -1 if there is none
  text::AddedTokenMatcher raw_all, raw_plain;  // plain: without the special ones
  text::AddedTokenMatcher normalized_all, normalized_plain;
  bool cut_at_word_marks = false;
  int strip_left = 0, strip_right = 0;  // spaces that decode drops at the ends

  bool valid_id(TokenId id) const { return id >= 0 && static_cast<std::size_t>(id) < pieces.size(); }
};

namespace text {

/// SentencePiece's mark of a word's start, U+2581.
inline constexpr std::string_view kWordMark = "\xE2\x96\x81";
/// The first place behind `from` where a mark follows another character; text.size() if there is none.
std::size_t next_word_start(std::string_view text, std::size_t from);

/// The merges that a score vocabulary implies: every way to cut a token into two tokens, best score first.
struct ScoreMerge {
  TokenId left, right, merged;
  std::int32_t rank;  // the same for the same score
};
Result<std::vector<ScoreMerge>> score_merges(const TokenizerSpec& spec,
                                             const std::unordered_map<std::string_view, TokenId>& ids, Budget& budget);

/// The budget for work on a spec: it grows with the texts in it.
Budget budget_of(const TokenizerSpec& spec);

/// Shape, types, ids and duplicates of a spec; fills the index of its tokens. kCorrupt if they do not fit.
Result<std::unordered_map<std::string_view, TokenId>> index_tokens(const TokenizerSpec& spec, Budget& budget);

}  // namespace text
}  // namespace lowbit
