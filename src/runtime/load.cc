// Transformer::load: every tensor is fetched, checked, prepared and released before the next one.

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/try.h"
#include "io/lost_pages.h"
#include "model/model_spec.h"
#include "runtime/tensor_loader.h"
#include "runtime/transformer.h"

namespace lowbit {

class TransformerLoader {
 public:
  TransformerLoader(const WeightSource& source, const LoadOptions& options, Transformer& model)
      : source_(source),
        options_(options),
        model_(model),
        tensors_(source, *model.backend_, *model.pool_,
                 [this](const std::string& name, QTensor w) { return done(name, std::move(w)); }) {
    for (const SourceTensor& t : source.tensors()) bytes_of_[t.name] = t.stored_bytes;
    for (const SourceTensor& t : source.tensors()) bytes_total_ += t.stored_bytes;
  }

  Status run() {
    const std::vector<BlockSpec>& blocks = model_.spec_.blocks;
    model_.weights_.blocks.resize(blocks.size());
    LOWBIT_TRY(load_ends());
    for (size_t i = 0; i < blocks.size(); ++i)
      LOWBIT_TRY(tensors_.load_block(int64_t(i), blocks[i], options_.x, model_.weights_.blocks[i]));
    return {};
  }

 private:
  /// The model has what it needs of this tensor: so its pages of the file may go. Of an embedding single rows are read
  /// again as tokens need them.
  Status done(const std::string& name, QTensor w) {
    if (name == weight_name(model_.spec_.embedding)) model_.embedding_bytes_ = w.total_bytes();
    w = {};
    source_.release(name);
    bytes_done_ += bytes_of_[name];
    if (options_.progress && !options_.progress(bytes_done_, bytes_total_))
      return fail(ErrorCode::kCancelled, source_.path(), "a request to stop");
    return {};
  }

  Status load_ends() {
    const ModelSpec& spec = model_.spec_;
    ModelWeights& weights = model_.weights_;
    XPolicy head = options_.x;
    head.rounding = {};
    LOWBIT_TRY(tensors_.load_weight(weight_name(spec.embedding), spec.vocab_size, spec.hidden_size, {}, head,
                                    spec.tied_head ? WeightUse::kBoth : WeightUse::kRows, weights.embedding));
    if (!spec.tied_head)
      LOWBIT_TRY(tensors_.load_weight(weight_name(spec.head.name), spec.head.n, spec.head.k, {}, head,
                                      WeightUse::kProducts, weights.own_head));
    return tensors_.load_norm(weight_name(spec.final_norm.name), spec.final_norm, weights.final_norm);
  }

  const WeightSource& source_;
  const LoadOptions& options_;
  Transformer& model_;
  std::unordered_map<std::string, int64_t> bytes_of_;
  int64_t bytes_done_ = 0, bytes_total_ = 0;
  TensorLoader tensors_;
};

namespace {

Result<int64_t> choose_context(const ModelSpec& spec, int64_t asked) {
  if (asked == 0) return spec.max_positions;
  if (asked < 0) return fail(ErrorCode::kInvalidArgument, "context", fmt::format("{}", asked), "at least 1");
  if (asked > spec.max_positions)
    return fail(ErrorCode::kInvalidArgument, "context", fmt::format("{} positions", asked),
                fmt::format("at most max_position_embeddings = {}", spec.max_positions),
                "ask for a shorter context (-c)");
  return asked;
}

Result<std::unique_ptr<Backend>> backend_for(const LoadOptions& options, ThreadPool& pool) {
  if (options.gpu >= 0) return make_cuda_backend(options.gpu, pool);
  return options.reference ? make_ref_backend(pool) : make_cpu_backend(options.isa, pool, options.tune);
}

}  // namespace

Status Transformer::prepare_to_run(int64_t batch_limit) {
  const auto widths = slot_widths(spec_);
  int64_t row = spec_.hidden_size + widths[kGated];  // of slots, and of what products add and multiply
  for (const int64_t width : widths) row += width;
  const int64_t affordable = std::max<int64_t>(16, backend_->batch_size().bytes / (row * int64_t(sizeof(float))));
  batch_ = std::max<int64_t>(1, std::min({batch_limit, affordable, context_}));
  steps_ = model_steps(spec_, weights_);
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
  model->kv_ = options.kv;
  for (const KvGroup& group : model->kv_groups()) LOWBIT_TRY(check_packable(group));
  model->pool_ = std::make_unique<ThreadPool>(options.threads);
  model->on_gpu_ = options.gpu >= 0;
  LOWBIT_TRY_ASSIGN(model->backend_, backend_for(options, *model->pool_));
  const LostPages lost;
  LOWBIT_TRY(TransformerLoader(source, options, *model).run());
  LOWBIT_TRY(lost.status(source.path()));
  LOWBIT_TRY(model->prepare_to_run(options.batch));
  return model;
}

}  // namespace lowbit
