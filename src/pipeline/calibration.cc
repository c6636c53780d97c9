#include "pipeline/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/sha256.h"
#include "base/try.h"
#include "io/mapped_file.h"
#include "model/config.h"
#include "pipeline/moment_sum.h"
#include "pipeline/overlay_source.h"
#include "pipeline/source_tokenizer.h"
#include "pipeline/tensor_names.h"

namespace lowbit {
namespace {

/// Windows held back: one of sixteen, and enough for a perplexity that means something.
constexpr int64_t kHeldBackShare = 16, kLeastHeldBack = 2, kMostHeldBack = 8;
constexpr int64_t kLongestText = int64_t{1} << 30;

/// The layers whose inputs are measured, and those that share each input.
struct SharedInput {
  const char* measured;
  std::vector<const char*> shared;
};
const std::vector<SharedInput>& shared_inputs() {
  static const std::vector<SharedInput> all = {
      {"self_attn.q_proj", {"self_attn.k_proj", "self_attn.v_proj"}},
      {"self_attn.o_proj", {}},
      {"mlp.gate_proj", {"mlp.up_proj"}},
      {"mlp.down_proj", {}},
  };
  return all;
}

std::string weight_name(int64_t block, const char* layer) {
  return fmt::format("model.layers.{}.{}.weight", block, layer);
}

/// Tokens [windows, context]: windows evenly spread over the tokens, each begun by `first` unless that is negative.
std::vector<TokenId> cut_windows(std::span<const TokenId> tokens, int64_t windows, int64_t context, TokenId first) {
  std::vector<TokenId> out;
  const int64_t last = static_cast<int64_t>(tokens.size()) - context;
  for (int64_t i = 0; i < windows; ++i) {
    const int64_t begin = windows > 1 ? i * last / (windows - 1) : 0;
    out.insert(out.end(), tokens.begin() + begin, tokens.begin() + begin + context);
    if (first >= 0) out[out.size() - static_cast<size_t>(context)] = first;
  }
  return out;
}

Result<std::vector<float>> embed(const WeightSource& source, const std::vector<TokenId>& tokens) {
  LOWBIT_TRY_ASSIGN(const QTensor embedding, source.load(kEmbedding));
  std::vector<float> rows(tokens.size() * static_cast<size_t>(embedding.k));
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= embedding.n)
      return fail(ErrorCode::kCorrupt, source.path(), fmt::format("token {} of the tokenizer", tokens[i]),
                  fmt::format("0..{}, the rows of the embedding", embedding.n - 1));
    dequantize_rows(embedding, tokens[i], 1, rows.data() + static_cast<int64_t>(i) * embedding.k);
  }
  return rows;
}

}  // namespace

Result<Calibration> Calibration::start(const WeightSource& source, const CalibrationOptions& options,
                                       const Engine& engine) {
  Calibration c;
  c.source_ = &source;
  c.isa_ = engine.isa;
  c.threads_ = engine.threads;
  LOWBIT_TRY_ASSIGN(const ModelConfig config, parse_model_config(source.config_json()));
  c.context_ = std::min(options.context, config.longest_context());
  c.blocks_ = config.layers;
  c.hidden_ = config.hidden_size;
  LOWBIT_TRY_ASSIGN(const std::string text, read_text_file(options.file, kLongestText));
  LOWBIT_TRY_ASSIGN(const Tokenizer tokenizer, tokenizer_of(source));
  LOWBIT_TRY_ASSIGN(const auto tokens, tokenizer.encode(text, {.add_special = false, .parse_special = false}));
  const auto have = static_cast<int64_t>(tokens.size());
  if (c.context_ < 2 || have < c.context_)
    return fail(ErrorCode::kInvalidArgument, options.file, fmt::format("{} tokens", have),
                fmt::format("at least one window of {}", c.context_), "calibrate on a longer text");
  const int64_t available = have / c.context_, wanted = std::max<int64_t>(1, options.tokens / c.context_);
  const int64_t spare = std::min(std::clamp(wanted / kHeldBackShare, kLeastHeldBack, kMostHeldBack), available / 2);
  const int64_t held = available >= 2 * kLeastHeldBack ? spare : 0;
  c.windows_ = std::min(wanted, available - held);
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  c.text_sha256_ = hash.finish();

  const auto& spec = tokenizer.spec();
  const TokenId first = spec.add_bos ? spec.bos_id.value_or(-1) : -1;
  const std::span<const TokenId> all(tokens);
  const auto windows =
      cut_windows(all.first(static_cast<size_t>(have - held * c.context_)), c.windows_, c.context_, first);
  LOWBIT_TRY_ASSIGN(c.states_, embed(source, windows));
  const auto kept = cut_windows(held > 0 ? all.last(static_cast<size_t>(held * c.context_)) : all,
                                std::max<int64_t>(1, held), c.context_, first);
  LOWBIT_TRY_ASSIGN(auto kept_rows, embed(source, kept));
  c.held_back_ = HeldBack(kept, c.context_, std::move(kept_rows), held == 0);
  return c;
}

Result<std::unique_ptr<Transformer>> Calibration::load_block(const WeightSource& source, int64_t block) const {
  LoadOptions load;
  load.activation = Activation::kF32;
  load.isa = isa_;
  load.threads = threads_;
  load.context = context_;
  load.only_block = block;
  return Transformer::load(source, load);
}

Result<MomentsByWeight> Calibration::measure(int64_t block) {
  LOWBIT_TRY_ASSIGN(const auto model, load_block(*source_, block));
  LOWBIT_TRY_ASSIGN(KvCache cache, model->make_cache());
  std::map<std::string, MomentSum> sums;
  std::optional<Error> failure;
  for (const SharedInput& input : shared_inputs()) {
    const std::string name = weight_name(block, input.measured);
    const bool is_down = name.ends_with("down_proj.weight"), is_o = name.ends_with("o_proj.weight");
    const ModelConfig& config = model->config();
    const int64_t k = is_down ? config.intermediate_size : is_o ? config.q_size() : config.hidden_size;
    sums.try_emplace(name, k, isa_, model->pool());
  }
  model->set_observer([&](const std::string& name, const float* x, int64_t m, int64_t) {
    const auto it = sums.find(name);
    if (it == sums.end() || failure) return;
    if (auto status = it->second.add(name, x, m); !status) failure = std::move(status.error());
  });
  std::vector<float> x(static_cast<size_t>(context_ * hidden_));
  for (int64_t i = 0; i < windows_ && !failure; ++i) {
    LOWBIT_TRY(report(i));
    std::copy_n(window(i), x.size(), x.begin());
    LOWBIT_TRY(model->run_block(x, cache));
  }
  if (failure) return tl::unexpected<Error>(std::move(*failure));
  model->set_observer({});
  LOWBIT_TRY(held_back_.run_source(*model, cache));
  MomentsByWeight moments;
  for (const SharedInput& input : shared_inputs()) {
    const std::string name = weight_name(block, input.measured);
    LOWBIT_TRY_ASSIGN(auto measured, sums.at(name).finish());
    const auto shared = std::make_shared<const SecondMoments>(std::move(measured));
    moments[name] = shared;
    for (const char* other : input.shared) moments[weight_name(block, other)] = shared;
  }
  return moments;
}

Status Calibration::report(int64_t window) const {
  if (progress_ && !progress_(static_cast<double>(window) / static_cast<double>(windows_)))
    return fail(ErrorCode::kCancelled, "calibrating", "a request to stop");
  return {};
}

Status Calibration::skip_measuring(int64_t block) {
  LOWBIT_TRY_ASSIGN(const auto model, load_block(*source_, block));
  LOWBIT_TRY_ASSIGN(KvCache cache, model->make_cache());
  return held_back_.run_source(*model, cache);
}

Status Calibration::advance(int64_t block, const std::map<std::string, QTensor>& weights,
                            const LinearObserver& observer) {
  const OverlaySource overlay(*source_, weights);
  LOWBIT_TRY_ASSIGN(const auto model, load_block(overlay, block));
  LOWBIT_TRY_ASSIGN(KvCache cache, model->make_cache());
  if (observer) model->set_observer(observer);
  for (int64_t i = 0; i < windows_; ++i) {
    LOWBIT_TRY(report(i));
    LOWBIT_TRY(model->run_block({window(i), static_cast<size_t>(context_ * hidden_)}, cache));
  }
  model->set_observer({});
  return held_back_.run_quantized(*model, cache);
}

}  // namespace lowbit
