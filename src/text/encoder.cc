#include "text/encoder.h"

#include "base/try.h"
#include "text/utf8.h"

namespace lowbit::text {
namespace {

constexpr std::size_t kRememberFromBytes = 2048;  // shorter texts repeat too few words
constexpr std::size_t kMaxRememberedWord = 64;    // bytes
constexpr std::size_t kMaxRememberedWords = 1 << 16;
constexpr std::size_t kWordMergeBytes = 64, kWordMergeSteps = 96;  // per byte of a word

// Calls gap(text, offset) for what lies between matches and token(match) for each match.
template <class Gap, class Token>
Status visit(std::string_view text, const std::vector<AddedTokenMatcher::Match>& matches, Gap gap, Token token) {
  std::size_t at = 0;
  for (const AddedTokenMatcher::Match& m : matches) {
    if (m.range.begin > at) LOWBIT_TRY(gap(text.substr(at, m.range.begin - at), at));
    token(m);
    at = m.range.end;
  }
  if (text.size() > at) LOWBIT_TRY(gap(text.substr(at), at));
  return {};
}

}  // namespace

Encoder::Encoder(const Tokenizer::Impl& tokenizer, std::size_t text_bytes)
    : t_(tokenizer), budget_(Budget::of_text(text_bytes)), remember_(text_bytes >= kRememberFromBytes) {}

Status Encoder::encode(std::string_view text, bool parse_special, std::vector<TokenId>& out) {
  std::vector<AddedTokenMatcher::Match> matches;
  const AddedTokenMatcher& matcher = parse_special ? t_.raw_all : t_.raw_plain;
  LOWBIT_TRY(matcher.find_all(text, t_.spec.added_tokens, budget_, matches));
  return visit(
      text, matches, [&](std::string_view gap, std::size_t at) { return encode_gap(gap, at == 0, parse_special, out); },
      [&](const auto& match) { out.push_back(t_.spec.added_tokens[match.index].id); });
}

// Cuts at bytes that are no UTF-8; those become words of their own.
Status Encoder::encode_gap(std::string_view gap, bool at_start, bool parse_special, std::vector<TokenId>& out) {
  bool first = true;
  while (!gap.empty()) {
    if (const std::size_t n = valid_prefix(gap); n > 0) {
      LOWBIT_TRY(encode_run(gap.substr(0, n), first, first && at_start, parse_special, out));
      gap.remove_prefix(n);
    }
    if (const std::size_t n = invalid_prefix(gap); n > 0) {
      LOWBIT_TRY(encode_word(gap.substr(0, n), out));
      gap.remove_prefix(n);
    }
    first = false;
  }
  return {};
}

Status Encoder::encode_run(std::string_view run, bool with_prefix, bool at_start, bool parse_special,
                           std::vector<TokenId>& out) {
  const AddedTokenMatcher& matcher = parse_special ? t_.normalized_all : t_.normalized_plain;
  if (t_.normalizer.empty() && matcher.empty()) return encode_normalized(run, with_prefix, at_start, out);
  LOWBIT_TRY_ASSIGN(const std::string normalized, t_.normalizer.apply(run, with_prefix, regex_, budget_));
  std::vector<AddedTokenMatcher::Match> matches;
  LOWBIT_TRY(matcher.find_all(normalized, t_.spec.added_tokens, budget_, matches));
  return visit(
      normalized, matches,
      [&](std::string_view gap, std::size_t at) {
        return encode_normalized(gap, with_prefix, at_start && at == 0, out);
      },
      [&](const auto& match) { out.push_back(t_.spec.added_tokens[match.index].id); });
}

Status Encoder::encode_normalized(std::string_view text, bool with_prefix, bool at_start, std::vector<TokenId>& out) {
  LOWBIT_TRY_ASSIGN(const Words words, t_.pre_tokenizer.cut(std::string(text), with_prefix, at_start, regex_, budget_));
  for (const Range& r : words.ranges) {
    const std::string_view word = std::string_view(words.text).substr(r.begin, r.size());
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t end = t_.cut_at_word_marks ? next_word_start(word, at) : word.size();
      LOWBIT_TRY(encode_word(word.substr(at, end - at), out));
      at = end;
    }
  }
  return {};
}

Status Encoder::encode_word(std::string_view word, std::vector<TokenId>& out) {
  if (!budget_.spend_bytes(word.size(), kWordMergeBytes) || !budget_.spend_steps(word.size(), kWordMergeSteps))
    return budget_.status("tokenizer merges");
  const bool remember = remember_ && word.size() <= kMaxRememberedWord;
  if (remember) {
    if (const auto it = seen_.find(word); it != seen_.end()) {
      out.insert(out.end(), it->second.begin(), it->second.end());
      return {};
    }
  }
  symbols_.clear();
  if (const auto it = t_.words.find(word); it != t_.words.end()) {
    symbols_.push_back(it->second);
  } else {
    t_.pre_tokenizer.byte_level() ? byte_symbols(word) : character_symbols(word);
    bpe_.merge_word(t_.merges, symbols_);
  }
  out.insert(out.end(), symbols_.begin(), symbols_.end());
  if (remember && seen_.size() < kMaxRememberedWords) seen_.emplace(word, symbols_);
  return {};
}

void Encoder::push_unknown() {
  if (!t_.spec.unk_id) return;  // as Hugging Face: without an unknown token the character is dropped
  if (t_.spec.fuse_unk && !symbols_.empty() && symbols_.back() == *t_.spec.unk_id) return;
  symbols_.push_back(*t_.spec.unk_id);
}

void Encoder::byte_symbols(std::string_view word) {
  for (const char c : word) {
    const TokenId id = t_.byte_ids[static_cast<unsigned char>(c)];
    id >= 0 ? symbols_.push_back(id) : push_unknown();
  }
}

void Encoder::character_symbols(std::string_view word) {
  for (std::size_t at = 0; at < word.size();) {
    const int length = std::max(decode_utf8(word, at).length, 1);  // an invalid byte stands alone
    const std::string_view c = word.substr(at, length);
    at += length;
    if (const auto it = t_.ids.find(c); it != t_.ids.end()) {
      symbols_.push_back(it->second);
      continue;
    }
    bool all_bytes = t_.spec.byte_fallback;
    for (const char b : c) all_bytes = all_bytes && t_.byte_ids[static_cast<unsigned char>(b)] >= 0;
    if (!all_bytes) {
      push_unknown();
      continue;
    }
    for (const char b : c) symbols_.push_back(t_.byte_ids[static_cast<unsigned char>(b)]);
  }
}

}  // namespace lowbit::text
