// GGUF metadata -> Hugging Face's config.json and generation_config.json.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "arch/family.h"
#include "base/try.h"
#include "io/json_text.h"
#include "model/source_kinds.h"

namespace lowbit {
namespace {

using nlohmann::json;

/// The shortest decimal that is this float: 1e-05, not 9.999999747378752e-06.
double shortest(double v) {
  const auto f = static_cast<float>(v);
  return static_cast<double>(f) == v ? std::strtod(fmt::format("{}", f).c_str(), nullptr) : v;
}

class Metadata {
 public:
  Metadata(const GgufFile& file, std::string architecture) : file_(file), architecture_(std::move(architecture)) {}
  const GgufValue* find(const char* key) const { return file_.value(architecture_ + key); }

  Result<int64_t> integer(const char* key) const {
    const GgufValue* v = find(key);
    const auto number = v == nullptr ? std::nullopt : v->as_int();
    if (!number)
      return fail(v == nullptr ? ErrorCode::kNotFound : ErrorCode::kUnsupported,
                  file_.path() + ": " + architecture_ + key, v == nullptr ? "nothing" : "no single integer",
                  "one integer for all layers");
    return *number;
  }
  Result<int64_t> integer(const char* key, int64_t fallback) const {
    return find(key) == nullptr ? Result<int64_t>(fallback) : integer(key);
  }
  /// nullopt: there is no such key. Errors: kCorrupt (no number, NaN, infinity, a negative one).
  Result<std::optional<double>> number(const char* key) const {
    const GgufValue* v = find(key);
    if (v == nullptr) return std::optional<double>();
    const auto number = v->as_double();
    if (number && std::isfinite(*number) && *number >= 0) return number;
    return bad(key, number ? fmt::format("{}", *number) : "no single number", "a finite number, not below 0");
  }
  Result<double> positive(const char* key, double fallback) const {
    LOWBIT_TRY_ASSIGN(const auto number, this->number(key));
    if (number && *number == 0) return bad(key, "0", "a number above 0");
    return number.value_or(fallback);
  }
  std::string text(const char* key) const {
    return std::string(find(key) == nullptr ? "" : find(key)->as_string().value_or(""));
  }

 private:
  tl::unexpected<Error> bad(const char* key, const std::string& got, const char* wanted) const {
    return fail(ErrorCode::kCorrupt, file_.path() + ": " + architecture_ + key, got, wanted);
  }
  const GgufFile& file_;
  std::string architecture_;
};

struct Llama3Scaling {
  double factor, low, high, original;
};

/// The factors that Llama 3.1's scaling gives each pair of a head: the formula of transformers'
/// _compute_llama3_parameters.
std::vector<float> llama3_factors(const Llama3Scaling& s, double theta, int64_t pairs) {
  std::vector<float> out;
  for (int64_t i = 0; i < pairs; ++i) {
    const double wavelength = 2 * M_PI * std::pow(theta, static_cast<double>(i) / static_cast<double>(pairs));
    double factor = 1;
    if (wavelength > s.original / s.low) {
      factor = s.factor;
    } else if (wavelength >= s.original / s.high) {
      const double smooth = (s.original / wavelength - s.low) / (s.high - s.low);
      factor = 1 / ((1 - smooth) / s.factor + smooth);
    }
    out.push_back(static_cast<float>(factor));
  }
  return out;
}

/// rope_freqs.weight holds the factors, not the parameters that made them. Every Llama 3.x file comes from low 1, high
/// 4, 8192 positions and the largest factor, so these are tried, and it is an error when they do not reproduce the
/// tensor.
Result<json> rope_scaling_of_factors(const GgufFile& file, const GgufTensor& tensor, double theta, int64_t head_dim) {
  const std::string where = file.path() + ": tensor 'rope_freqs.weight'";
  LOWBIT_TRY_ASSIGN(const QTensor w, file.load(tensor));
  if (w.format != FormatId::kF32 || w.n != 1 || w.k != head_dim / 2)
    return fail(ErrorCode::kCorrupt, where, shape_string(tensor.shape), "F32 " + shape_string({head_dim / 2}));
  std::vector<float> factors(static_cast<size_t>(w.k));
  dequantize_rows(w, 0, 1, factors.data());
  const double largest = static_cast<double>(*std::max_element(factors.begin(), factors.end()));
  for (const double original : {8192.0, 4096.0, 2048.0, 16384.0, 32768.0}) {
    const Llama3Scaling s{largest, 1, 4, original};
    const auto expected = llama3_factors(s, theta, w.k);
    bool equal = true;
    for (size_t i = 0; i < factors.size(); ++i)
      equal = equal && std::fabs(factors[i] - expected[i]) <= 1e-4f * expected[i];
    if (!equal) continue;
    return json{{"rope_type", "llama3"},
                {"factor", shortest(largest)},
                {"low_freq_factor", 1.0},
                {"high_freq_factor", 4.0},
                {"original_max_position_embeddings", static_cast<int64_t>(original)}};
  }
  return fail(ErrorCode::kUnsupported, where, "factors that Llama 3's rope scaling does not give",
              "low 1, high 4, 2048 to 32768 positions", "start from the Hugging Face directory of this model");
}

/// A count that some writers store as a float.
Result<int64_t> whole_number(const Metadata& m, const char* key) {
  constexpr double kMost = 9007199254740992;  // 2^53: integers up to here are exact
  LOWBIT_TRY_ASSIGN(const auto number, m.number(key));
  if (number && *number <= kMost && *number == std::floor(*number)) return static_cast<int64_t>(*number);
  return m.integer(key);
}

/// Blocks beyond block_count would silently be left out.
Status check_block_count(const GgufFile& file, int64_t blocks) {
  for (const GgufTensor& t : file.tensors()) {
    const size_t end =
        t.name.starts_with(names::kBlocks.gguf) ? t.name.find('.', names::kBlocks.gguf.size()) : std::string::npos;
    if (end == std::string::npos) continue;
    const std::string number = t.name.substr(names::kBlocks.gguf.size(), end - names::kBlocks.gguf.size());
    if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos) continue;
    if (number.size() < 10 && std::stoll(number) < blocks) continue;  // longer ones are no block that there may be
    return fail(ErrorCode::kCorrupt, file.path() + ": block_count", std::to_string(blocks),
                "more, since there is a tensor '" + t.name + "'");
  }
  return {};
}

Status add_rope(const GgufFile& file, const Metadata& m, int64_t head_dim, json* config) {
  LOWBIT_TRY_ASSIGN(const double base, m.positive(".rope.freq_base", 10000.0));
  const double theta = shortest(base);
  (*config)["rope_theta"] = theta;
  LOWBIT_TRY_ASSIGN(const int64_t rotated, m.integer(".rope.dimension_count", head_dim));
  if (rotated != head_dim)
    (*config)["partial_rotary_factor"] = static_cast<double>(rotated) / static_cast<double>(head_dim);
  if (const GgufTensor* factors = file.find("rope_freqs.weight")) {
    LOWBIT_TRY_ASSIGN((*config)["rope_scaling"], rope_scaling_of_factors(file, *factors, theta, head_dim));
    return {};
  }
  std::string type = m.text(".rope.scaling.type");
  LOWBIT_TRY_ASSIGN(auto factor, m.number(".rope.scaling.factor"));
  if (type.empty() && m.find(".rope.scale_linear") != nullptr) {  // the key's older name
    type = "linear";
    LOWBIT_TRY_ASSIGN(factor, m.number(".rope.scale_linear"));
  }
  if (type.empty() || type == "none" || factor.value_or(1) == 1 || *factor == 0) return {};
  json scaling = {{"rope_type", type}, {"factor", shortest(*factor)}};
  if (m.find(".rope.scaling.original_context_length") != nullptr) {
    LOWBIT_TRY_ASSIGN(scaling["original_max_position_embeddings"],
                      whole_number(m, ".rope.scaling.original_context_length"));
  }
  (*config)["rope_scaling"] = std::move(scaling);
  return {};
}

void add_token_ids(const GgufFile& file, json* config) {
  for (const auto& [gguf, hf] :
       {std::pair{"bos", "bos_token_id"}, {"eos", "eos_token_id"}, {"padding", "pad_token_id"}}) {
    const GgufValue* v = file.value(std::string("tokenizer.ggml.") + gguf + "_token_id");
    const auto id = v == nullptr ? std::nullopt : v->as_int();
    if (id && *id >= 0) (*config)[hf] = *id;
  }
}

/// Width and heads. Returns the width of a head.
Result<int64_t> add_heads(const GgufFile& file, const Metadata& m, json* config) {
  LOWBIT_TRY_ASSIGN(const int64_t hidden, m.integer(".embedding_length"));
  LOWBIT_TRY_ASSIGN(const int64_t heads, m.integer(".attention.head_count"));
  LOWBIT_TRY_ASSIGN(const int64_t kv_heads, m.integer(".attention.head_count_kv", heads));
  if (hidden < 1 || heads < 1 || kv_heads < 1 || heads > hidden || kv_heads > heads)
    return fail(ErrorCode::kCorrupt, file.path() + ": metadata",
                fmt::format("{} heads, {} of them for keys, {} hidden", heads, kv_heads, hidden),
                "positive numbers that fit each other");
  LOWBIT_TRY_ASSIGN(const int64_t head_dim, m.integer(".attention.key_length", hidden / heads));
  if (head_dim < 2 || head_dim > 65536)
    return fail(ErrorCode::kCorrupt, file.path() + ": attention.key_length", std::to_string(head_dim), "2 to 65536");
  (*config)["hidden_size"] = hidden;
  (*config)["num_attention_heads"] = heads;
  (*config)["num_key_value_heads"] = kv_heads;
  (*config)["head_dim"] = head_dim;
  return head_dim;
}

}  // namespace

Result<std::string> gguf_config_json(const GgufFile& file) {
  const GgufValue* v = file.value("general.architecture");
  const std::string architecture(v == nullptr ? "" : v->as_string().value_or(""));
  const Family* family = family_of_gguf(architecture);
  if (family == nullptr)
    return fail(ErrorCode::kUnsupported, file.path() + ": general.architecture", "'" + architecture.substr(0, 64) + "'",
                gguf_family_list());
  LOWBIT_TRY_ASSIGN(const ModelSpec outline, outline_of(*family));
  const std::string embedding_name = gguf_weight_name(outline.embedding);
  const GgufTensor* embedding = file.find(embedding_name);
  if (embedding == nullptr || embedding->shape.size() != 2)
    return fail(ErrorCode::kNotFound, file.path() + ": tensor '" + embedding_name + "'", "nothing",
                "an embedding [vocabulary, hidden]", file.tensors().empty() ? "this file holds a vocabulary only" : "");
  const Metadata m(file, architecture);
  json config = {{"architectures", {family->class_name}},
                 {"model_type", family->model_type},
                 {"hidden_act", architecture == "bitnet" ? "silu" : family->defaults.hidden_act}};
  LOWBIT_TRY_ASSIGN(const int64_t head_dim, add_heads(file, m, &config));
  LOWBIT_TRY_ASSIGN(config["intermediate_size"], m.integer(".feed_forward_length"));
  LOWBIT_TRY_ASSIGN(const int64_t blocks, m.integer(".block_count"));
  LOWBIT_TRY(check_block_count(file, blocks));
  config["num_hidden_layers"] = blocks;
  LOWBIT_TRY_ASSIGN(config["max_position_embeddings"], m.integer(".context_length"));
  config["vocab_size"] = embedding->shape[0];
  LOWBIT_TRY_ASSIGN(const double epsilon, m.positive(".attention.layer_norm_rms_epsilon", 1e-5));
  config["rms_norm_eps"] = shortest(epsilon);
  // BitNet's first files have the embedding's weights again as the head's.
  const GgufTensor* head = file.find(gguf_weight_name(outline.head.name));
  bool tied = head == nullptr;
  if (!tied && family == &kBitnet) {
    LOWBIT_TRY_ASSIGN(tied, file.same_tensor(*head, *embedding));
  }
  config["tie_word_embeddings"] = tied;
  LOWBIT_TRY_ASSIGN(const int64_t window, m.integer(".attention.sliding_window", 0));
  if (window > 0) {
    config["sliding_window"] = window;
    config["use_sliding_window"] = true;
    config["max_window_layers"] = 0;  // the metadata names no layers: all have it
    if (family == &kLlama) config["model_type"] = kMistral.model_type;
  }
  const auto has_bias = [&](const InputSpec& input) {
    return file.find(gguf_bias_name(0, input.readers.front().name)) != nullptr;
  };
  const BlockSpec& block = outline.blocks.front();
  if (family != &kQwen2) config["attention_bias"] = has_bias(block.attention.qkv);
  if (family == &kLlama) config["mlp_bias"] = has_bias(block.mlp.gate_up);
  LOWBIT_TRY(add_rope(file, m, head_dim, &config));
  add_token_ids(file, &config);
  return json_dump(config, 2) + "\n";
}

std::string gguf_generation_config_json(const GgufFile& file) {
  json config = json::object();
  add_token_ids(file, &config);
  // Chat models often end a turn with another token than a text.
  const GgufValue* turn = file.value("tokenizer.ggml.eot_token_id");
  const auto id = turn == nullptr ? std::nullopt : turn->as_int();
  if (id && *id >= 0 && config.contains("eos_token_id") && config["eos_token_id"] != *id)
    config["eos_token_id"] = {config["eos_token_id"], *id};
  return config.empty() ? "" : json_dump(config, 2) + "\n";
}

}  // namespace lowbit
