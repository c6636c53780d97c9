#include "pipeline/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include "base/sha256.h"
#include "base/try.h"
#include "io/mapped_file.h"
#include "model/model_spec.h"
#include "pipeline/overlay_source.h"
#include "pipeline/source_tokenizer.h"

namespace lowbit {
namespace {

/// Windows held back: one of sixteen, and enough for a perplexity that means something.
constexpr int64_t kHeldBackShare = 16, kLeastHeldBack = 2, kMostHeldBack = 8;
constexpr int64_t kLongestText = int64_t{1} << 30;

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

/// The tokens' embeddings, where the runner wants them.
Result<Buffer> embed(const WeightSource& source, const ModelSpec& spec, const std::vector<TokenId>& tokens,
                     int64_t context, BlockRunner& runner) {
  const std::string name = weight_name(spec.embedding);
  const int64_t hidden = spec.hidden_size;
  LOWBIT_TRY_ASSIGN(const QTensor embedding, source.load(name));
  if (embedding.k != hidden)
    return fail(ErrorCode::kShapeMismatch, name, fmt::format("rows of {}", embedding.k),
                fmt::format("hidden_size = {}", hidden), "config.json and weights disagree");
  LOWBIT_TRY_ASSIGN(Buffer states, runner.allocate(static_cast<int64_t>(tokens.size()) / context));
  const auto window = static_cast<size_t>(context);
  std::vector<float> rows(window * static_cast<size_t>(embedding.k));
  for (size_t first = 0; first < tokens.size(); first += window) {
    for (size_t i = 0; i < window; ++i) {
      const TokenId token = tokens[first + i];
      if (token < 0 || token >= embedding.n)
        return fail(ErrorCode::kCorrupt, source.path(), fmt::format("token {} of the tokenizer", token),
                    fmt::format("0..{}, the rows of the embedding", embedding.n - 1));
      dequantize_rows(embedding, token, 1, rows.data() + static_cast<int64_t>(i) * embedding.k);
    }
    LOWBIT_TRY(runner.write(states, static_cast<int64_t>(first) * embedding.k, rows));
  }
  return states;
}

}  // namespace

Result<Calibration> Calibration::start(const WeightSource& source, const CalibrationOptions& options, bool follows,
                                       const Engine& engine) {
  Calibration c;
  c.source_ = &source;
  LOWBIT_TRY_ASSIGN(c.spec_, executable_spec_of(source));
  c.context_ = std::min(options.context, c.spec_.longest_context());
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
  const auto kept = cut_windows(held > 0 ? all.last(static_cast<size_t>(held * c.context_)) : all,
                                std::max<int64_t>(1, held), c.context_, first);
  LOWBIT_TRY_ASSIGN(c.runner_, BlockRunner::make(c.spec_, c.context_, std::max(c.windows_, held), engine));
  LOWBIT_TRY_ASSIGN(c.states_, embed(source, c.spec_, windows, c.context_, *c.runner_));
  if (follows) {
    LOWBIT_TRY_ASSIGN(c.source_states_, embed(source, c.spec_, windows, c.context_, *c.runner_));
  }
  std::array<Buffer, 2> kept_states;
  for (Buffer& states : kept_states) {
    LOWBIT_TRY_ASSIGN(states, embed(source, c.spec_, kept, c.context_, *c.runner_));
  }
  c.held_back_ = HeldBack(kept, c.context_, c.spec_.hidden_size, std::move(kept_states), *c.runner_, held == 0);
  return c;
}

Result<std::vector<float>> Calibration::first_rows(int64_t n) const {
  std::vector<float> rows(static_cast<size_t>(n * spec_.hidden_size));
  LOWBIT_TRY(runner_->read(states_, 0, rows));
  return rows;
}

Result<MomentsByWeight> Calibration::measure(int64_t block) {
  LOWBIT_TRY(runner_->load(*source_, block));
  LOWBIT_TRY_ASSIGN(auto measured, runner_->measure(states_, [this](int64_t window) { return report(window); }));
  LOWBIT_TRY(held_back_.run_source());
  MomentsByWeight moments;
  for (size_t i = 0; i < measured.size(); ++i) share(std::move(measured[i]), block, i, moments);
  return moments;
}

/// What was measured at an input, for every weight that reads it.
void Calibration::share(SecondMoments measured, int64_t block, size_t which, MomentsByWeight& moments) const {
  const auto shared = std::make_shared<const SecondMoments>(std::move(measured));
  for (const LinearSpec& reader : inputs_of(spec_.blocks[static_cast<size_t>(block)])[which]->readers)
    moments[weight_name(block, reader.name)] = shared;
}

Status Calibration::follow(int64_t block) {
  LOWBIT_TRY(runner_->load(*source_, block));
  LOWBIT_TRY(runner_->follow(source_states_, [this](int64_t window) { return report(window); }));
  return held_back_.run_source();
}

Result<MomentsByWeight> Calibration::measure_input(int64_t block, size_t which,
                                                   const std::map<std::string, QTensor>& weights) {
  LOWBIT_TRY(runner_->load(OverlaySource(*source_, weights), block));
  LOWBIT_TRY_ASSIGN(auto measured,
                    runner_->measure_followed(states_, which, [this](int64_t window) { return report(window); }));
  MomentsByWeight moments;
  share(std::move(measured), block, which, moments);
  return moments;
}

Status Calibration::report(int64_t window) const {
  if (progress_ && !progress_(static_cast<double>(window) / static_cast<double>(windows_)))
    return fail(ErrorCode::kCancelled, "calibrating", "a request to stop");
  return {};
}

Status Calibration::skip_measuring(int64_t block) {
  LOWBIT_TRY(runner_->load(*source_, block));
  if (!source_states_.empty()) LOWBIT_TRY(runner_->advance(source_states_));
  return held_back_.run_source();
}

Status Calibration::advance(int64_t block, const std::map<std::string, QTensor>& weights,
                            const LinearObserver& observer) {
  LOWBIT_TRY(runner_->load(OverlaySource(*source_, weights), block));
  LOWBIT_TRY(runner_->advance(
      states_, [this](int64_t window) { return report(window); }, observer));
  return held_back_.run_quantized();
}

}  // namespace lowbit
