// Transformer::load: every tensor is fetched, checked, prepared and released before the next one.

#include <fmt/format.h>

#include <unordered_map>

#include "base/try.h"
#include "io/lost_pages.h"
#include "kernels/registry.h"
#include "model/fetch_tensor.h"
#include "model/transformer.h"

namespace lowbit {
class TransformerLoader {
 public:
  TransformerLoader(const WeightSource& source, const LoadOptions& options, Transformer& model)
      : source_(source), options_(options), model_(model), config_(model.config_) {
    for (const SourceTensor& t : source.tensors()) bytes_of_[t.name] = t.stored_bytes;
    for (const SourceTensor& t : source.tensors()) bytes_total_ += t.stored_bytes;
  }

  Status run() {
    if (options_.only_block) {
      model_.config_.layers = 1;
      model_.layers_.resize(1);
      return load_layer(*options_.only_block, model_.layers_[0]);
    }
    model_.layers_.resize(size_t(config_.layers));
    LOWBIT_TRY(load_ends());
    for (int64_t i = 0; i < config_.layers; ++i) LOWBIT_TRY(load_layer(i, model_.layers_[size_t(i)]));
    return {};
  }

 private:
  Result<QTensor> fetch(const std::string& name, int64_t n, int64_t k) {
    return fetch_tensor(source_, name, n, k, *model_.pool_);
  }

  /// The caller is done with the file's pages of this tensor.
  Status done(const std::string& name) {
    source_.release(name);
    bytes_done_ += bytes_of_[name];
    if (options_.progress && !options_.progress(bytes_done_, bytes_total_))
      return fail(ErrorCode::kCancelled, source_.path(), "a request to stop");
    return {};
  }

  Status load_vector(const std::string& name, int64_t n, std::vector<float>& out) {
    LOWBIT_TRY_ASSIGN(const QTensor w, fetch(name, 1, n));
    out.resize(size_t(n));
    dequantize_rows(w, 0, 1, out.data());
    return done(name);
  }

  Status plan_linear(const QTensor& w, const std::string& name, Linear& out) {
    MatmulOptions options;
    options.activation_group = options_.activations_as_trained ? trained_activation_group(w, options_.activation_group)
                                                               : options_.activation_group;
    options.activation = layer_activation(w, options_.activation, options.activation_group).kind;
    options.isa = options_.isa;
    options.reference = options_.reference;
    auto plan = MatmulPlan::make(w, options, *model_.pool_);
    if (!plan) {
      plan.error().where = fmt::format("{} ({})", name, plan.error().where);
      return tl::unexpected<Error>(std::move(plan.error()));
    }
    out.name = name;
    out.plan = std::move(*plan);
    return {};
  }

  Status load_linear(const std::string& prefix, int64_t n, int64_t k, bool with_bias, Linear& out) {
    const std::string name = prefix + ".weight";
    {
      LOWBIT_TRY_ASSIGN(const QTensor w, fetch(name, n, k));
      LOWBIT_TRY(plan_linear(w, name, out));
    }
    LOWBIT_TRY(done(name));
    if (with_bias) LOWBIT_TRY(load_vector(prefix + ".bias", n, out.bias));
    return {};
  }

  Status load_ends() {
    const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
    const std::string embedding = "model.embed_tokens.weight";
    LOWBIT_TRY_ASSIGN(model_.embedding_, fetch(embedding, vocab, hidden));
    if (config_.tied_head) {
      LOWBIT_TRY(plan_linear(model_.embedding_, embedding, model_.head_));
    } else {
      LOWBIT_TRY(load_linear("lm_head", vocab, hidden, false, model_.head_));
    }
    LOWBIT_TRY(done(embedding));  // single rows are read again as tokens need them
    return load_vector("model.norm.weight", hidden, model_.final_norm_);
  }

  Status load_layer(int64_t index, Transformer::Layer& l) {
    const ModelConfig& c = config_;
    const std::string at = fmt::format("model.layers.{}.", index);
    LOWBIT_TRY(load_vector(at + "input_layernorm.weight", c.hidden_size, l.input_norm));
    LOWBIT_TRY(load_linear(at + "self_attn.q_proj", c.q_size(), c.hidden_size, c.qkv_bias, l.q));
    LOWBIT_TRY(load_linear(at + "self_attn.k_proj", c.kv_size(), c.hidden_size, c.qkv_bias, l.k));
    LOWBIT_TRY(load_linear(at + "self_attn.v_proj", c.kv_size(), c.hidden_size, c.qkv_bias, l.v));
    if (c.qk_norm) {
      LOWBIT_TRY(load_vector(at + "self_attn.q_norm.weight", c.head_dim, l.q_norm));
      LOWBIT_TRY(load_vector(at + "self_attn.k_norm.weight", c.head_dim, l.k_norm));
    }
    LOWBIT_TRY(load_linear(at + "self_attn.o_proj", c.hidden_size, c.q_size(), c.o_bias, l.o));
    LOWBIT_TRY(load_vector(at + "post_attention_layernorm.weight", c.hidden_size, l.post_norm));
    LOWBIT_TRY(load_linear(at + "mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias, l.gate));
    LOWBIT_TRY(load_linear(at + "mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias, l.up));
    return load_linear(at + "mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias, l.down);
  }

  const WeightSource& source_;
  const LoadOptions& options_;
  Transformer& model_;
  const ModelConfig& config_;
  std::unordered_map<std::string, int64_t> bytes_of_;
  int64_t bytes_done_ = 0, bytes_total_ = 0;
};

namespace {

Result<int64_t> choose_context(const ModelConfig& config, int64_t asked) {
  if (asked == 0) return config.longest_context();
  if (asked < 0) return fail(ErrorCode::kInvalidArgument, "context", fmt::format("{}", asked), "at least 1");
  if (config.sliding_window > 0 && asked > config.sliding_window)
    return fail(ErrorCode::kUnsupported, "context", fmt::format("{} positions", asked),
                fmt::format("at most sliding_window = {}", config.sliding_window),
                "lowbit has no sliding-window attention; up to the window it makes no difference");
  if (asked > config.max_positions)
    return fail(ErrorCode::kInvalidArgument, "context", fmt::format("{} positions", asked),
                fmt::format("at most max_position_embeddings = {}", config.max_positions),
                "ask for a shorter context (-c)");
  return asked;
}

}  // namespace

Result<std::unique_ptr<Transformer>> Transformer::load(const WeightSource& source, const LoadOptions& options) {
  std::unique_ptr<Transformer> model(new Transformer());
  LOWBIT_TRY_ASSIGN(model->config_, model_config_of(source));
  const ModelConfig& c = model->config_;
  LOWBIT_TRY_ASSIGN(model->context_, choose_context(c, options.context));
  // A config.json may claim anything; what is allocated per layer must be backed by tensors that
  // exist.
  if (c.layers > int64_t(source.tensors().size()))
    return fail(ErrorCode::kNotFound, source.path(), fmt::format("{} tensors", source.tensors().size()),
                fmt::format("those of num_hidden_layers = {}", c.layers));
  if (options.only_block && (*options.only_block < 0 || *options.only_block >= c.layers))
    return fail(ErrorCode::kInvalidArgument, "block", fmt::format("{}", *options.only_block),
                fmt::format("0..{}", c.layers - 1));
  model->ops_ = options.reference ? ref_table().vector : &vector_ops(options.isa);
  model->frequencies_ = rope_frequencies(c.head_dim, c.rope_theta, c.rope_scaling);
  model->pool_ = std::make_unique<ThreadPool>(options.threads);
  model->input_ = std::make_unique<LinearInput>(options.reference ? Isa::kScalar : options.isa, *model->pool_);
  if (options.tune) model->input_->tune();
  model->rounding_ = options.rounding;
  model->input_->set_rounding(options.rounding);
  const LostPages lost;
  LOWBIT_TRY(TransformerLoader(source, options, *model).run());
  LOWBIT_TRY(lost.status(source.path()));
  LOWBIT_TRY(model->allocate_workspace(options.batch));
  return model;
}

}  // namespace lowbit
