#include "calibrate/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include "base/sha256.h"
#include "base/try.h"
#include "calibrate/text_room.h"
#include "io/mapped_file.h"
#include "model/model_spec.h"
#include "model/source_tokenizer.h"
#include "text/utf8.h"

namespace lowbit {
namespace {

/// Sequences held out: one of sixteen, and enough for a perplexity that means something.
constexpr int64_t kHeldOutShare = 16, kLeastHeldOut = 2, kMostHeldOut = 8;
constexpr int64_t kLongestText = int64_t{1} << 30;

/// Tokens [sequences, context]: sequences evenly spread over the tokens, each begun by `first` unless that is negative.
std::vector<TokenId> cut_sequences(std::span<const TokenId> tokens, int64_t sequences, int64_t context, TokenId first) {
  std::vector<TokenId> out;
  const int64_t last = static_cast<int64_t>(tokens.size()) - context;
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t begin = sequences > 1 ? i * last / (sequences - 1) : 0;
    out.insert(out.end(), tokens.begin() + begin, tokens.begin() + begin + context);
    if (first >= 0) out[out.size() - static_cast<size_t>(context)] = first;
  }
  return out;
}

/// The tokens' embeddings. `most_between`, `format`: as HiddenStates::make().
Result<HiddenStates> embed(const WeightSource& source, const ModelSpec& spec, const std::vector<TokenId>& tokens,
                           int64_t context, Backend& backend, int64_t most_between = HiddenStates::kAnyBytes,
                           RowFormat format = RowFormat::kF32) {
  const std::string name = weight_name(spec.embedding);
  const int64_t hidden = spec.hidden_size;
  LOWBIT_TRY_ASSIGN(const QTensor embedding, source.load(name));
  if (embedding.k != hidden)
    return fail(ErrorCode::kShapeMismatch, name, fmt::format("rows of {}", embedding.k),
                fmt::format("hidden_size = {}", hidden), "config.json and weights disagree");
  const auto length = static_cast<size_t>(context);
  LOWBIT_TRY_ASSIGN(HiddenStates states, HiddenStates::make(backend, static_cast<int64_t>(tokens.size() / length),
                                                            context, hidden, most_between, format));
  std::vector<float> rows(length * static_cast<size_t>(embedding.k));
  for (size_t first = 0; first < tokens.size(); first += length) {
    for (size_t i = 0; i < length; ++i) {
      const TokenId token = tokens[first + i];
      if (token < 0 || token >= embedding.n)
        return fail(ErrorCode::kCorrupt, source.path(), fmt::format("token {} of the tokenizer", token),
                    fmt::format("0..{}, the rows of the embedding", embedding.n - 1));
      dequantize_rows(embedding, token, 1, rows.data() + static_cast<int64_t>(i) * embedding.k);
    }
    LOWBIT_TRY(states.write(static_cast<int64_t>(first), rows));
  }
  source.release(name);
  return states;
}

/// Tokens [sequences, context] to be fitted to, and others that are held out.
struct CalibrationSequences {
  std::vector<TokenId> fitted, held;
  bool was_seen = false;  // nothing could be held out: the first sequence is in both
  std::string sha256;     // of the text, or of the sequences as given
};

std::string sha256_of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

/// How many of the sequences that there are to hold out.
int64_t held_out(int64_t wanted, int64_t available) {
  const int64_t spare = std::min(std::clamp(wanted / kHeldOutShare, kLeastHeldOut, kMostHeldOut), available / 2);
  return available >= 2 * kLeastHeldOut ? spare : 0;
}

/// Refuses what is no text, as a model's own file. A few broken characters do no harm.
Status check_is_text(const std::string& file, const std::string& text) {
  constexpr size_t kBytesPerBroken = 100;
  size_t broken = 0;
  for (size_t at = 0; at < text.size();) {
    const int length = text[at] == '\0' ? 0 : text::decode_utf8(text, at).length;
    broken += length == 0;
    at += static_cast<size_t>(std::max(length, 1));
  }
  if (broken <= text.size() / kBytesPerBroken) return {};
  return fail(ErrorCode::kInvalidArgument, file, fmt::format("{} of {} bytes in no character", broken, text.size()),
              "a text in UTF-8");
}

Result<CalibrationSequences> cut_text(const WeightSource& source, const CalibrationOptions& options, int64_t context) {
  LOWBIT_TRY_ASSIGN(const std::string text, read_text_file(options.file, kLongestText));
  LOWBIT_TRY(check_is_text(options.file, text));
  LOWBIT_TRY_ASSIGN(const Tokenizer tokenizer, tokenizer_of(source));
  LOWBIT_TRY_ASSIGN(const auto tokens, tokenizer.encode(text, {.add_special = false, .parse_special = false}));
  const auto have = static_cast<int64_t>(tokens.size());
  if (context < 2 || have < context)
    return fail(ErrorCode::kInvalidArgument, options.file, fmt::format("{} tokens", have),
                fmt::format("at least one sequence of {}", context), "calibrate on a longer text");
  const int64_t available = have / context, wanted = std::max<int64_t>(1, options.tokens / context);
  const int64_t held = held_out(wanted, available);
  const auto& spec = tokenizer.spec();
  const TokenId first = spec.add_bos ? spec.bos_id.value_or(-1) : -1;
  const std::span<const TokenId> all(tokens);
  CalibrationSequences out;
  out.fitted = cut_sequences(all.first(static_cast<size_t>(have - held * context)), std::min(wanted, available - held),
                             context, first);
  out.held = cut_sequences(held > 0 ? all.last(static_cast<size_t>(held * context)) : all, std::max<int64_t>(1, held),
                           context, first);
  out.was_seen = held == 0;
  out.sha256 = sha256_of(std::as_bytes(std::span(text)));
  return out;
}

/// Of so many numbers of hidden states: f32, or bf16 where f32 would take more than there is room for. On a GPU as on a
/// CPU, so that both have the same bits.
RowFormat format_of_states(const WeightSource& source, int64_t numbers) {
  constexpr int64_t kRoomOfAnyModel = int64_t{320} << 20;
  const int64_t room = std::max(kRoomOfAnyModel, room_for_text(source, 0));
  return numbers * host_bytes(RowFormat::kF32) > room ? RowFormat::kBf16 : RowFormat::kF32;
}

/// A tap shows the rows that all readers of an input share.
Status check_inputs(const ModelSpec& spec) {
  for (size_t i = 0; i < spec.blocks.size(); ++i)
    for (const LinearSpec* linear : linears_of(spec.blocks[i]))
      if (linear->norm)
        return fail(ErrorCode::kUnsupported, weight_name(int64_t(i), linear->norm->name),
                    "a norm of one layer's own (use_rms_norm)", "layers that read the same rows",
                    "such a model is quantized without a text, or trained");
  return {};
}

Result<CalibrationSequences> given_sequences(const CalibrationOptions& options, int64_t context) {
  const auto have = static_cast<int64_t>(options.sequences.size());
  if (context != options.context || context < 2 || have % context != 0)
    return fail(ErrorCode::kInvalidArgument, "calibration sequences", fmt::format("{} tokens", have),
                fmt::format("a multiple of {}", context));
  const int64_t available = have / context, held = held_out(std::max<int64_t>(1, options.tokens / context), available);
  const std::span<const TokenId> all(options.sequences);
  const auto wanted = static_cast<size_t>(std::clamp<int64_t>(options.tokens / context, 1, available - held) * context);
  const auto kept = held > 0 ? all.last(static_cast<size_t>(held * context)) : all.first(static_cast<size_t>(context));
  CalibrationSequences out;
  out.fitted.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(wanted));
  out.held.assign(kept.begin(), kept.end());
  out.was_seen = held == 0;
  out.sha256 = sha256_of(std::as_bytes(all));
  return out;
}

}  // namespace

Result<Calibration> Calibration::start(const WeightSource& source, const CalibrationOptions& options, bool asymmetric,
                                       const Engine& engine) {
  Calibration c;
  c.source_ = &source;
  c.engine_ = &engine;
  LOWBIT_TRY_ASSIGN(c.spec_, executable_spec_of(source));
  LOWBIT_TRY(check_inputs(c.spec_));
  c.context_ = std::min(options.context, c.spec_.longest_context());
  LOWBIT_TRY_ASSIGN(CalibrationSequences text, options.sequences.empty() ? cut_text(source, options, c.context_)
                                                                         : given_sequences(options, c.context_));
  c.sequences_ = static_cast<int64_t>(text.fitted.size()) / c.context_;
  c.text_sha256_ = text.sha256;
  c.first_tokens_.assign(text.fitted.begin(), text.fitted.begin() + c.context_);
  c.fitted_tokens_ = std::move(text.fitted);
  c.asymmetric_ = asymmetric;
  LOWBIT_TRY_ASSIGN(c.backend_, make_backend(engine));
  LOWBIT_TRY_ASSIGN(HiddenStates kept_source, embed(source, c.spec_, text.held, c.context_, *c.backend_));
  LOWBIT_TRY_ASSIGN(HiddenStates kept_quantized, embed(source, c.spec_, text.held, c.context_, *c.backend_));
  c.held_out_ = HeldOut(text.held, c.context_, std::move(kept_source), std::move(kept_quantized), text.was_seen);
  return c;
}

/// They are most of what a text takes, so formats are searched without them.
Status Calibration::have_states() {
  if (!states_.empty()) return {};
  const auto numbers = [&](size_t tokens) { return 2 * int64_t(tokens) * spec_.hidden_size; };  // of both streams
  const int64_t fitted = numbers(fitted_tokens_.size());
  const RowFormat format = format_of_states(*source_, fitted);
  int64_t most_between = HiddenStates::kAnyBytes;
  if (engine_->gpu < 0)
    most_between = room_for_text(
        *source_, fitted * host_bytes(format) + numbers(held_out_.tokens().size()) * host_bytes(RowFormat::kF32));
  LOWBIT_TRY_ASSIGN(states_, embed(*source_, spec_, fitted_tokens_, context_, *backend_, most_between, format));
  if (asymmetric_) {
    LOWBIT_TRY_ASSIGN(source_states_,
                      embed(*source_, spec_, fitted_tokens_, context_, *backend_, HiddenStates::kAnyBytes, format));
  }
  fitted_tokens_ = {};
  return {};
}

Result<std::vector<float>> Calibration::first_rows(int64_t n) {
  LOWBIT_TRY(have_states());
  std::vector<float> rows(static_cast<size_t>(n * spec_.hidden_size));
  LOWBIT_TRY(states_.read(0, rows));
  return rows;
}

Status Calibration::begin(int64_t block) {
  program_.reset();  // one block in memory at a time
  source_program_.reset();
  block_.reset();
  LOWBIT_TRY_ASSIGN(auto loaded, SourceBlock::load(*source_, spec_, block, *backend_, *engine_->pool));
  return begin(std::move(loaded));
}

Status Calibration::begin(std::shared_ptr<const SourceBlock> block) {
  LOWBIT_TRY(have_states());
  block_ = std::move(block);
  compared_ = false;
  source_program_ = std::make_unique<BlockProgram>(block_, *backend_, *engine_->pool);
  program_ = std::make_unique<BlockProgram>(block_, *backend_, *engine_->pool);
  if (room_ != nullptr && room_for_ == block_->block()) return {};
  room_for_ = block_->block();
  const auto make_room = [&](std::unique_ptr<BatchRoom>& room) -> Status {
    room.reset();
    LOWBIT_TRY_ASSIGN(room,
                      BatchRoom::make(*backend_, {&block_, 1}, context_, states_.sequences(), backend_->batch_size()));
    return {};
  };
  LOWBIT_TRY(make_room(room_));
  return asymmetric_ ? make_room(source_room_) : Status{};
}

/// Hands the Hessian of an input to every weight that reads it.
HessianByWeight Calibration::share(const InputSpec& input, InputHessian measured) const {
  HessianByWeight hessian;
  const auto shared = std::make_shared<const InputHessian>(std::move(measured));
  for (const LinearSpec& reader : input.readers) hessian[block_->name(reader)] = shared;
  return hessian;
}

Result<HessianByWeight> Calibration::measure_with(const std::function<Status(const RowUse& use)>& run) {
  std::array<std::unique_ptr<HessianSum>, kInputRoles> sums;
  const auto inputs = inputs_of(block_->block());
  for (const InputSpec* input : inputs) {
    LOWBIT_TRY_ASSIGN(sums[static_cast<size_t>(input->role)], backend_->hessian_sum(input->readers.front().k, 0));
  }
  LOWBIT_TRY(run([&](InputRole role, const float* x, int64_t m, int64_t) {
    return sums[static_cast<size_t>(role)]->add(x, nullptr, nullptr, m);
  }));
  HessianByWeight hessian;
  for (const InputSpec* input : inputs) {
    std::unique_ptr<HessianSum>& sum = sums[static_cast<size_t>(input->role)];
    LOWBIT_TRY_ASSIGN(InputHessian measured, sum->finish(block_->name(input->readers.front())));
    sum.reset();
    hessian.merge(share(*input, std::move(measured)));
  }
  return hessian;
}

Result<HessianByWeight> Calibration::measure() {
  return measure_with([&](const RowUse& use) { return states_.show_inputs(*source_program_, *room_, report(), use); });
}

Result<HessianByWeight> Calibration::measure_and_advance() {
  return measure_with(
      [&](const RowUse& use) { return states_.run(*source_program_, *room_, kBlockSteps, report(), use); });
}

Result<HessianByWeight> Calibration::measure_input(InputRole role) {
  compared_ = true;
  const InputSpec& input = *inputs_of(block_->block())[static_cast<size_t>(role)];
  const LinearSpec& reader = input.readers.front();
  const bool on_stream = HiddenStates::adds_to_stream(role);
  LOWBIT_TRY_ASSIGN(const auto sum, backend_->hessian_sum(reader.k, on_stream ? reader.n : reader.k));
  LOWBIT_TRY(HiddenStates::compare_inputs({source_states_, *source_program_, *source_room_},
                                          {states_, *program_, *room_}, role, report(), *sum));
  LOWBIT_TRY_ASSIGN(InputHessian measured, sum->finish(block_->name(reader)));
  if (on_stream) measured.missing = std::exchange(measured.mismatch, {});
  return share(input, std::move(measured));
}

BeforeBatch Calibration::report() const {
  return [this](double share) -> Status {
    if (progress_ && !progress_(share)) return fail(ErrorCode::kCancelled, "calibrating", "a request to stop");
    return {};
  };
}

Status Calibration::replace(const std::string& name, const QTensor& w) {
  for (const LinearSpec* linear : linears_of(block_->block()))
    if (block_->name(*linear) == name) return program_->replace(*linear, w);
  return {};  // not executed
}

const HeldOut& Calibration::finish() {
  program_.reset();
  source_program_.reset();
  block_.reset();
  room_.reset();
  source_room_.reset();
  states_ = {};
  source_states_ = {};
  return held_out_;
}

Status Calibration::advance(const RowUse& use) {
  std::vector<float> host;
  const RowUse in_host_memory = [&](InputRole role, const float* x, int64_t m, int64_t k) -> Status {
    host.resize(static_cast<size_t>(m * k));
    auto* const bytes = reinterpret_cast<std::byte*>(const_cast<float*>(x));
    const auto where = engine_->gpu >= 0 ? Device::kCuda : Device::kCpu;
    LOWBIT_TRY(backend_->download(Buffer::borrow({bytes, host.size() * sizeof(float)}, nullptr, where), 0, host));
    return use(role, host.data(), m, k);
  };
  LOWBIT_TRY(states_.run(*program_, *room_, kBlockSteps, report(), use ? in_host_memory : RowUse()));
  if (asymmetric_ && !compared_) LOWBIT_TRY(source_states_.run(*source_program_, *source_room_, kBlockSteps));
  return held_out_.advance(*source_program_, *program_, *room_);
}

}  // namespace lowbit
