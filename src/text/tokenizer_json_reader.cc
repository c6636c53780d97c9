// Hugging Face's tokenizer.json and tokenizer_config.json -> TokenizerSpec.

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/try.h"
#include "lowbit/tokenizer.h"
#include "text/byte_alphabet.h"
#include "text/json_input.h"
#include "text/tokenizer_json_parts.h"
#include "text/tokenizer_json_steps.h"

namespace lowbit {
namespace text {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{128} << 20;
constexpr std::size_t kMaxConfigBytes = std::size_t{32} << 20;
constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxWarnings = 8, kMaxWarningBytes = 300;
constexpr std::string_view kWhere = "tokenizer.json";
constexpr std::string_view kConfigWhere = "tokenizer_config.json";

// Without a tokenizer_config.json nothing names the end token; these are tried in order.
constexpr std::string_view kUsualEos[] = {"</s>",          "<|im_end|>", "<|eot_id|>", "<|end_of_text|>",
                                          "<|endoftext|>", "<eos>"};

using Ids = std::unordered_map<std::string_view, TokenId>;

tl::unexpected<Error> corrupt(const std::string& where, std::string got, std::string wanted) {
  return fail(ErrorCode::kCorrupt, std::string(kWhere) + " " + where, std::move(got), std::move(wanted));
}

// Ids index a table, so a file cannot ask for one much longer than itself.
Result<TokenId> read_id(const Json& json, std::size_t limit, std::string_view what) {
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() >= limit)
    return corrupt(fmt::format("id of {:.60}", what), json.dump(-1, ' ', false, Json::error_handler_t::replace),
                   fmt::format("a number from 0 to {}", limit - 1));
  return json.get<TokenId>();
}

Status put_token(TokenizerSpec& spec, TokenId id, const std::string& text) {
  if (static_cast<std::size_t>(id) >= spec.tokens.size()) {
    spec.tokens.resize(id + 1);
    spec.types.resize(id + 1, TokenType::kUnused);
  }
  std::string& slot = spec.tokens[id];
  if (!slot.empty() && slot != text)
    return corrupt("vocabulary", fmt::format("id {} for {:.60} and for {:.60}", id, slot, text), "one token per id");
  slot = text;
  if (!text.empty()) spec.types[id] = TokenType::kNormal;
  return {};
}

Status read_vocab(TokenizerParts& parts, TokenizerSpec& spec) {
  const Json& vocab = member(member(parts.rest, "model"), "vocab");
  if (!parts.has_vocab || !vocab.is_null()) return corrupt("model.vocab", vocab.type_name(), "an object of token: id");
  const Json& added = member(parts.rest, "added_tokens");
  if (!added.is_null() && !added.is_array()) return corrupt("added_tokens", added.type_name(), "an array");
  const std::size_t limit = 2 * (parts.vocab.size() + added.size()) + 1024;
  for (auto& [text, id] : parts.vocab) {
    if (id >= limit)
      return corrupt(fmt::format("id of {:.60}", text), fmt::format("{}", id),
                     fmt::format("a number from 0 to {}", limit - 1));
    LOWBIT_TRY(put_token(spec, static_cast<TokenId>(id), text));
    std::string().swap(text);
  }
  for (const Json& json : added) {
    if (!json.is_object()) return corrupt("added_tokens", json.type_name(), "objects");
    AddedToken token;
    LOWBIT_TRY_ASSIGN(token.content, string_member(json, "content", "", "tokenizer.json added token"));
    LOWBIT_TRY_ASSIGN(token.id, read_id(member(json, "id"), limit, token.content));
    const std::pair<const char*, bool*> flags[] = {{"special", &token.special},
                                                   {"lstrip", &token.lstrip},
                                                   {"rstrip", &token.rstrip},
                                                   {"normalized", &token.normalized},
                                                   {"single_word", &token.single_word}};
    for (const auto& [key, flag] : flags) {
      LOWBIT_TRY_ASSIGN(*flag, bool_member(json, key, false, "tokenizer.json added token"));
    }
    LOWBIT_TRY(put_token(spec, token.id, token.content));
    spec.added_tokens.push_back(std::move(token));
  }
  return {};
}

Status read_merges(TokenizerParts& parts, TokenizerSpec& spec) {
  const Json& merges = member(member(parts.rest, "model"), "merges");
  if (!parts.has_merges || !merges.is_null()) return corrupt("model.merges", merges.type_name(), "an array");
  spec.merges = std::move(parts.merges);
  return {};
}

Status check_model(const Json& model) {
  if (!model.is_object()) return corrupt("model", model.type_name(), "an object");
  LOWBIT_TRY_ASSIGN(std::string type, string_member(model, "type", "", kWhere));
  if (type.empty() && model.contains("merges")) type = "BPE";  // files from before 2020
  if (type != "BPE")
    return fail(ErrorCode::kUnsupported, "tokenizer.json model", fmt::format("type {:.40}", type), "BPE",
                "Unigram, WordPiece and WordLevel vocabularies are not supported");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    LOWBIT_TRY_ASSIGN(const std::string affix, string_member(model, key, "", "tokenizer.json model"));
    if (!affix.empty())
      return fail(ErrorCode::kUnsupported, "tokenizer.json model", fmt::format("{} = {:.20}", key, affix), "none");
  }
  const Json& dropout = member(model, "dropout");
  if (dropout.is_number() && dropout.get<double>() != 0)
    return fail(ErrorCode::kUnsupported, "tokenizer.json model", "dropout", "none");
  return {};
}

Status read_model(TokenizerParts& parts, TokenizerSpec& spec) {
  const Json& model = member(parts.rest, "model");
  LOWBIT_TRY(check_model(model));
  LOWBIT_TRY(read_vocab(parts, spec));
  LOWBIT_TRY(read_merges(parts, spec));
  constexpr std::string_view kModel = "tokenizer.json model";
  LOWBIT_TRY_ASSIGN(spec.byte_fallback, bool_member(model, "byte_fallback", false, kModel));
  LOWBIT_TRY_ASSIGN(spec.ignore_merges, bool_member(model, "ignore_merges", false, kModel));
  LOWBIT_TRY_ASSIGN(spec.fuse_unk, bool_member(model, "fuse_unk", false, kModel));
  return {};
}

std::optional<TokenId> find_id(const Ids& ids, const std::string& text) {
  const auto it = ids.find(text);
  return it == ids.end() || text.empty() ? std::nullopt : std::optional<TokenId>(it->second);
}

// The special tokens that a TemplateProcessing puts before and behind a single text.
Status read_template(const Json& json, const Ids& ids, TokenizerSpec& spec) {
  const Json& single = member(json, "single");
  if (!single.is_array()) return corrupt("post_processor single", single.type_name(), "an array");
  bool behind = false;
  for (const Json& item : single) {
    if (item.is_object() && item.contains("Sequence")) {
      behind = true;
      continue;
    }
    LOWBIT_TRY_ASSIGN(const std::string text,
                      string_member(member(item, "SpecialToken"), "id", "", "tokenizer.json post_processor"));
    const std::optional<TokenId> id = find_id(ids, text);
    if (!id) return corrupt("post_processor", fmt::format("{:.60}", text), "a token");
    bool& flag = behind ? spec.add_eos : spec.add_bos;
    if (flag)
      return fail(ErrorCode::kUnsupported, "tokenizer.json post_processor", "two special tokens at one end",
                  "at most one");
    flag = true;
    (behind ? spec.eos_id : spec.bos_id) = id;
  }
  return {};
}

Status read_post_processor(const Json& json, const Ids& ids, TokenizerSpec& spec, int depth = 0) {
  if (json.is_null()) return {};
  LOWBIT_TRY_ASSIGN(const std::string type, string_member(json, "type", "", "tokenizer.json post_processor"));
  if (type == "ByteLevel") return {};  // only moves offsets
  if (type == "TemplateProcessing") return read_template(json, ids, spec);
  if (type == "Sequence" && depth < kMaxDepth) {
    for (const Json& step : member(json, "processors")) LOWBIT_TRY(read_post_processor(step, ids, spec, depth + 1));
    return {};
  }
  return fail(ErrorCode::kUnsupported, "tokenizer.json post_processor", fmt::format("{:.60}", type),
              "TemplateProcessing, ByteLevel or a Sequence of them");
}

void set_types(TokenizerSpec& spec) {
  if (spec.byte_fallback)
    for (std::size_t i = 0; i < spec.tokens.size(); ++i)
      if (parse_byte_token(spec.tokens[i])) spec.types[i] = TokenType::kByte;
  for (const AddedToken& token : spec.added_tokens)
    spec.types[token.id] = token.special ? TokenType::kControl : TokenType::kUserDefined;
  if (spec.unk_id) spec.types[*spec.unk_id] = TokenType::kUnknown;
}

// "<s>" or {"content": "<s>", ...}; a token that the vocabulary lacks is as good as none.
Result<std::optional<TokenId>> config_token(const Json& config, const char* key, const Ids& ids) {
  const Json& json = member(config, key);
  if (json.is_object()) {
    LOWBIT_TRY_ASSIGN(const std::string text, string_member(json, "content", "", kConfigWhere));
    return find_id(ids, text);
  }
  LOWBIT_TRY_ASSIGN(const std::string text, string_member(config, key, "", kConfigWhere));
  return find_id(ids, text);
}

// A string, or an array of {"name", "template"}, of which "default" is the one for chat.
Result<std::string> config_template(const Json& config) {
  const Json& json = member(config, "chat_template");
  if (!json.is_array()) return string_member(config, "chat_template", "", kConfigWhere);
  std::string chosen;
  for (const Json& entry : json) {
    LOWBIT_TRY_ASSIGN(const std::string name, string_member(entry, "name", "", kConfigWhere));
    LOWBIT_TRY_ASSIGN(std::string source, string_member(entry, "template", "", kConfigWhere));
    if (name == "default" || chosen.empty()) chosen = std::move(source);
    if (name == "default") break;
  }
  return chosen;
}

// Notes that lowbit wrote when it made the file from a GGUF file. Shown on terminals, so only what is printable.
Status read_warnings(const Json& config, TokenizerSpec& spec) {
  const Json& warnings = member(config, "lowbit_warnings");
  if (warnings.is_null()) return {};
  if (!warnings.is_array() || warnings.size() > kMaxWarnings)
    return fail(ErrorCode::kCorrupt, fmt::format("{} \"lowbit_warnings\"", kConfigWhere), warnings.type_name(),
                fmt::format("at most {} strings", kMaxWarnings));
  for (const Json& warning : warnings) {
    if (!warning.is_string())
      return fail(ErrorCode::kCorrupt, fmt::format("{} \"lowbit_warnings\"", kConfigWhere), warning.type_name(),
                  "strings");
    std::string text = warning.get<std::string>().substr(0, kMaxWarningBytes);
    for (char& c : text)
      if (c < ' ' || c > '~') c = '?';
    spec.warnings.push_back(std::move(text));
  }
  return {};
}

Status read_config(std::string_view text, const Ids& ids, TokenizerSpec& spec) {
  if (text.empty()) return {};
  LOWBIT_TRY_ASSIGN(const Json config, parse_json(text, kConfigWhere, kMaxConfigBytes, kMaxDepth));
  if (!config.is_object()) return fail(ErrorCode::kCorrupt, std::string(kConfigWhere), config.type_name(), "an object");
  const std::pair<const char*, std::optional<TokenId>*> tokens[] = {{"bos_token", &spec.bos_id},
                                                                    {"eos_token", &spec.eos_id},
                                                                    {"unk_token", &spec.unk_id},
                                                                    {"pad_token", &spec.pad_id}};
  for (const auto& [key, slot] : tokens) {
    LOWBIT_TRY_ASSIGN(const std::optional<TokenId> id, config_token(config, key, ids));
    // The model's own unknown token counts; the post-processor's tokens hold where the config is silent.
    if (id && !(slot == &spec.unk_id && *slot)) *slot = id;
  }
  LOWBIT_TRY_ASSIGN(spec.add_bos, bool_member(config, "add_bos_token", spec.add_bos, kConfigWhere));
  LOWBIT_TRY_ASSIGN(spec.add_eos, bool_member(config, "add_eos_token", spec.add_eos, kConfigWhere));
  LOWBIT_TRY_ASSIGN(spec.chat_template, config_template(config));
  return read_warnings(config, spec);
}

void guess_eos(const Ids& ids, TokenizerSpec& spec) {
  for (const std::string_view text : kUsualEos) {
    if (spec.eos_id) return;
    const auto it = ids.find(text);
    if (it != ids.end() && spec.types[it->second] == TokenType::kControl) spec.eos_id = it->second;
  }
}

}  // namespace
}  // namespace text

Result<TokenizerSpec> spec_from_tokenizer_json(std::string_view tokenizer_json,
                                               std::string_view tokenizer_config_json) {
  using namespace text;  // NOLINT: one function, the readers of this file
  if (tokenizer_json.size() > kMaxFileBytes)
    return fail(ErrorCode::kCorrupt, std::string(kWhere), fmt::format("{} bytes", tokenizer_json.size()),
                fmt::format("at most {}", kMaxFileBytes));
  Budget budget = Budget::of_file(tokenizer_json.size());
  LOWBIT_TRY_ASSIGN(TokenizerParts parts, parse_tokenizer_json(tokenizer_json, kWhere, kMaxDepth, budget));
  const Json& root = parts.rest;
  if (!root.is_object()) return fail(ErrorCode::kCorrupt, std::string(kWhere), root.type_name(), "an object");
  TokenizerSpec spec;
  LOWBIT_TRY(read_model(parts, spec));
  LOWBIT_TRY_ASSIGN(spec.normalizer, read_normalizer(member(root, "normalizer")));
  LOWBIT_TRY_ASSIGN(spec.pre_tokenizer, read_pre_tokenizer(member(root, "pre_tokenizer")));
  LOWBIT_TRY_ASSIGN(spec.decoder, read_decoder(member(root, "decoder")));

  Ids ids;
  ids.reserve(spec.tokens.size());
  for (std::size_t i = 0; i < spec.tokens.size(); ++i) ids.emplace(spec.tokens[i], static_cast<TokenId>(i));
  LOWBIT_TRY_ASSIGN(const std::string unk,
                    string_member(member(root, "model"), "unk_token", "", "tokenizer.json model"));
  spec.unk_id = find_id(ids, unk);
  if (!unk.empty() && !spec.unk_id)
    return corrupt("model.unk_token", fmt::format("{:.60}", unk), "a token of the vocabulary");
  LOWBIT_TRY(read_post_processor(member(root, "post_processor"), ids, spec));
  set_types(spec);
  LOWBIT_TRY(read_config(tokenizer_config_json, ids, spec));
  guess_eos(ids, spec);
  return spec;
}

}  // namespace lowbit
