#include "pipeline/rotated_source.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "base/try.h"
#include "io/json_text.h"
#include "model/config.h"
#include "pipeline/forwarding_source.h"
#include "pipeline/tensor_names.h"
#include "quantize/rotation.h"

namespace lowbit {
namespace {

struct Matrix {
  int64_t n = 0, k = 0;
  std::vector<float> values;
};

class RotatedSource final : public ForwardingSource {
 public:
  RotatedSource(const WeightSource& base, const ModelConfig& config, std::string config_json, uint64_t seed)
      : ForwardingSource(base),
        config_(config),
        config_json_(std::move(config_json)),
        stream_(config.hidden_size, seed),
        heads_(config.head_dim, seed + 1),
        tensors_(base.tensors()) {
    if (base.has(kHead)) return;
    for (const SourceTensor& t : base.tensors())
      if (t.name == kEmbedding) tensors_.push_back({kHead, t.shape, t.stored_as, t.stored_bytes});
  }
  const std::string& config_json() const override { return config_json_; }
  const std::vector<SourceTensor>& tensors() const override { return tensors_; }
  bool has(const std::string& name) const override { return name == kHead || base_.has(name); }
  bool lossless(const std::string& name) const override { return !turns(name) && base_.lossless(name); }
  void release(const std::string& name) const override { base_.release(stored(name)); }

  Result<QTensor> load(const std::string& name) const override {
    if (!turns(name)) return base_.load(name);
    LOWBIT_TRY_ASSIGN(Matrix w, read(stored(name)));
    LOWBIT_TRY(turn(name, w));
    QTensor out;
    out.n = w.n;
    out.k = w.k;
    LOWBIT_TRY_ASSIGN(out.codes, Buffer::allocate(w.n * w.k * int64_t(sizeof(float)), "rotated weights"));
    std::memcpy(out.codes.data(), w.values.data(), w.values.size() * sizeof(float));
    return out;
  }

 private:
  std::string stored(const std::string& name) const { return name == kHead && !base_.has(kHead) ? kEmbedding : name; }
  static bool is_block_norm(const std::string& name) {
    return name.ends_with(".input_layernorm.weight") || name.ends_with(".post_attention_layernorm.weight");
  }
  static bool turns(const std::string& name) {
    if (name == kEmbedding || name == kHead || name == kFinalNorm || is_block_norm(name)) return true;
    for (const char* layer :
         {"q_proj.weight", "k_proj.weight", "v_proj.weight", "v_proj.bias", "o_proj.weight", "o_proj.bias",
          "gate_proj.weight", "up_proj.weight", "down_proj.weight", "down_proj.bias"})
      if (name.ends_with(layer)) return true;
    return false;
  }

  Result<Matrix> read(const std::string& name) const {
    LOWBIT_TRY_ASSIGN(const QTensor w, base_.load(name));
    Matrix m{w.n, w.k, std::vector<float>(static_cast<size_t>(w.n * w.k))};
    dequantize_rows(w, 0, w.n, m.values.data());
    return m;
  }

  /// What the tensor must be in the rotated model.
  Status turn(const std::string& name, Matrix& w) const {
    const auto ends = [&](const char* end) { return name.ends_with(end); };
    if (name == kFinalNorm || is_block_norm(name)) {
      w.values.assign(w.values.size(), 1.0f);
      return {};
    }
    if (name == kEmbedding) return turn_inputs(name, "", w);
    if (name == kHead) return turn_inputs(name, kFinalNorm, w);
    if (ends(".bias")) {  // of a layer that writes to the stream or to the values
      if (ends("v_proj.bias")) return turn_heads(name, w.values.data(), w.k, 1, true);
      return turn_outputs(name, w.k, 1, w);
    }
    const std::string block = name.substr(0, name.find('.', sizeof("model.layers.") - 1) + 1);
    if (ends("o_proj.weight")) {
      LOWBIT_TRY(turn_heads(name, w.values.data(), w.n, w.k, false));
      return turn_outputs(name, w.n, w.k, w);
    }
    if (ends("down_proj.weight")) return turn_outputs(name, w.n, w.k, w);
    const bool is_mlp = ends("gate_proj.weight") || ends("up_proj.weight");
    LOWBIT_TRY(turn_inputs(name, block + (is_mlp ? "post_attention_layernorm.weight" : "input_layernorm.weight"), w));
    return ends("v_proj.weight") ? turn_heads(name, w.values.data(), w.n, w.k, true) : Status{};
  }

  static Status check(const std::string& name, int64_t got, int64_t wanted) {
    if (got == wanted) return {};
    return fail(ErrorCode::kShapeMismatch, name, std::to_string(got), std::to_string(wanted));
  }

  /// Columns are channels of the stream, behind the norm of that name.
  Status turn_inputs(const std::string& name, const std::string& norm, Matrix& w) const {
    LOWBIT_TRY(check(name, w.k, stream_.size()));
    if (!norm.empty()) {
      LOWBIT_TRY_ASSIGN(const Matrix g, read(norm));
      LOWBIT_TRY(check(norm, g.k, w.k));
      for (int64_t r = 0; r < w.n; ++r)
        for (int64_t c = 0; c < w.k; ++c)
          w.values[static_cast<size_t>(r * w.k + c)] *= g.values[static_cast<size_t>(c)];
    }
    stream_.rotate_rows(w.values.data(), w.n, w.k);
    return {};
  }
  Status turn_outputs(const std::string& name, int64_t n, int64_t k, Matrix& w) const {
    LOWBIT_TRY(check(name, n, stream_.size()));
    stream_.rotate_outputs(w.values.data(), k);
    return {};
  }
  /// Rows (outputs) or columns of w [n, k] are heads of values, one after another.
  Status turn_heads(const std::string& name, float* w, int64_t n, int64_t k, bool outputs) const {
    const int64_t d = heads_.size();
    LOWBIT_TRY(check(name, outputs ? n : k, outputs ? config_.kv_size() : config_.q_size()));
    if (outputs)
      for (int64_t at = 0; at < n; at += d) heads_.rotate_outputs(w + at * k, k);
    else
      for (int64_t at = 0; at < k; at += d) heads_.rotate_rows(w + at, n, k);
    return {};
  }

  ModelConfig config_;
  std::string config_json_;
  Rotation stream_, heads_;
  std::vector<SourceTensor> tensors_;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> rotate_source(const WeightSource& source, uint64_t seed) {
  LOWBIT_TRY_ASSIGN(const ModelConfig config, model_config_of(source));
  LOWBIT_TRY_ASSIGN(auto json, parse_json_object(source.config_json(), "config.json",
                                                 {.text_bytes = source.config_json().size() + 1}));
  json["tie_word_embeddings"] = false;
  return std::unique_ptr<WeightSource>(std::make_unique<RotatedSource>(source, config, json_dump(json, 2), seed));
}

}  // namespace lowbit
