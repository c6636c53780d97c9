#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/try.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

namespace lowbit {
namespace text {
namespace {

constexpr std::size_t kMaxAddedTokenBytes = 1024;                      // bounds the search at each position of a text
constexpr std::size_t kMaxNormalizedBytes = 18 * kMaxAddedTokenBytes;  // NFKC's longest growth
constexpr std::size_t kMaxScoredTokenBytes = 256;                      // SentencePiece makes none over 16 characters
constexpr std::size_t kMaxVocab = std::size_t{1} << 24;
constexpr std::size_t kMaxPieceBytes = 64 * 1024;                            // of a token, as written and as decoded
constexpr std::size_t kTokenBytes = 112, kMergeBytes = 64, kWordBytes = 64;  // in the tables, without texts
constexpr std::size_t kLookUpSteps = 128;

// Texts of tokens that end an answer although a model's files may not name them as eos.
constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>",
};

tl::unexpected<Error> contradiction(std::string where, std::string got, std::string wanted) {
  return fail(ErrorCode::kCorrupt, "tokenizer " + std::move(where), std::move(got), std::move(wanted),
              "is the file whole, and made for this model?");
}

Status check_id(const char* name, std::optional<TokenId> id, std::size_t n) {
  if (id && (*id < 0 || static_cast<std::size_t>(*id) >= n))
    return contradiction(name, fmt::format("id {}", *id), fmt::format("0 to {}", n - 1));
  return {};
}

std::size_t text_bytes(const TokenizerSpec& spec) {
  std::size_t n = 0;
  for (const std::string& token : spec.tokens) n += token.size() + 1;
  for (const auto& [left, right] : spec.merges) n += left.size() + right.size() + 2;
  for (const AddedToken& token : spec.added_tokens) n += token.content.size() + 1;
  return n;
}

Status check_shape(const TokenizerSpec& spec) {
  const std::size_t n = spec.tokens.size();
  if (n == 0 || n > kMaxVocab)
    return contradiction("vocabulary", fmt::format("{} tokens", n), fmt::format("1 to {}", kMaxVocab));
  if (spec.types.size() != n)
    return contradiction("token types", fmt::format("{} types", spec.types.size()),
                         fmt::format("{}, one per token", n));
  const bool scored = spec.merge_rule == TokenizerSpec::MergeRule::kScores;
  if (scored && spec.scores.size() != n)
    return contradiction("scores", fmt::format("{} scores", spec.scores.size()), fmt::format("{}, one per token", n));
  for (const float score : spec.scores)
    if (std::isnan(score)) return contradiction("scores", "a NaN", "numbers");
  LOWBIT_TRY(check_id("bos token", spec.bos_id, n));
  LOWBIT_TRY(check_id("eos token", spec.eos_id, n));
  LOWBIT_TRY(check_id("unknown token", spec.unk_id, n));
  LOWBIT_TRY(check_id("padding token", spec.pad_id, n));
  for (const AddedToken& token : spec.added_tokens) {
    LOWBIT_TRY(check_id("added token", token.id, n));
    if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes)
      return contradiction(fmt::format("added token {}", token.id),
                           fmt::format("a text of {} bytes", token.content.size()),
                           fmt::format("1 to {}", kMaxAddedTokenBytes));
  }
  return {};
}

}  // namespace

std::size_t next_word_start(std::string_view text, std::size_t from) {
  for (std::size_t at = text.find(kWordMark, from + 1); at != std::string_view::npos;
       at = text.find(kWordMark, at + kWordMark.size()))
    if (!text.substr(0, at).ends_with(kWordMark)) return at;
  return text.size();
}

Budget budget_of(const TokenizerSpec& spec) { return Budget::of_spec(text_bytes(spec)); }

Result<std::unordered_map<std::string_view, TokenId>> index_tokens(const TokenizerSpec& spec, Budget& budget) {
  LOWBIT_TRY(check_shape(spec));
  if (!budget.spend_bytes(spec.tokens.size(), kTokenBytes)) LOWBIT_TRY(budget.status("tokenizer vocabulary"));
  std::unordered_map<std::string_view, TokenId> ids;
  ids.reserve(spec.tokens.size());
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    const std::string& token = spec.tokens[i];
    if (token.empty()) continue;
    if (token.size() > kMaxPieceBytes)
      return contradiction(fmt::format("token {}", i), fmt::format("{} bytes", token.size()),
                           fmt::format("at most {}", kMaxPieceBytes));
    const auto [it, created] = ids.emplace(token, static_cast<TokenId>(i));
    if (!created)
      return contradiction("vocabulary", fmt::format("{:.60} twice, ids {} and {}", token, it->second, i),
                           "each token once");
  }
  return ids;
}

Result<std::vector<ScoreMerge>> score_merges(const TokenizerSpec& spec,
                                             const std::unordered_map<std::string_view, TokenId>& ids, Budget& budget) {
  std::vector<TokenId> order;
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    const TokenType type = spec.types[i];
    // Control and byte tokens never come out of text, even if their parts are tokens.
    if ((type == TokenType::kNormal || type == TokenType::kUserDefined) &&
        spec.tokens[i].size() <= kMaxScoredTokenBytes)
      order.push_back(static_cast<TokenId>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return spec.scores[a] > spec.scores[b]; });

  std::vector<ScoreMerge> merges;
  std::int32_t rank = -1;
  float previous = std::numeric_limits<float>::quiet_NaN();
  for (const TokenId id : order) {
    if (!(spec.scores[id] == previous)) ++rank;
    previous = spec.scores[id];
    const std::string_view token = spec.tokens[id];
    const std::size_t first = merges.size();
    if (!budget.spend_steps(token.size(), token.size() + kLookUpSteps))
      LOWBIT_TRY(budget.status("tokenizer merges by score"));
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(cut));
      if (right != ids.end()) merges.push_back({left->second, right->second, id, rank});
    }
    if (!budget.spend_bytes(merges.size() - first, kMergeBytes + 2 * sizeof(ScoreMerge)))
      LOWBIT_TRY(budget.status("tokenizer merges by score"));
    std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(),
              [](const ScoreMerge& a, const ScoreMerge& b) {
                return std::pair(a.left, a.right) < std::pair(b.left, b.right);
              });
  }
  return merges;
}

namespace {

Status insert_ranked(const TokenizerSpec& spec, Tokenizer::Impl& impl) {
  std::string merged;
  for (std::size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    merged.assign(left).append(right);
    const auto l = impl.ids.find(left), r = impl.ids.find(right), m = impl.ids.find(merged);
    for (const auto& [it, name] : {std::pair(l, &left), {r, &right}, {m, &merged}})
      if (it == impl.ids.end())
        return contradiction(fmt::format("merge {}", rank), fmt::format("{:.60}", *name), "a token of the vocabulary");
    impl.merges.insert(l->second, r->second, {static_cast<std::int32_t>(rank), m->second});
  }
  return {};
}

Status build_merges(Tokenizer::Impl& impl, Budget& budget) {
  const TokenizerSpec& spec = impl.spec;
  if (spec.merge_rule == TokenizerSpec::MergeRule::kRanks) {
    if (!budget.spend_bytes(spec.merges.size(), kMergeBytes)) LOWBIT_TRY(budget.status("tokenizer merges"));
    impl.merges = MergeTable(spec.merges.size());
    return insert_ranked(spec, impl);
  }
  LOWBIT_TRY_ASSIGN(const std::vector<ScoreMerge> merges, score_merges(spec, impl.ids, budget));
  impl.merges = MergeTable(merges.size());
  for (const ScoreMerge& m : merges) impl.merges.insert(m.left, m.right, {m.rank, m.merged});
  return {};
}

Status build_bytes(Tokenizer::Impl& impl) {
  impl.byte_ids.fill(-1);
  const bool byte_level = impl.pre_tokenizer.byte_level();
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<unsigned char>(b);
    if (!byte_level && !impl.spec.byte_fallback) break;
    const auto it = impl.ids.find(byte_level ? byte_to_alphabet(byte) : byte_token(byte));
    if (it != impl.ids.end()) impl.byte_ids[b] = it->second;
  }
  for (std::size_t i = 0; i < impl.spec.tokens.size(); ++i)
    if (impl.spec.types[i] == TokenType::kByte && !parse_byte_token(impl.spec.tokens[i]))
      return contradiction(fmt::format("byte token {}", i), fmt::format("{:.60}", impl.spec.tokens[i]),
                           "<0x00> to <0xFF>");
  return {};
}

// How the decoder steps turn one token into bytes. Steps that look at several tokens at once reduce to this, because
// lowbit keeps bytes where Hugging Face would replace what is no UTF-8.
class PieceMaker {
 public:
  Status build(Tokenizer::Impl& impl) {
    std::vector<DecoderStep> steps = impl.spec.decoder;
    if (steps.empty() && impl.pre_tokenizer.byte_level()) steps.emplace_back();
    for (const DecoderStep& step : steps) {
      switch (step.kind) {
        case DecoderStep::Kind::kByteLevel:
          byte_level_ = true;
          break;
        case DecoderStep::Kind::kByteFallback:
          byte_fallback_ = true;
          break;
        case DecoderStep::Kind::kFuse:
          break;
        case DecoderStep::Kind::kReplace:
          if (step.pattern.empty()) return contradiction("decoder Replace", "an empty pattern", "a text");
          replace_.emplace_back(step.pattern, step.content);
          break;
        case DecoderStep::Kind::kMetaspace:
          if (!is_one_character(step.pattern))
            return contradiction("decoder Metaspace", fmt::format("{} bytes", step.pattern.size()), "one character");
          replace_.emplace_back(step.pattern, " ");
          if (step.prepend != PreTokenizerStep::Prepend::kNever) impl.strip_left = 1;
          break;
        case DecoderStep::Kind::kStrip:
          if (step.content != " ")
            return fail(ErrorCode::kUnsupported, "tokenizer decoder Strip", fmt::format("'{:.20}'", step.content),
                        "a space");
          impl.strip_left = std::max(step.start, 0);
          impl.strip_right = std::max(step.stop, 0);
          break;
      }
    }
    return {};
  }

  Result<std::string> make(const std::string& token, Budget& budget) const {
    if (byte_fallback_) {
      if (const auto byte = parse_byte_token(token)) return std::string(1, static_cast<char>(*byte));
    }
    std::string out = token;
    for (const auto& [from, to] : replace_) {
      out = replace_all(out, from, to, budget);
      LOWBIT_TRY(budget.status("tokenizer decoder"));
      if (out.size() > kMaxPieceBytes)
        return contradiction("decoder", fmt::format("a token that becomes {} bytes", out.size()),
                             fmt::format("at most {}", kMaxPieceBytes));
    }
    if (byte_level_) {
      if (auto bytes = alphabet_to_bytes(out)) return std::move(*bytes);
    }
    return out;
  }

 private:
  bool byte_level_ = false, byte_fallback_ = false;
  std::vector<std::pair<std::string, std::string>> replace_;
};

Status build_pieces(Tokenizer::Impl& impl, Budget& budget) {
  PieceMaker maker;
  LOWBIT_TRY(maker.build(impl));
  const std::size_t n = impl.spec.tokens.size();
  impl.special.assign(n, false);
  impl.pieces.resize(n);
  std::vector<bool> literal(n, false);  // added tokens decode to their own text
  for (const AddedToken& token : impl.spec.added_tokens) {
    impl.pieces[token.id] = token.content;
    impl.special[token.id] = token.special;
    literal[token.id] = true;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const TokenType type = impl.spec.types[i];
    if (type == TokenType::kControl || type == TokenType::kUnknown) impl.special[i] = true;
    if (literal[i]) continue;
    LOWBIT_TRY_ASSIGN(impl.pieces[i], maker.make(impl.spec.tokens[i], budget));
    if (!budget.spend_bytes(impl.pieces[i].size())) LOWBIT_TRY(budget.status("tokenizer decoder"));
  }
  if (!impl.spec.ignore_merges) return {};
  if (!budget.spend_bytes(n, kWordBytes)) LOWBIT_TRY(budget.status("tokenizer vocabulary"));
  const bool byte_level = impl.pre_tokenizer.byte_level();
  for (std::size_t i = 0; i < n; ++i)
    if (!impl.pieces[i].empty() && !literal[i])
      impl.words.emplace(byte_level ? impl.pieces[i] : impl.spec.tokens[i], static_cast<TokenId>(i));
  return {};
}

Status build_added_tokens(Tokenizer::Impl& impl, Budget& budget) {
  RegexScratch scratch;
  for (std::size_t i = 0; i < impl.spec.added_tokens.size(); ++i) {
    const AddedToken& token = impl.spec.added_tokens[i];
    const auto index = static_cast<std::int32_t>(i);
    // Without a normalizer both searches see the same text; one of them is enough.
    const bool normalized = token.normalized && !impl.normalizer.empty();
    std::string content = token.content;
    if (normalized && valid_prefix(content) == content.size()) {
      LOWBIT_TRY_ASSIGN(content, impl.normalizer.apply(token.content, true, scratch, budget));
    }
    if (content.size() > kMaxNormalizedBytes)
      return contradiction(fmt::format("added token {}", token.id),
                           fmt::format("a text normalized to {} bytes", content.size()),
                           fmt::format("at most {}", kMaxNormalizedBytes));
    (normalized ? impl.normalized_all : impl.raw_all).add(content, index, budget);
    if (!token.special) (normalized ? impl.normalized_plain : impl.raw_plain).add(content, index, budget);
    LOWBIT_TRY(budget.status("tokenizer added tokens"));
  }
  return {};
}

// No merge can reach across the start of a word, marked by U+2581, if no token has the mark behind another character.
// Then a text without a pre-tokenizer may be cut there, with the same ids and far less work.
void build_word_starts(Tokenizer::Impl& impl) {
  const TokenizerSpec& spec = impl.spec;
  if (!spec.pre_tokenizer.empty() || spec.ignore_merges || !impl.ids.contains(kWordMark)) return;
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    const TokenType type = spec.types[i];
    if (type != TokenType::kNormal && type != TokenType::kUserDefined) continue;
    if (next_word_start(spec.tokens[i], 0) < spec.tokens[i].size()) return;
  }
  impl.cut_at_word_marks = true;
}

void build_eos(Tokenizer::Impl& impl) {
  std::vector<TokenId>& ids = impl.eos_ids;
  if (impl.spec.eos_id) ids.push_back(*impl.spec.eos_id);
  for (const std::string_view text : kEndTexts)
    if (const auto it = impl.ids.find(text); it != impl.ids.end() && impl.special[it->second])
      ids.push_back(it->second);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace
}  // namespace text

Result<Tokenizer> Tokenizer::build(TokenizerSpec spec) {
  auto impl = std::make_shared<Impl>();
  impl->spec = std::move(spec);
  text::Budget budget = text::budget_of(impl->spec);
  LOWBIT_TRY_ASSIGN(impl->ids, text::index_tokens(impl->spec, budget));
  LOWBIT_TRY_ASSIGN(impl->normalizer, text::Normalizer::build(impl->spec.normalizer, budget));
  LOWBIT_TRY_ASSIGN(impl->pre_tokenizer, text::PreTokenizer::build(impl->spec.pre_tokenizer, budget));
  LOWBIT_TRY(text::build_merges(*impl, budget));
  LOWBIT_TRY(text::build_bytes(*impl));
  LOWBIT_TRY(text::build_pieces(*impl, budget));
  LOWBIT_TRY(text::build_added_tokens(*impl, budget));
  text::build_word_starts(*impl);
  text::build_eos(*impl);
  return Tokenizer(std::move(impl));
}

}  // namespace lowbit
