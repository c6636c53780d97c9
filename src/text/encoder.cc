#include "text/encoder.h"

#include "base/try.h"
#include "text/utf8.h"

namespace lowbit::text {
namespace {

constexpr std::size_t kRememberFromBytes = 2048;  // shorter texts repeat too few words
// Bytes. The merges of a shorter word take no longer than finding it among many.
constexpr std::size_t kMinRememberedWord = 4, kMaxRememberedWord = 64;
constexpr std::size_t kMaxRememberedWords = 1 << 16;
constexpr std::size_t kWordSteps = 96;         // per byte of a word
constexpr std::size_t kMergeBytes = 16;        // per symbol of a word, until its merges are done
constexpr std::size_t kIdBytes = 8;            // of a list that grows
constexpr std::size_t kRememberedBytes = 128;  // of a map's entry, besides its word and ids
constexpr std::size_t kKeptSymbols = 1 << 16;  // memory that the next word finds

}  // namespace

Encoder::Encoder(const Tokenizer::Impl& tokenizer, std::size_t text_bytes)
    : t_(tokenizer), budget_(Budget::of_text(text_bytes)), remember_(text_bytes >= kRememberFromBytes) {}

Status Encoder::encode(std::string_view text, bool parse_special, std::vector<TokenId>& out) {
  const AddedTokenMatcher& matcher = parse_special ? t_.raw_all : t_.raw_plain;
  return cut_at_added(matcher, text, out, [&](std::string_view gap, bool at_start) {
    return encode_gap(gap, at_start, parse_special, out);
  });
}

// Calls `gap` for what lies between added tokens, with whether it opens the text.
template <class Gap>
Status Encoder::cut_at_added(const AddedTokenMatcher& matcher, std::string_view text, std::vector<TokenId>& out,
                             Gap gap) {
  std::size_t at = 0;
  LOWBIT_TRY(
      matcher.for_each_match(text, t_.spec.added_tokens, budget_, [&](const AddedTokenMatcher::Match& m) -> Status {
        if (m.range.begin > at) LOWBIT_TRY(gap(text.substr(at, m.range.begin - at), at == 0));
        at = m.range.end;
        if (!budget_.spend_bytes(kIdBytes)) return budget_.status("tokenizer added tokens");
        out.push_back(t_.spec.added_tokens[m.index].id);
        return {};
      }));
  return text.size() > at ? gap(text.substr(at), at == 0) : Status();
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
  LOWBIT_TRY_ASSIGN(const std::string normalized, t_.normalizer.apply(run, with_prefix, scratch_.regex, budget_));
  LOWBIT_TRY(cut_at_added(matcher, normalized, out, [&](std::string_view gap, bool opens) {
    return encode_normalized(gap, with_prefix, at_start && opens, out);
  }));
  budget_.give_back(normalized.size());
  return {};
}

Status Encoder::encode_normalized(std::string_view text, bool with_prefix, bool at_start, std::vector<TokenId>& out) {
  return t_.pre_tokenizer.for_each_word(
      text, with_prefix, at_start, scratch_, budget_, [&](std::string_view word) -> Status {
        for (std::size_t at = 0; at < word.size();) {
          const std::size_t end = t_.cut_at_word_marks ? next_word_start(word, at) : word.size();
          LOWBIT_TRY(encode_word(word.substr(at, end - at), out));
          at = end;
        }
        return {};
      });
}

Status Encoder::encode_word(std::string_view word, std::vector<TokenId>& out) {
  if (!budget_.spend_steps(word.size(), kWordSteps)) return budget_.status("tokenizer merges");
  const bool remember = remember_ && word.size() >= kMinRememberedWord && word.size() <= kMaxRememberedWord;
  if (remember) {
    if (const auto it = seen_.find(word); it != seen_.end())
      return append(it->second, out) ? Status() : budget_.status("tokenizer merges");
  }
  symbols_.clear();
  if (const auto it = t_.words.find(word); it != t_.words.end()) {
    symbols_.push_back(it->second);
  } else {
    t_.pre_tokenizer.byte_level() ? byte_symbols(word) : character_symbols(word);
    const std::size_t bytes = symbols_.size() * kMergeBytes;
    if (!budget_.spend_bytes(bytes)) return budget_.status("tokenizer merges");
    bpe_.merge_word(t_.merges, symbols_);
    budget_.give_back(bytes);
  }
  if (!append(symbols_, out)) return budget_.status("tokenizer merges");
  if (remember && seen_.size() < kMaxRememberedWords) {
    if (!budget_.spend_bytes(kRememberedBytes + word.size() + symbols_.size() * sizeof(TokenId)))
      return budget_.status("tokenizer merges");
    seen_.emplace(word, symbols_);
  }
  if (symbols_.capacity() > kKeptSymbols) symbols_ = {};
  return {};
}

bool Encoder::append(const std::vector<TokenId>& ids, std::vector<TokenId>& out) {
  out.insert(out.end(), ids.begin(), ids.end());
  return budget_.spend_bytes(ids.size(), kIdBytes);
}

void Encoder::push_unknown() {
  if (!t_.spec.unk_id) return;  // as Hugging Face: without an unknown token the character is dropped
  if (t_.spec.fuse_unk && !symbols_.empty() && symbols_.back() == *t_.spec.unk_id) return;
  symbols_.push_back(*t_.spec.unk_id);
}

void Encoder::byte_symbols(std::string_view word) {
  symbols_.reserve(word.size());
  for (const char c : word) {
    const TokenId id = t_.byte_ids[static_cast<unsigned char>(c)];
    id >= 0 ? symbols_.push_back(id) : push_unknown();
  }
}

void Encoder::character_symbols(std::string_view word) {
  symbols_.reserve(word.size());
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
