#include "model/random_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/float.h"
#include "base/rng.h"
#include "format/registry.h"
#include "ops/rope.h"

namespace lowbit {
namespace {

std::vector<float> random_values(Rng& rng, int64_t count, double mean, double deviation) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = float(mean + deviation * rng.normal());
  return values;
}

/// Random codes of an integer format with scales that make the reals have about `deviation`.
QTensor random_quantized(Rng& rng, const RandomModelSpec& spec, int64_t n, int64_t k, double deviation) {
  const FormatId format = spec.format;
  const int64_t group = spec.group;
  const FormatInfo& info = format_info(format);
  ValueTensor t;
  t.format = format;
  t.n = n;
  t.k = k;
  t.scaling = {spec.group_rows, group, ScaleKind::kF32, ZeroKind::kNone};
  t.codes.resize(size_t(n * k));
  for (uint8_t& c : t.codes) {
    c = uint8_t(rng.below(format_ops(format).codes));
    if (format == FormatId::kFp8 && (c & 0x7f) == 0x7f) --c;  // else it is NaN
  }
  for (int64_t r = 0; r < n; ++r) make_storable(format, t.codes.data() + r * k, k);
  t.scales.resize(size_t(ceil_div(n, spec.group_rows) * (group == Scaling::kAll ? 1 : ceil_div(k, group))));
  double spread = double(info.max_value - info.min_value) / 3.5;
  if (info.kind == ValueKind::kTable) {  // integers, as tables are fitted
    const int entries = 1 << info.code_bits;
    for (int i = 0; i < entries; ++i) t.codebook.push_back(float(127 * (2 * i - entries + 1) / (entries - 1)));
    spread = 254 / 3.5;
  }
  for (float& s : t.scales) s = float(deviation / spread * (0.75 + 0.5 * rng.uniform()));
  return *pack(t);
}

using Rows = std::vector<double>;

class Naive {
 public:
  Naive(const MemorySource& source, const RandomModelSpec& spec) : source_(source), s_(spec) {}

  Rows weight(const std::string& name) const {
    const QTensor& w = source_.weights.at(name);
    std::vector<float> f(size_t(w.n * w.k));
    dequantize_rows(w, 0, w.n, f.data());
    return Rows(f.begin(), f.end());
  }

  /// y[n] = sum_k w[n,k] x[k] + bias[n]
  Rows linear(const std::string& prefix, Rows x) const {
    if (source_.has(prefix + ".rms_norm.weight")) norm(x.data(), x.size(), weight(prefix + ".rms_norm.weight"));
    const Rows w = weight(prefix + ".weight");
    const size_t k = x.size(), n = w.size() / k;
    Rows y(n, 0.0);
    if (source_.has(prefix + ".bias")) y = weight(prefix + ".bias");
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < k; ++j) y[i] += w[i * k + j] * x[j];
    return y;
  }

  static void norm(double* x, size_t n, const Rows& w) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += x[i] * x[i];
    const double r = 1 / std::sqrt(sum / double(n) + 1e-5);
    for (size_t i = 0; i < n; ++i) x[i] = x[i] * r * w[i];
  }

  void rotate(double* x, double position) const {
    const size_t d = size_t(s_.head_dim), half = d / 2;
    for (size_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * double(i) / double(d));
      const double a = x[i], b = x[i + half];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
  }

  static void round_f16(Rows& x) {
    for (double& v : x) v = f16_to_f32(f32_to_f16(float(v)));
  }

  Rows step(int32_t token, size_t position) {
    const size_t hidden = size_t(s_.hidden);
    const Rows table = weight("model.embed_tokens.weight");
    Rows x(table.begin() + int64_t(hidden) * token, table.begin() + int64_t(hidden) * (token + 1));
    keys_.resize(size_t(s_.layers));
    values_.resize(size_t(s_.layers));
    for (size_t l = 0; l < size_t(s_.layers); ++l) {
      const std::string at = fmt::format("model.layers.{}.", l);
      Rows h = x;
      norm(h.data(), hidden, weight(at + "input_layernorm.weight"));
      Rows attended = attention(at + "self_attn.", l, h, position);
      if (bitnet()) norm(attended.data(), attended.size(), weight(at + "self_attn.attn_sub_norm.weight"));
      const Rows a = linear(at + "self_attn.o_proj", attended);
      for (size_t i = 0; i < hidden; ++i) x[i] += a[i];
      h = x;
      norm(h.data(), hidden, weight(at + "post_attention_layernorm.weight"));
      Rows gate = linear(at + "mlp.gate_proj", h);
      const Rows up = linear(at + "mlp.up_proj", h);
      for (size_t i = 0; i < gate.size(); ++i) {
        const double relu = std::max(gate[i], 0.0);
        gate[i] = (bitnet() ? relu * relu : gate[i] / (1 + std::exp(-gate[i]))) * up[i];
      }
      if (bitnet()) norm(gate.data(), gate.size(), weight(at + "mlp.ffn_sub_norm.weight"));
      const Rows down = linear(at + "mlp.down_proj", gate);
      for (size_t i = 0; i < hidden; ++i) x[i] += down[i];
    }
    norm(x.data(), hidden, weight("model.norm.weight"));
    return linear(s_.tied ? "model.embed_tokens" : "lm_head", x);
  }

 private:
  bool bitnet() const { return s_.model_type == "bitnet"; }

  size_t first_seen(size_t layer, size_t position) const {
    const auto window = size_t(s_.window);
    return window == 0 || layer < size_t(s_.first_windowed) || position < window ? 0 : position + 1 - window;
  }

  Rows attention(const std::string& at, size_t l, const Rows& h, size_t position) {
    const size_t d = size_t(s_.head_dim), heads = size_t(s_.heads), group = heads / size_t(s_.kv_heads);
    Rows q = linear(at + "q_proj", h), k = linear(at + "k_proj", h), v = linear(at + "v_proj", h);
    for (Rows* r : {&q, &k})
      for (size_t i = 0; i < r->size(); i += d) {
        if (s_.model_type == "qwen3") norm(&(*r)[i], d, weight(at + (r == &q ? "q_norm.weight" : "k_norm.weight")));
        rotate(&(*r)[i], double(position));
      }
    round_f16(k);
    round_f16(v);
    keys_[l].push_back(k);
    values_[l].push_back(v);
    Rows out(q.size(), 0.0);
    for (size_t hd = 0; hd < heads; ++hd) {
      const size_t kv = hd / group * d, first = first_seen(l, position);
      Rows p(position + 1);
      double sum = 0;
      for (size_t t = first; t <= position; ++t) {
        double dot = 0;
        for (size_t i = 0; i < d; ++i) dot += q[hd * d + i] * keys_[l][t][kv + i];
        p[t] = std::exp(dot / std::sqrt(double(d)));
        sum += p[t];
      }
      for (size_t t = first; t <= position; ++t)
        for (size_t i = 0; i < d; ++i) out[hd * d + i] += p[t] / sum * values_[l][t][kv + i];
    }
    return out;
  }

  const MemorySource& source_;
  const RandomModelSpec& s_;
  std::vector<std::vector<Rows>> keys_, values_;  // [layer][position]
};

/// The operations besides its weights that the model's checkpoint asks for.
std::string quantization_of(const RandomModelSpec& s) {
  std::string members;
  if (s.down_hadamard > 0) members += fmt::format(R"(, "online_hadamard": {{"mlp.down_proj": {}}})", s.down_hadamard);
  if (s.linear_norms) members += R"(, "linear_norms": {"eps": 1e-5})";
  return members.empty() ? "" : fmt::format(R"(, "quantization_config": {{"quant_method": "lowbit"{}}})", members);
}

}  // namespace

Result<QTensor> MemorySource::load(const std::string& name) const {
  const auto it = weights.find(name);
  if (it == weights.end()) return fail(ErrorCode::kNotFound, name, "no such tensor");
  return it->second;
}

void MemorySource::add(const std::string& name, QTensor w) {
  listed.push_back({name, {w.n, w.k}, format_info(w.format).name, w.total_bytes()});
  weights[name] = std::move(w);
}

void MemorySource::add(const std::string& name, int64_t n, int64_t k, const std::vector<float>& values) {
  QTensor w;
  w.format = FormatId::kF32;
  w.n = n;
  w.k = k;
  w.scaling = {};
  w.codes = *Buffer::allocate(n * k * 4, "test tensor");
  std::memcpy(w.codes.data(), values.data(), size_t(n * k) * 4);
  add(name, std::move(w));
}

MemorySource make_random_model(const RandomModelSpec& s) {
  MemorySource source;
  source.config = fmt::format(
      R"({{"model_type": "{}", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {},
          "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {}, "max_position_embeddings": {},
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": {}, "tie_word_embeddings": {},
          "attention_bias": {}, "mlp_bias": {}, "hidden_act": "{}", "bos_token_id": 1, "eos_token_id": [2, 3],
          "use_sliding_window": {}, "sliding_window": {}, "max_window_layers": {}{}}})",
      s.model_type, s.vocab, s.hidden, s.intermediate, s.layers, s.heads, s.kv_heads, s.head_dim, s.max_positions,
      s.rope_scaling, s.tied, s.attention_bias, s.mlp_bias, s.model_type == "bitnet" ? "relu2" : "silu", s.window > 0,
      s.window > 0 ? std::to_string(s.window) : "null", s.first_windowed, quantization_of(s));
  Rng rng(s.seed);
  const auto matrix = [&](const std::string& name, int64_t n, int64_t k) {
    const double deviation = 1.5 / std::sqrt(double(k));
    if (!is_dense(s.format)) {
      source.add(name, random_quantized(rng, s, n, k, deviation));
    } else {
      source.add(name, n, k, random_values(rng, n * k, 0, deviation));
    }
  };
  const auto vector = [&](const std::string& name, int64_t n, double mean) {
    source.add(name, 1, n, random_values(rng, n, mean, 0.2));
  };
  const auto linear = [&](const std::string& prefix, int64_t n, int64_t k, bool bias) {
    matrix(prefix + ".weight", n, k);
    if (bias) vector(prefix + ".bias", n, 0);
    if (s.linear_norms) vector(prefix + ".rms_norm.weight", k, 1);
  };
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const bool qkv_bias = s.attention_bias || s.model_type == "qwen2";
  matrix("model.embed_tokens.weight", s.vocab, s.hidden);
  if (!s.tied) matrix("lm_head.weight", s.vocab, s.hidden);
  vector("model.norm.weight", s.hidden, 1);
  for (int64_t l = 0; l < s.layers; ++l) {
    const std::string at = fmt::format("model.layers.{}.", l);
    vector(at + "input_layernorm.weight", s.hidden, 1);
    vector(at + "post_attention_layernorm.weight", s.hidden, 1);
    linear(at + "self_attn.q_proj", q, s.hidden, qkv_bias);
    linear(at + "self_attn.k_proj", kv, s.hidden, qkv_bias);
    linear(at + "self_attn.v_proj", kv, s.hidden, qkv_bias);
    linear(at + "self_attn.o_proj", s.hidden, q, s.attention_bias);
    if (s.model_type == "qwen3") {
      vector(at + "self_attn.q_norm.weight", s.head_dim, 1);
      vector(at + "self_attn.k_norm.weight", s.head_dim, 1);
    }
    if (s.model_type == "bitnet") {
      vector(at + "self_attn.attn_sub_norm.weight", q, 1);
      vector(at + "mlp.ffn_sub_norm.weight", s.intermediate, 1);
    }
    linear(at + "mlp.gate_proj", s.intermediate, s.hidden, s.mlp_bias);
    linear(at + "mlp.up_proj", s.intermediate, s.hidden, s.mlp_bias);
    linear(at + "mlp.down_proj", s.hidden, s.intermediate, s.mlp_bias);
  }
  return source;
}

std::vector<double> naive_forward(const MemorySource& source, const RandomModelSpec& spec,
                                  const std::vector<int32_t>& tokens) {
  Naive naive(source, spec);
  std::vector<double> logits;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Rows row = naive.step(tokens[i], i);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

}  // namespace lowbit
