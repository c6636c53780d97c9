// Transformer::load: every tensor is fetched, checked, prepared and released before the next one.

#include <fmt/format.h>

#include <unordered_map>

#include "base/try.h"
#include "kernels/registry.h"
#include "model/fetch_tensor.h"
#include "model/transformer.h"
#include "ops/rope.h"

namespace lowbit {

Linear* Transformer::Layer::linear(LinearRole role) {
  switch (role) {
    case LinearRole::kQuery:
      return &q;
    case LinearRole::kKey:
      return &k;
    case LinearRole::kValue:
      return &v;
    case LinearRole::kOutput:
      return &o;
    case LinearRole::kGate:
      return &gate;
    case LinearRole::kUp:
      return &up;
    case LinearRole::kDown:
      return &down;
    case LinearRole::kHead:
      break;  // in no block
  }
  return nullptr;
}

std::vector<float>* Transformer::Layer::norm(InputRole role) {
  if (!reads_stream(role)) return nullptr;
  return role == InputRole::kAttention ? &input_norm : &post_norm;
}

class TransformerLoader {
 public:
  TransformerLoader(const WeightSource& source, const LoadOptions& options, Transformer& model)
      : source_(source), options_(options), model_(model) {
    for (const SourceTensor& t : source.tensors()) bytes_of_[t.name] = t.stored_bytes;
    for (const SourceTensor& t : source.tensors()) bytes_total_ += t.stored_bytes;
  }

  Status run() {
    std::vector<BlockSpec>& blocks = model_.spec_.blocks;
    if (options_.only_block) {
      blocks = {blocks[size_t(*options_.only_block)]};
      model_.layers_.resize(1);
      return load_layer(*options_.only_block, blocks[0], model_.layers_[0]);
    }
    model_.layers_.resize(blocks.size());
    LOWBIT_TRY(load_ends());
    for (size_t i = 0; i < blocks.size(); ++i) LOWBIT_TRY(load_layer(int64_t(i), blocks[i], model_.layers_[i]));
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

  Status load_linear(const std::string& name, const std::string& bias, const LinearSpec& linear, Linear& out) {
    {
      LOWBIT_TRY_ASSIGN(const QTensor w, fetch(name, linear.n, linear.k));
      LOWBIT_TRY(plan_linear(w, name, out));
    }
    LOWBIT_TRY(done(name));
    if (linear.bias) LOWBIT_TRY(load_vector(bias, linear.n, out.bias));
    return {};
  }

  Status load_ends() {
    const ModelSpec& c = model_.spec_;
    const std::string embedding = weight_name(c.embedding);
    LOWBIT_TRY_ASSIGN(model_.embedding_, fetch(embedding, c.vocab_size, c.hidden_size));
    if (c.tied_head) {
      LOWBIT_TRY(plan_linear(model_.embedding_, embedding, model_.head_));
    } else {
      LOWBIT_TRY(load_linear(weight_name(c.head.name), "", c.head, model_.head_));
    }
    LOWBIT_TRY(done(embedding));  // single rows are read again as tokens need them
    return load_vector(weight_name(c.final_norm.name), c.final_norm.size, model_.final_norm_);
  }

  /// `index`: of the block in the source.
  Status load_layer(int64_t index, const BlockSpec& spec, Transformer::Layer& l) {
    l.spec = spec;
    const auto norm = [&](const std::optional<NormSpec>& of, std::vector<float>* out) -> Status {
      if (!of) return {};
      if (out == nullptr) return not_executed(of->name);
      return load_vector(weight_name(index, of->name), of->size, *out);
    };
    for (const InputSpec* input : inputs_of(spec)) {
      LOWBIT_TRY(norm(input->norm, l.norm(input->role)));
      for (const LinearSpec& linear : input->readers) {
        Linear* const out = l.linear(linear.role);
        if (out == nullptr) return not_executed(linear.name);
        LOWBIT_TRY(load_linear(weight_name(index, linear.name), bias_name(index, linear.name), linear, *out));
      }
    }
    LOWBIT_TRY(norm(spec.attention.q_norm, &l.q_norm));
    return norm(spec.attention.k_norm, &l.k_norm);
  }

  static Status not_executed(const TensorName& name) {
    return fail(ErrorCode::kUnsupported, std::string(name.hf), "a part of a block that is not executed yet");
  }

  const WeightSource& source_;
  const LoadOptions& options_;
  Transformer& model_;
  std::unordered_map<std::string, int64_t> bytes_of_;
  int64_t bytes_done_ = 0, bytes_total_ = 0;
};

namespace {

Result<int64_t> choose_context(const ModelSpec& spec, int64_t asked) {
  if (asked == 0) return spec.longest_context();
  if (asked < 0) return fail(ErrorCode::kInvalidArgument, "context", fmt::format("{}", asked), "at least 1");
  const int64_t window = spec.shortest_window();
  if (window > 0 && asked > window)
    return fail(ErrorCode::kUnsupported, "context", fmt::format("{} positions", asked),
                fmt::format("at most sliding_window = {}", window),
                "lowbit has no sliding-window attention; up to the window it makes no difference");
  if (asked > spec.max_positions)
    return fail(ErrorCode::kInvalidArgument, "context", fmt::format("{} positions", asked),
                fmt::format("at most max_position_embeddings = {}", spec.max_positions),
                "ask for a shorter context (-c)");
  return asked;
}

}  // namespace

Result<std::unique_ptr<Transformer>> Transformer::load(const WeightSource& source, const LoadOptions& options) {
  std::unique_ptr<Transformer> model(new Transformer());
  LOWBIT_TRY_ASSIGN(model->spec_, executable_spec_of(source));
  const ModelSpec& c = model->spec_;
  LOWBIT_TRY_ASSIGN(model->context_, choose_context(c, options.context));
  // A config.json may claim anything; what is allocated per layer must be backed by tensors that
  // exist.
  if (c.block_count() > int64_t(source.tensors().size()))
    return fail(ErrorCode::kNotFound, source.path(), fmt::format("{} tensors", source.tensors().size()),
                fmt::format("those of num_hidden_layers = {}", c.block_count()));
  if (options.only_block && (*options.only_block < 0 || *options.only_block >= c.block_count()))
    return fail(ErrorCode::kInvalidArgument, "block", fmt::format("{}", *options.only_block),
                fmt::format("0..{}", c.block_count() - 1));
  model->ops_ = options.reference ? ref_table().vector : &vector_ops(options.isa);
  model->frequencies_ = rope_frequencies(*c.blocks.front().attention.rope);
  model->pool_ = std::make_unique<ThreadPool>(options.threads);
  model->input_ = std::make_unique<LinearInput>(options.reference ? Isa::kScalar : options.isa, *model->pool_);
  if (options.tune) model->input_->tune();
  model->rounding_ = options.rounding;
  model->input_->set_rounding(options.rounding);
  LOWBIT_TRY(TransformerLoader(source, options, *model).run());
  LOWBIT_TRY(model->allocate_workspace(options.batch));
  return model;
}

}  // namespace lowbit
