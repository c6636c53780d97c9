// The tokenizer.* metadata of GGUF files -> TokenizerSpec.
//
// GGUF names a pre-tokenizer instead of describing it. The descriptions below are those of the models' own
// tokenizer.json files; where llama.cpp differs (it normalizes nothing), the model's own file is followed.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "lowbit/tokenizer.h"
#include "text/byte_alphabet.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace lowbit {
namespace text {
namespace {

constexpr const char* kSpaceMark = "\u2581";
constexpr std::size_t kMaxTokenBytes = 64 * 1024;

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// llama.cpp's choice when a file names none.
constexpr const char* kDefaultPunctuation = R"([\p{P}\$\+<=>\^~\|]+)";

struct PreTokenizerName {
  const char* name;
  enum Kind { kDefault, kGpt2, kDigitsGpt2, kLlama3, kQwen2, kTekken, kGpt4o } kind;
};

constexpr PreTokenizerName kPreTokenizerNames[] = {
    {"default", PreTokenizerName::kDefault},
    {"gpt-2", PreTokenizerName::kGpt2},
    {"gpt2", PreTokenizerName::kGpt2},
    {"phi-2", PreTokenizerName::kGpt2},
    {"olmo", PreTokenizerName::kGpt2},
    {"jais", PreTokenizerName::kGpt2},
    {"mpt", PreTokenizerName::kGpt2},
    {"smollm", PreTokenizerName::kDigitsGpt2},
    {"starcoder", PreTokenizerName::kDigitsGpt2},
    {"refact", PreTokenizerName::kDigitsGpt2},
    {"command-r", PreTokenizerName::kDigitsGpt2},
    {"codeshell", PreTokenizerName::kDigitsGpt2},
    {"exaone", PreTokenizerName::kDigitsGpt2},
    {"llama3", PreTokenizerName::kLlama3},
    {"llama-v3", PreTokenizerName::kLlama3},
    {"llama-bpe", PreTokenizerName::kLlama3},
    {"falcon3", PreTokenizerName::kLlama3},
    {"dbrx", PreTokenizerName::kLlama3},
    {"smaug-bpe", PreTokenizerName::kLlama3},
    {"qwen2", PreTokenizerName::kQwen2},
    {"deepseek-r1-qwen", PreTokenizerName::kQwen2},
    {"stablelm2", PreTokenizerName::kQwen2},
    {"megrez", PreTokenizerName::kQwen2},
    {"tekken", PreTokenizerName::kTekken},
    {"gpt-4o", PreTokenizerName::kGpt4o},
    {"llama4", PreTokenizerName::kGpt4o},
};

// Pre-tokenizers that all models of an architecture use, for files from before `tokenizer.ggml.pre` (April 2024).
// Architectures whose models differ in it, as those of llama do, are not here.
struct ArchitectureName {
  const char* architecture;
  const char* pre;
};
constexpr ArchitectureName kArchitectures[] = {
    {"gpt2", "gpt-2"},     {"gptj", "gpt-2"},          {"gptneox", "gpt-2"},
    {"phi2", "phi-2"},     {"olmo", "olmo"},           {"mpt", "mpt"},
    {"jais", "jais"},      {"starcoder", "starcoder"}, {"starcoder2", "starcoder"},
    {"refact", "refact"},  {"codeshell", "codeshell"}, {"command-r", "command-r"},
    {"dbrx", "dbrx"},      {"exaone", "exaone"},       {"qwen2", "qwen2"},
    {"qwen2moe", "qwen2"}, {"qwen3", "qwen2"},         {"qwen3moe", "qwen2"},
};

// The pre-tokenizer of a file that names none, with a warning.
std::string assumed_pre(const GgufTokenizerFields& fields, TokenizerSpec& spec) {
  const auto* known = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                   [&](const auto& a) { return fields.architecture == a.architecture; });
  std::string pre = known != std::end(kArchitectures) ? known->pre : "default";
  // Llama 3's vocabulary says which it is.
  if ((fields.architecture == "llama" || fields.architecture.starts_with("bitnet")) &&
      std::find(fields.tokens.begin(), fields.tokens.end(), "<|begin_of_text|>") != fields.tokens.end())
    pre = "llama-bpe";
  spec.warnings.push_back(fmt::format("the GGUF file has no tokenizer.ggml.pre; '{}' is assumed{}", pre,
                                      pre == "default"
                                          ? ", which splits many texts otherwise than the model's own tokenizer"
                                          : fmt::format(", which the models of {:.40} have", fields.architecture)));
  return pre;
}

PreTokenizerStep split_step(const char* pattern, SplitBehavior behavior = SplitBehavior::kIsolated) {
  PreTokenizerStep step;
  step.pattern = pattern;
  step.behavior = behavior;
  return step;
}

PreTokenizerStep byte_level_step(bool add_prefix_space, bool use_regex) {
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::kByteLevel;
  step.add_prefix_space = add_prefix_space;
  step.use_regex = use_regex;
  return step;
}

PreTokenizerStep digits_step() {
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::kDigits;
  step.individual_digits = true;
  return step;
}

Status set_byte_level_steps(const GgufTokenizerFields& fields, TokenizerSpec& spec) {
  const std::string pre = fields.pre.empty() ? assumed_pre(fields, spec) : fields.pre;
  const auto* known = std::find_if(std::begin(kPreTokenizerNames), std::end(kPreTokenizerNames),
                                   [&](const auto& p) { return pre == p.name; });
  if (known == std::end(kPreTokenizerNames))
    return fail(ErrorCode::kUnsupported, "gguf tokenizer.ggml.pre", fmt::format("{:.40}", pre),
                "default, gpt-2, smollm, llama-bpe, qwen2, tekken, gpt-4o or one of their aliases",
                "use the model's Hugging Face directory with its tokenizer.json instead");
  const bool prefix = fields.add_space_prefix.value_or(false);
  std::vector<PreTokenizerStep>& steps = spec.pre_tokenizer;
  switch (known->kind) {
    case PreTokenizerName::kDefault:
      steps = {split_step(kDefaultPunctuation), split_step(kGpt2Pattern), split_step(R"(\p{N}+)"),
               split_step("[0-9][0-9][0-9]")};
      break;
    case PreTokenizerName::kGpt2:
      break;
    case PreTokenizerName::kDigitsGpt2:
      steps = {digits_step()};
      break;
    case PreTokenizerName::kLlama3:
      steps = {split_step(kLlama3Pattern)};
      spec.ignore_merges = true;
      break;
    case PreTokenizerName::kQwen2:
      steps = {split_step(kQwen2Pattern)};
      if (pre == "qwen2") spec.normalizer.emplace_back();  // NFC
      break;
    case PreTokenizerName::kTekken:
      steps = {split_step(kTekkenPattern)};
      spec.ignore_merges = true;
      break;
    case PreTokenizerName::kGpt4o:
      steps = {split_step(kGpt4oPattern)};
      break;
  }
  const bool use_regex = known->kind == PreTokenizerName::kGpt2 || known->kind == PreTokenizerName::kDigitsGpt2;
  steps.push_back(byte_level_step(prefix, use_regex));
  spec.decoder.emplace_back();  // ByteLevel
  // Files from before the key existed: only Llama 3's own tokenizer wants a bos.
  spec.add_bos = known->kind == PreTokenizerName::kLlama3 && (pre == "llama-bpe" || pre.starts_with("llama"));
  return {};
}

void set_sentencepiece_steps(const GgufTokenizerFields& fields, TokenizerSpec& spec) {
  const bool prefix = fields.add_space_prefix.value_or(true);
  NormalizerStep prepend, replace;
  prepend.kind = NormalizerStep::Kind::kPrepend;
  prepend.content = kSpaceMark;
  replace.kind = NormalizerStep::Kind::kReplace;
  replace.pattern = " ";
  replace.content = kSpaceMark;
  if (prefix) spec.normalizer.push_back(prepend);
  spec.normalizer.push_back(replace);

  DecoderStep mark, bytes, fuse, strip;
  mark.kind = DecoderStep::Kind::kReplace;
  mark.pattern = kSpaceMark;
  mark.content = " ";
  bytes.kind = DecoderStep::Kind::kByteFallback;
  fuse.kind = DecoderStep::Kind::kFuse;
  strip.kind = DecoderStep::Kind::kStrip;
  strip.content = " ";
  strip.start = 1;
  spec.decoder = {mark, bytes, fuse};
  if (prefix) spec.decoder.push_back(strip);

  spec.merge_rule = TokenizerSpec::MergeRule::kScores;
  spec.scores = fields.scores;
  spec.byte_fallback = true;
  spec.fuse_unk = true;
  spec.add_bos = true;
}

Status set_tokens(const GgufTokenizerFields& fields, TokenizerSpec& spec) {
  const std::size_t n = fields.tokens.size();
  if (!fields.token_type.empty() && fields.token_type.size() != n)
    return fail(ErrorCode::kCorrupt, "gguf tokenizer.ggml.token_type",
                fmt::format("{} entries", fields.token_type.size()), fmt::format("{}", n));
  spec.tokens = fields.tokens;
  spec.types.assign(n, TokenType::kNormal);
  for (std::size_t i = 0; i < n; ++i) {
    if (fields.tokens[i].size() > kMaxTokenBytes)
      return fail(ErrorCode::kCorrupt, fmt::format("gguf token {}", i),
                  fmt::format("{} bytes", fields.tokens[i].size()), fmt::format("at most {}", kMaxTokenBytes));
    if (fields.token_type.empty()) continue;
    const std::int32_t type = fields.token_type[i];
    if (type < 0 || type > static_cast<int>(TokenType::kByte))
      return fail(ErrorCode::kCorrupt, fmt::format("gguf tokenizer.ggml.token_type[{}]", i), fmt::format("{}", type),
                  "1 to 6");
    if (type != 0) spec.types[i] = static_cast<TokenType>(type);
  }
  return {};
}

Status set_added_tokens(bool sentencepiece, TokenizerSpec& spec) {
  std::size_t bytes = 0;
  for (const std::string& token : spec.tokens) bytes += token.size();
  Budget budget = Budget::of_file(bytes);
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) {
    const TokenType type = spec.types[i];
    if (type != TokenType::kControl && type != TokenType::kUserDefined && type != TokenType::kUnknown) continue;
    if (spec.tokens[i].empty()) continue;
    AddedToken token;
    token.id = static_cast<TokenId>(i);
    token.special = type != TokenType::kUserDefined;
    // Text has a space there, not the mark that SentencePiece keeps in its vocabulary.
    token.content = sentencepiece ? replace_all(spec.tokens[i], kSpaceMark, " ", budget) : spec.tokens[i];
    if (!budget.spend_bytes(sizeof(AddedToken))) return budget.status("gguf added tokens");
    spec.added_tokens.push_back(std::move(token));
  }
  return budget.status("gguf added tokens");
}

Status set_merges(const GgufTokenizerFields& fields, TokenizerSpec& spec) {
  spec.merges.reserve(fields.merges.size());
  for (const std::string& merge : fields.merges) {
    // From the second byte: a token may itself begin with a space.
    const std::size_t space = merge.size() > 1 ? merge.find(' ', 1) : std::string::npos;
    if (space == std::string::npos || space + 1 == merge.size())
      return fail(ErrorCode::kCorrupt, fmt::format("gguf tokenizer.ggml.merges[{}]", spec.merges.size()),
                  fmt::format("{:.60}", merge), "\"left right\"");
    spec.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return {};
}

Status set_id(const char* name, std::optional<std::int64_t> from, std::size_t n, std::optional<TokenId>& to) {
  if (!from || *from == -1 || *from == 0xFFFFFFFF) return {};  // "none" in some files
  if (*from < 0 || static_cast<std::uint64_t>(*from) >= n)
    return fail(ErrorCode::kCorrupt, fmt::format("gguf tokenizer.ggml.{}", name), fmt::format("{}", *from),
                fmt::format("0 to {}", static_cast<std::int64_t>(n) - 1));
  to = static_cast<TokenId>(*from);
  return {};
}

}  // namespace
}  // namespace text

Result<TokenizerSpec> spec_from_gguf_fields(const GgufTokenizerFields& fields) {
  TokenizerSpec spec;
  const bool sentencepiece = fields.model == "llama";
  if (!sentencepiece && fields.model != "gpt2")
    return fail(ErrorCode::kUnsupported, "gguf tokenizer.ggml.model",
                fields.model.empty() ? "none" : fmt::format("{:.40}", fields.model),
                "gpt2 (byte-level BPE) or llama (SentencePiece BPE)");
  if (fields.tokens.empty()) return fail(ErrorCode::kCorrupt, "gguf tokenizer.ggml.tokens", "none", "a vocabulary");
  LOWBIT_TRY(text::set_tokens(fields, spec));
  if (sentencepiece) {
    text::set_sentencepiece_steps(fields, spec);
  } else {
    LOWBIT_TRY(text::set_byte_level_steps(fields, spec));
    LOWBIT_TRY(text::set_merges(fields, spec));
  }
  LOWBIT_TRY(text::set_added_tokens(sentencepiece, spec));
  const std::size_t n = spec.tokens.size();
  LOWBIT_TRY(text::set_id("bos_token_id", fields.bos_token_id, n, spec.bos_id));
  LOWBIT_TRY(text::set_id("eos_token_id", fields.eos_token_id, n, spec.eos_id));
  LOWBIT_TRY(text::set_id("padding_token_id", fields.padding_token_id, n, spec.pad_id));
  // A byte-level vocabulary never needs an unknown token, though many files name one.
  if (sentencepiece) LOWBIT_TRY(text::set_id("unknown_token_id", fields.unknown_token_id, n, spec.unk_id));
  spec.add_bos = fields.add_bos_token.value_or(spec.add_bos);
  spec.add_eos = fields.add_eos_token.value_or(false);
  spec.chat_template = fields.chat_template;
  return spec;
}

}  // namespace lowbit
