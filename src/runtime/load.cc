// Transformer::load: every tensor is fetched, checked, prepared and released before the next one.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
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
      : source_(source), options_(options), model_(model) {
    for (const SourceTensor& t : source.tensors()) bytes_of_[t.name] = t.stored_bytes;
    for (const SourceTensor& t : source.tensors()) bytes_total_ += t.stored_bytes;
  }

  Status run() {
    model_.fingerprint_.add("config", source_.config_json());
    const std::vector<BlockSpec>& blocks = model_.spec_.blocks;
    model_.weights_.blocks.resize(blocks.size());
    LOWBIT_TRY(load_ends());
    for (size_t i = 0; i < blocks.size(); ++i) {
      Status loaded = tensors_for(model_.stages_.of_block(int64_t(i)))
                          .load_block(int64_t(i), blocks[i], options_.x, model_.weights_.blocks[i]);
      if (!loaded) return tl::unexpected(say_what_fits(std::move(loaded.error()), int64_t(i)));
    }
    return {};
  }

 private:
  TensorLoader tensors_for(Backend& backend) {
    return {source_, backend, *model_.pool_,
            [this](const std::string& name, QTensor w) { return done(name, std::move(w)); }};
  }

  /// Of a GPU that has no room for a block: how many it would have room for, with their keys and values and a batch.
  Error say_what_fits(Error error, int64_t block) const {
    const StagePlan& plan = model_.stages_.plan_of(block);
    if (error.code != ErrorCode::kOutOfMemory || plan.gpu < 0) return error;
    int64_t weights = 0;  // of a block
    for (const auto& weight : model_.weights_.blocks[size_t(plan.first)].linears)
      if (weight != nullptr) weights += weight->info().resident_bytes;
    int64_t kept = 0;  // for its positions
    for (const KvGroup& group : model_.kv_groups())
      for (const int layer : group.layers)
        if (layer == plan.first) kept = 2 * int64_t{sizeof(uint16_t)} * group.row_elems() * model_.context_;
    const int64_t loaded = (block - plan.first) * weights - model_.bytes_of_batch(model_.rows_of_batch(options_.batch));
    const int64_t fit = block > plan.first ? std::max<int64_t>(0, loaded / std::max<int64_t>(1, weights + kept)) : 0;
    const auto gpus = int64_t(options_.gpus.size());
    error.hint = fmt::format(
        "about {} of {} layers fit on cuda:{} with a context of {}: --gpu-layers {}, fewer bits or a "
        "shorter context (-c)",
        fit, model_.spec_.block_count(), plan.gpu, model_.context_, fit * gpus);
    return error;
  }

  /// The model has what it needs of this tensor: so its pages of the file may go. Of an embedding single rows are read
  /// again as tokens need them.
  Status done(const std::string& name, QTensor w) {
    if (name == weight_name(model_.spec_.embedding)) model_.embedding_bytes_ = w.total_bytes();
    model_.fingerprint_.add(name, w);
    w = {};
    source_.release(name);
    bytes_done_ = std::min(bytes_done_ + bytes_of_[name], bytes_total_);
    if (options_.progress && !options_.progress(bytes_done_, bytes_total_))
      return fail(ErrorCode::kCancelled, source_.path(), "a request to stop");
    return {};
  }

  Status load_ends() {
    const ModelSpec& spec = model_.spec_;
    ModelWeights& weights = model_.weights_;
    XPolicy head = options_.x;
    head.rounding = {.halves = options_.x.rounding.halves};
    const bool shared = spec.tied_head && model_.stages_.count() == 1;  // else the embedding is read for both devices
    LOWBIT_TRY(tensors_for(model_.stages_.first())
                   .load_weight(weight_name(spec.embedding), spec.vocab_size, spec.hidden_size, {}, head,
                                shared ? WeightUse::kBoth : WeightUse::kRows, weights.embedding));
    TensorLoader last = tensors_for(model_.stages_.last());
    if (!shared)
      LOWBIT_TRY(last.load_weight(spec.tied_head ? weight_name(spec.embedding) : weight_name(spec.head.name),
                                  spec.vocab_size, spec.hidden_size, {}, head, WeightUse::kProducts, weights.own_head));
    return last.load_norm(weight_name(spec.final_norm.name), spec.final_norm, weights.final_norm);
  }

  const WeightSource& source_;
  const LoadOptions& options_;
  Transformer& model_;
  std::unordered_map<std::string, int64_t> bytes_of_;
  int64_t bytes_done_ = 0, bytes_total_ = 0;
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

Result<std::unique_ptr<Backend>> backend_for(const LoadOptions& options, int gpu, ThreadPool& pool) {
  if (gpu >= 0) return make_cuda_backend(gpu, pool, options.exact);
  return options.reference ? make_ref_backend(pool) : make_cpu_backend(options.isa, pool, options.tune);
}

}  // namespace

int64_t Transformer::bytes_of_batch(int64_t rows) const {
  const auto widths = slot_widths(spec_);
  int64_t row = spec_.hidden_size + widths[kGated];  // of slots, and of what products add and multiply
  for (const int64_t width : widths) row += width;
  return rows * row * int64_t(sizeof(float));
}

int64_t Transformer::rows_of_batch(int64_t limit) const {
  const BatchSize size = stages_.batch_size();
  int64_t affordable = std::max<int64_t>(16, size.session_bytes / bytes_of_batch(1));
  if (affordable >= 512) affordable = int64_t(std::bit_floor(uint64_t(affordable)));  // that prompts are cut evenly
  return std::max<int64_t>(1, std::min({limit > 0 ? limit : size.session_rows, affordable, context_}));
}

Status Transformer::prepare_to_run(int64_t batch_limit, bool exact) {
  const auto widths = slot_widths(spec_);
  batch_ = rows_of_batch(batch_limit);
  steps_ = model_steps(spec_, weights_);
  return stages_.compile(steps_, {widths, batch_, context_}, exact);
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
  LOWBIT_TRY_ASSIGN(model->kv_kept_, parse_kv_keep(options.kv_keep, spec.block_count()));
  for (const KvGroup& group : kv_groups_of(spec, model->kv_, model->kv_kept_)) LOWBIT_TRY(check_packable(group));
  model->pool_ = std::make_unique<ThreadPool>(options.threads);
  const auto backend = [&](int gpu) { return backend_for(options, gpu, *model->pool_); };
  LOWBIT_TRY_ASSIGN(model->stages_,
                    Stages::make(plan_stages(spec.block_count(), options.gpus, options.gpu_layers), backend));
  const LostPages lost;
  LOWBIT_TRY(TransformerLoader(source, options, *model).run());
  LOWBIT_TRY(lost.status(source.path()));
  LOWBIT_TRY(model->prepare_to_run(options.batch, options.exact));
  return model;
}

}  // namespace lowbit
