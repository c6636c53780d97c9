#pragma once
// One call of Tokenizer::encode: the path of a text through added tokens, normalizer, pre-tokenizer and BPE.

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/budget.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_impl.h"

namespace lowbit::text {

class Encoder {
 public:
  /// text_bytes decides whether remembering words is worth its cost.
  Encoder(const Tokenizer::Impl& tokenizer, std::size_t text_bytes);

  /// Appends the ids of text, without bos and eos.
  Status encode(std::string_view text, bool parse_special, std::vector<TokenId>& out);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };

  Status encode_gap(std::string_view gap, bool at_start, bool parse_special, std::vector<TokenId>& out);
  Status encode_run(std::string_view run, bool with_prefix, bool at_start, bool parse_special,
                    std::vector<TokenId>& out);
  Status encode_normalized(std::string_view text, bool with_prefix, bool at_start, std::vector<TokenId>& out);
  Status encode_word(std::string_view word, std::vector<TokenId>& out);
  bool append(const std::vector<TokenId>& ids, std::vector<TokenId>& out);
  template <class Gap>
  Status cut_at_added(const AddedTokenMatcher& matcher, std::string_view text, std::vector<TokenId>& out, Gap gap);
  void byte_symbols(std::string_view word);
  void character_symbols(std::string_view word);
  void push_unknown();

  const Tokenizer::Impl& t_;
  Budget budget_;
  PreTokenizerScratch scratch_;
  BpeScratch bpe_;
  std::vector<TokenId> symbols_;
  bool remember_;
  std::unordered_map<std::string, std::vector<TokenId>, Hash, std::equal_to<>> seen_;
};

}  // namespace lowbit::text
