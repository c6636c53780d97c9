// Transformer::load: every tensor is fetched, checked, prepared and released before the next one.

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/try.h"
#include "io/lost_pages.h"
#include "model/fetch_tensor.h"
#include "model/model_spec.h"
#include "runtime/transformer.h"

namespace lowbit {

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
      model_.weights_.blocks.resize(1);
      return load_block(*options_.only_block, blocks[0], model_.weights_.blocks[0]);
    }
    model_.weights_.blocks.resize(blocks.size());
    LOWBIT_TRY(load_ends());
    for (size_t i = 0; i < blocks.size(); ++i) LOWBIT_TRY(load_block(int64_t(i), blocks[i], model_.weights_.blocks[i]));
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

  Status load_norm(const std::string& name, const NormSpec& spec, Norm& out) {
    out.eps = spec.eps;
    return load_vector(name, spec.size, out.weight);
  }

  Status prepare(const QTensor& w, const std::string& name, std::vector<float> bias, const XPolicy& policy,
                 WeightUse use, std::unique_ptr<Weight>& out) {
    auto weight = model_.backend_->prepare(name, w, std::move(bias), choose_x(w, policy), use);
    if (!weight) {
      weight.error().where = fmt::format("{} ({})", name, weight.error().where);
      return tl::unexpected<Error>(std::move(weight.error()));
    }
    out = std::move(*weight);
    return {};
  }

  Status load_ends() {
    const ModelSpec& spec = model_.spec_;
    ModelWeights& weights = model_.weights_;
    XPolicy head = options_.x;
    head.rounding = {};
    const std::string name = weight_name(spec.embedding);
    {
      LOWBIT_TRY_ASSIGN(const QTensor w, fetch(name, spec.vocab_size, spec.hidden_size));
      model_.embedding_bytes_ = w.total_bytes();
      LOWBIT_TRY(prepare(w, name, {}, head, spec.tied_head ? WeightUse::kBoth : WeightUse::kRows, weights.embedding));
    }
    if (!spec.tied_head) {
      const std::string own = weight_name(spec.head.name);
      {
        LOWBIT_TRY_ASSIGN(const QTensor w, fetch(own, spec.head.n, spec.head.k));
        LOWBIT_TRY(prepare(w, own, {}, head, WeightUse::kProducts, weights.own_head));
      }
      LOWBIT_TRY(done(own));
    }
    LOWBIT_TRY(done(name));  // single rows are read again as tokens need them
    return load_norm(weight_name(spec.final_norm.name), spec.final_norm, weights.final_norm);
  }

  /// `index`: of the block in the source.
  Status load_block(int64_t index, const BlockSpec& spec, BlockWeights& block) {
    const auto norm = [&](const std::optional<NormSpec>& of, Norm& out) -> Status {
      return of ? load_norm(weight_name(index, of->name), *of, out) : Status{};
    };
    for (const InputSpec* input : inputs_of(spec)) {
      LOWBIT_TRY(norm(input->norm, block.norms[static_cast<size_t>(input->role)]));
      for (const LinearSpec& linear : input->readers) LOWBIT_TRY(load_linear(index, linear, block));
    }
    LOWBIT_TRY(norm(spec.attention.q_norm, block.q_norm));
    return norm(spec.attention.k_norm, block.k_norm);
  }

  Status load_linear(int64_t index, const LinearSpec& linear, BlockWeights& block) {
    const std::string name = weight_name(index, linear.name);
    std::vector<float> bias;
    if (linear.bias) LOWBIT_TRY(load_vector(bias_name(index, linear.name), linear.n, bias));
    {
      LOWBIT_TRY_ASSIGN(const QTensor w, fetch(name, linear.n, linear.k));
      LOWBIT_TRY(prepare(w, name, std::move(bias), options_.x, WeightUse::kProducts,
                         block.linears[static_cast<size_t>(linear.role)]));
    }
    return done(name);
  }

  const WeightSource& source_;
  const LoadOptions& options_;
  Transformer& model_;
  std::unordered_map<std::string, int64_t> bytes_of_;
  int64_t bytes_done_ = 0, bytes_total_ = 0;
};

namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20, kDeviceWorkspaceBytes = int64_t{256} << 20;

Result<int64_t> choose_context(const ModelSpec& spec, int64_t asked) {
  if (asked == 0) return spec.max_positions;
  if (asked < 0) return fail(ErrorCode::kInvalidArgument, "context", fmt::format("{}", asked), "at least 1");
  if (asked > spec.max_positions)
    return fail(ErrorCode::kInvalidArgument, "context", fmt::format("{} positions", asked),
                fmt::format("at most max_position_embeddings = {}", spec.max_positions),
                "ask for a shorter context (-c)");
  return asked;
}

Result<std::unique_ptr<Backend>> make_backend(const LoadOptions& options, ThreadPool& pool) {
  if (options.gpu >= 0) return make_cuda_backend(options.gpu, pool);
  return options.reference ? make_ref_backend(pool) : make_cpu_backend(options.isa, pool, options.tune);
}

}  // namespace

Status Transformer::prepare_to_run(int64_t batch_limit) {
  const auto widths = slot_widths(spec_);
  int64_t row = spec_.hidden_size + widths[kGated];  // of slots, and of what products add and multiply
  for (const int64_t width : widths) row += width;
  const int64_t bytes = on_gpu_ ? kDeviceWorkspaceBytes : kWorkspaceBytes;
  const int64_t affordable = std::max<int64_t>(16, bytes / (row * int64_t(sizeof(float))));
  batch_ = std::max<int64_t>(1, std::min({batch_limit, affordable, context_}));
  steps_ = weights_.embedding == nullptr ? block_steps(spec_, weights_) : model_steps(spec_, weights_);
  LOWBIT_TRY_ASSIGN(program_, backend_->compile(steps_, {}));
  LOWBIT_TRY_ASSIGN(work_, backend_->workspace(steps_, {widths, batch_, context_}));
  return {};
}

Result<std::unique_ptr<Transformer>> Transformer::load(const WeightSource& source, const LoadOptions& options) {
  std::unique_ptr<Transformer> model(new Transformer());
  LOWBIT_TRY_ASSIGN(model->spec_, executable_spec_of(source));
  const ModelSpec& spec = model->spec_;
  LOWBIT_TRY_ASSIGN(model->context_, choose_context(spec, options.context));
  // A config.json may claim anything; what is allocated per layer must be backed by tensors that
  // exist.
  if (spec.block_count() > int64_t(source.tensors().size()))
    return fail(ErrorCode::kNotFound, source.path(), fmt::format("{} tensors", source.tensors().size()),
                fmt::format("those of num_hidden_layers = {}", spec.block_count()));
  if (options.only_block && (*options.only_block < 0 || *options.only_block >= spec.block_count()))
    return fail(ErrorCode::kInvalidArgument, "block", fmt::format("{}", *options.only_block),
                fmt::format("0..{}", spec.block_count() - 1));
  model->pool_ = std::make_unique<ThreadPool>(options.threads);
  model->on_gpu_ = options.gpu >= 0;
  LOWBIT_TRY_ASSIGN(model->backend_, make_backend(options, *model->pool_));
  const LostPages lost;
  LOWBIT_TRY(TransformerLoader(source, options, *model).run());
  LOWBIT_TRY(lost.status(source.path()));
  LOWBIT_TRY(model->prepare_to_run(options.batch));
  return model;
}

}  // namespace lowbit
