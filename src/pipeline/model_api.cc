#include <optional>

#include "base/clock.h"
#include "base/try.h"
#include "lowbit/model.h"
#include "lowbit/quantize.h"
#include "model/device_transformer.h"
#include "model/sampler.h"
#include "model/source.h"
#include "model/transformer.h"
#include "pipeline/engine.h"
#include "pipeline/source_tokenizer.h"

namespace lowbit {
namespace {

constexpr int64_t kDefaultContext = 4096;

Result<std::optional<ChatTemplate>> make_chat_template(const Tokenizer& tokenizer) {
  if (tokenizer.spec().chat_template.empty()) return std::optional<ChatTemplate>();
  auto parsed = ChatTemplate::parse(tokenizer.spec().chat_template);
  if (!parsed)
    return std::optional<ChatTemplate>();  // a template lowbit cannot read stops chat, not the
                                           // model
  return std::optional<ChatTemplate>(std::move(*parsed));
}

Result<Engine> engine_for(const ModelOptions& options, const ActivationChoice& activation) {
  LOWBIT_TRY_ASSIGN(const int gpu, wanted_gpu(options.compute));
  if (gpu < 0 || !options.scores_on_gpu) return Engine::make(options.compute);
  if (activation.kind != Activation::kF32)
    return fail(ErrorCode::kUnsupported, "--device", "cuda", "cpu", "a GPU scores with exact activations: --act f32");
  return Engine::with_gpu(options.compute);
}

}  // namespace

struct Model::Impl {
  Impl(std::unique_ptr<Transformer> t, KvCache c, Tokenizer tok)
      : transformer(std::move(t)), cache(std::move(c)), tokenizer(std::move(tok)) {}
  std::unique_ptr<Transformer> transformer;
  KvCache cache;
  Tokenizer tokenizer;
  std::unique_ptr<DeviceTransformer> scorer;  // with ModelOptions::scores_on_gpu
  std::optional<ChatTemplate> chat;
  ModelInfo info;
  std::vector<float> logits;  // of the last token
  Profile profile;
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

Result<Model> Model::open(const std::string& name, const ModelOptions& options) {
  const auto start = Clock::now();
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const ActivationChoice activation, parse_activation(options.activation));
  LOWBIT_TRY_ASSIGN(const Engine engine, engine_for(options, activation));
  LOWBIT_TRY_ASSIGN(const auto source, open_source(path));
  LOWBIT_TRY_ASSIGN(const ModelConfig config, model_config_of(*source));
  LOWBIT_TRY_ASSIGN(Tokenizer tokenizer, tokenizer_of(*source));

  LoadOptions load;
  load.activation = activation.kind;
  load.activation_group = activation.group;
  load.activations_as_trained = activation.as_trained;
  load.rounding = activation.rounding;
  load.isa = engine.isa;
  load.threads = engine.threads;
  load.tune = options.tune;
  load.context = options.context > 0 ? options.context : std::min(config.longest_context(), kDefaultContext);
  if (options.progress)
    load.progress = [&](int64_t done, int64_t total) { return options.progress("loading", done, total); };
  LOWBIT_TRY_ASSIGN(auto transformer, Transformer::load(*source, load));
  LOWBIT_TRY_ASSIGN(KvCache cache, transformer->make_cache());

  auto impl = std::make_unique<Impl>(std::move(transformer), std::move(cache), std::move(tokenizer));
  LOWBIT_TRY_ASSIGN(impl->chat, make_chat_template(impl->tokenizer));
  impl->logits.resize(static_cast<size_t>(config.vocab_size));
  ModelInfo& info = impl->info;
  info.path = path;
  info.kind = source->kind();
  info.architecture = config.model_type;
  for (const SourceTensor& t : source->tensors()) info.parameters += element_count(t.shape).value_or(0);
  info.vocab_size = config.vocab_size;
  info.layers = config.layers;
  info.hidden_size = config.hidden_size;
  info.context = load.context;
  info.max_context = config.longest_context();
  info.weight_bytes = impl->transformer->resident_bytes();
  const KvShape kv = impl->transformer->kv_shape();
  info.kv_bytes = 2 * 2 * kv.layers * kv.row_elems() * load.context;  // keys and values, two bytes each
  info.activation = activation.name;
  for (const LinearInfo& l : impl->transformer->linears())
    if (activation.as_trained && l.activation == Activation::kInt8 && l.activation_group == 0)
      info.activation = "int8-row";
  info.isa = isa_name(engine.isa);
  info.threads = impl->transformer->pool().size();
  if (engine.gpu >= 0) {
    LOWBIT_TRY_ASSIGN(impl->scorer, DeviceTransformer::load(*source, load.context, *engine.pool));
  }
  info.load_s = seconds_since(start);
  return Model(std::move(impl));
}

const ModelInfo& Model::info() const { return impl_->info; }
const Tokenizer& Model::tokenizer() const { return impl_->tokenizer; }
const ChatTemplate* Model::chat_template() const { return impl_->chat ? &*impl_->chat : nullptr; }
Result<std::string> Model::chat_text(ChatInput input) const {
  if (!impl_->chat)
    return fail(ErrorCode::kUnsupported, impl_->info.path, "no chat template", "a model trained for conversation");
  const TokenizerSpec& spec = impl_->tokenizer.spec();
  const auto text_of = [&](const std::optional<TokenId>& id) {
    const bool known = id && *id >= 0 && static_cast<size_t>(*id) < spec.tokens.size();
    return known ? spec.tokens[static_cast<size_t>(*id)] : std::string();
  };
  if (input.bos_token.empty()) input.bos_token = text_of(spec.bos_id);
  if (input.eos_token.empty()) input.eos_token = text_of(spec.eos_id);
  return impl_->chat->render(input);
}

int64_t Model::length() const { return impl_->cache.length(); }
Status Model::truncate(int64_t length) { return impl_->cache.truncate(length); }

void Model::set_profiling(bool on) {
  if (on) impl_->profile.clear();
  impl_->transformer->set_profile(on ? &impl_->profile : nullptr);
}

std::vector<StepProfile> Model::profile() const {
  std::vector<StepProfile> steps;
  for (int i = 0; i < static_cast<int>(ModelStep::kCount); ++i) {
    const StepTime& t = impl_->profile.at(static_cast<ModelStep>(i));
    if (t.calls > 0)
      steps.push_back({model_step_name(static_cast<ModelStep>(i)), t.calls, t.seconds, t.bytes, t.operations});
  }
  return steps;
}

Result<std::span<const float>> Model::prefill(std::span<const TokenId> tokens) {
  LOWBIT_TRY(impl_->transformer->forward(tokens, impl_->cache, LogitsWanted::last(), impl_->logits));
  return std::span<const float>(impl_->logits);
}

Status Model::logits_of_all(std::span<const TokenId> tokens, int64_t first, std::vector<float>& out) {
  const auto n = static_cast<int64_t>(tokens.size());
  if (first < 0 || first > n)
    return fail(ErrorCode::kInvalidArgument, "logits_of_all", "first row " + std::to_string(first),
                "0 to " + std::to_string(n));
  out.resize(static_cast<size_t>((n - first) * impl_->info.vocab_size));
  if (impl_->scorer && length() == 0) return impl_->scorer->logits(tokens, first, out);
  return impl_->transformer->forward(tokens, impl_->cache, LogitsWanted::range(first, n - first), out);
}

Result<Generation> Model::generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                                   const std::function<bool(std::string_view)>& on_text) {
  if (options.max_tokens < 0)
    return fail(ErrorCode::kInvalidArgument, "max_tokens", std::to_string(options.max_tokens), "0 or more");
  Generation out;
  out.prompt_tokens = static_cast<int64_t>(prompt.size());
  if (const int64_t room = impl_->info.context - length(); out.prompt_tokens > room)
    return fail(ErrorCode::kInvalidArgument, "prompt", std::to_string(out.prompt_tokens) + " tokens",
                "at most " + std::to_string(room), "shorten it, or ask for a larger context (-c)");
  LOWBIT_TRY_ASSIGN(Sampler sampler, Sampler::make(options.sampler));
  for (TokenId id : prompt) sampler.accept(id);
  auto start = Clock::now();
  LOWBIT_TRY_ASSIGN(std::span<const float> logits, prefill(prompt));
  out.prefill_s = seconds_since(start);

  StreamDecoder decoder(impl_->tokenizer);
  start = Clock::now();
  const auto emit = [&](const std::string& text) {
    out.text += text;
    return !on_text || on_text(text);
  };
  out.stop_reason = "length";
  while (static_cast<int64_t>(out.tokens.size()) < options.max_tokens) {
    LOWBIT_TRY_ASSIGN(const TokenId token, sampler.sample(logits));
    if (options.stop_at_eos && impl_->tokenizer.is_eos(token)) {
      out.stop_reason = "eos";
      break;
    }
    sampler.accept(token);
    out.tokens.push_back(token);
    LOWBIT_TRY_ASSIGN(const std::string text, decoder.push(token));
    if (!emit(text)) {
      out.stop_reason = "callback";
      break;
    }
    if (static_cast<int64_t>(out.tokens.size()) == options.max_tokens) break;  // its successor is not needed
    if (length() >= impl_->info.context) {
      out.stop_reason = "context";
      break;
    }
    LOWBIT_TRY_ASSIGN(logits, decode(token));
  }
  if (const std::string rest = decoder.flush(); !rest.empty()) emit(rest);
  out.decode_s = seconds_since(start);
  return out;
}

Result<Tokenizer> open_tokenizer(const std::string& name) {
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const TokenizerTexts texts, read_tokenizer_texts(path));
  return make_tokenizer(texts.tokenizer, texts.config, path);
}

}  // namespace lowbit
