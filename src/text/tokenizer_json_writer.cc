// TokenizerSpec -> tokenizer.json and tokenizer_config.json, as Hugging Face's libraries read them.

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/try.h"
#include "lowbit/tokenizer.h"
#include "text/tokenizer_impl.h"
#include "text/tokenizer_json_steps.h"

namespace lowbit {
namespace text {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr std::size_t kWrittenMergeBytes = 16, kWrittenTokenBytes = 64, kAddedTokenBytes = 640;

template <class AnyJson>
std::string dump(const AnyJson& json) {
  return json.dump(1, ' ', false, AnyJson::error_handler_t::replace) + "\n";
}

// Written as text: as a tree each pair would take 200 bytes.
Result<std::string> merges_text(const TokenizerSpec& spec, const std::unordered_map<std::string_view, TokenId>& ids,
                                Budget& budget) {
  std::string out = "[";
  const auto quoted = [](const std::string& text) {
    return Ordered(text).dump(-1, ' ', false, Ordered::error_handler_t::replace);
  };
  const auto put = [&](const std::string& left, const std::string& right) {
    out += (out.size() == 1 ? "\n   [" : ",\n   [") + quoted(left) + ", " + quoted(right) + "]";
    return budget.spend_bytes(2 * (left.size() + right.size()) + kWrittenMergeBytes);
  };
  bool fits = true;
  if (spec.merge_rule == TokenizerSpec::MergeRule::kScores) {
    LOWBIT_TRY_ASSIGN(const std::vector<ScoreMerge> merges, score_merges(spec, ids, budget));
    for (const ScoreMerge& m : merges) fits = fits && put(spec.tokens[m.left], spec.tokens[m.right]);
  } else {
    for (const auto& [left, right] : spec.merges) fits = fits && put(left, right);
  }
  LOWBIT_TRY(budget.status("tokenizer merges"));
  return out + "]";
}

Ordered added_json(const TokenizerSpec& spec) {
  Ordered out = Ordered::array();
  for (const AddedToken& t : spec.added_tokens)
    out.push_back({{"id", t.id},
                   {"content", t.content},
                   {"single_word", t.single_word},
                   {"lstrip", t.lstrip},
                   {"rstrip", t.rstrip},
                   {"normalized", t.normalized},
                   {"special", t.special}});
  return out;
}

// {"SpecialToken": ...} around {"Sequence": ...}; null when nothing is added.
Ordered post_processor_json(const TokenizerSpec& spec) {
  const bool bos = spec.add_bos && spec.bos_id, eos = spec.add_eos && spec.eos_id;
  if (!bos && !eos) return nullptr;
  Ordered special = Ordered::object();
  const auto token = [&](TokenId id, int type) {
    const std::string& text = spec.tokens[id];
    special[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
    return Ordered{{"SpecialToken", {{"id", text}, {"type_id", type}}}};
  };
  const auto add_text = [&](Ordered& list, const char* name, int type) {
    if (bos) list.push_back(token(*spec.bos_id, type));
    list.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
    if (eos) list.push_back(token(*spec.eos_id, type));
  };
  Ordered single = Ordered::array(), pair = Ordered::array();
  add_text(single, "A", 0);
  add_text(pair, "A", 0);
  add_text(pair, "B", 1);
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(special)}};
}

// Without its merges, which stand last.
Ordered model_json(const TokenizerSpec& spec) {
  // Pushed one by one: ordered_json looks for the key of each insertion from the start, which is quadratic.
  Ordered::object_t vocab;
  vocab.reserve(spec.tokens.size());
  for (std::size_t i = 0; i < spec.tokens.size(); ++i)
    if (!spec.tokens[i].empty()) vocab.push_back({spec.tokens[i], static_cast<TokenId>(i)});
  Ordered model{{"type", "BPE"}, {"dropout", nullptr}};
  model["unk_token"] = spec.unk_id ? Ordered(spec.tokens[*spec.unk_id]) : Ordered(nullptr);
  model["continuing_subword_prefix"] = nullptr;
  model["end_of_word_suffix"] = nullptr;
  model["fuse_unk"] = spec.fuse_unk;
  model["byte_fallback"] = spec.byte_fallback;
  model["ignore_merges"] = spec.ignore_merges;
  model["vocab"] = std::move(vocab);
  model["merges"] = Ordered::array();
  return model;
}

}  // namespace
}  // namespace text

Result<std::string> to_tokenizer_json(const TokenizerSpec& spec) {
  text::Budget budget = text::budget_of(spec);
  LOWBIT_TRY_ASSIGN(const auto ids, text::index_tokens(spec, budget));
  if (!budget.spend_bytes(spec.tokens.size(), text::kWrittenTokenBytes) ||
      !budget.spend_bytes(spec.added_tokens.size(), text::kAddedTokenBytes))
    LOWBIT_TRY(budget.status("tokenizer vocabulary"));
  LOWBIT_TRY_ASSIGN(const std::string merges, text::merges_text(spec, ids, budget));
  text::Ordered root{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = text::added_json(spec);
  root["normalizer"] = text::write_normalizer(spec.normalizer);
  root["pre_tokenizer"] = text::write_pre_tokenizer(spec.pre_tokenizer);
  root["post_processor"] = text::post_processor_json(spec);
  root["decoder"] = text::write_decoder(spec.decoder);
  root["model"] = text::model_json(spec);
  std::string out = text::dump(root);
  return out.replace(out.rfind("[]"), 2, merges);
}

Result<std::string> to_tokenizer_config_json(const TokenizerSpec& spec) {
  text::Budget budget = text::budget_of(spec);
  LOWBIT_TRY(text::index_tokens(spec, budget));
  text::Ordered root = text::Ordered::object();
  root["add_bos_token"] = spec.add_bos;
  root["add_eos_token"] = spec.add_eos;
  const auto token = [&](const char* key, std::optional<TokenId> id) {
    root[key] = id ? text::Ordered(spec.tokens[*id]) : text::Ordered(nullptr);
  };
  token("bos_token", spec.bos_id);
  token("eos_token", spec.eos_id);
  token("unk_token", spec.unk_id);
  token("pad_token", spec.pad_id);
  if (!spec.chat_template.empty()) root["chat_template"] = spec.chat_template;
  if (!spec.warnings.empty()) root["lowbit_warnings"] = spec.warnings;
  root["clean_up_tokenization_spaces"] = false;
  root["tokenizer_class"] = "PreTrainedTokenizerFast";
  return text::dump(root);
}

}  // namespace lowbit
