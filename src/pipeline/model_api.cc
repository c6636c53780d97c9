#include <cstdlib>
#include <future>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/checked.h"
#include "base/clock.h"
#include "base/freed_memory.h"
#include "base/try.h"
#include "lowbit/model.h"
#include "lowbit/quantize.h"
#include "model/model_spec.h"
#include "model/source.h"
#include "model/source_tokenizer.h"
#include "pipeline/session_impl.h"
#include "runtime/engine.h"

namespace lowbit {
namespace {

constexpr std::string_view kReference = "ref";
constexpr int64_t kDefaultContext = 4096;
constexpr int64_t kMostSessions = 1024;  // whole contexts, where no number of positions is given
constexpr int64_t kMostKvPositions = int64_t{1} << 32;

/// A model's tokenizer and chat template.
struct TextParts {
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat;
};

Result<TextParts> text_parts_of(const WeightSource& source) {
  LOWBIT_TRY_ASSIGN(Tokenizer tokenizer, tokenizer_of(source));
  TextParts parts{std::move(tokenizer), {}};
  const std::string& text = parts.tokenizer.spec().chat_template;
  if (text.empty()) return parts;
  // A template lowbit cannot read stops chat, not the model.
  if (auto parsed = ChatTemplate::parse(text)) parts.chat = std::move(*parsed);
  return parts;
}

/// text_parts_of() beside the caller's work, as a vocabulary takes about as long as a small model's weights; where
/// there is one thread, or no room for another, when the caller asks for it.
std::future<Result<TextParts>> start_text_parts_of(const WeightSource& source, int threads) {
  const auto read = [&source] { return text_parts_of(source); };
  if (threads > 1) {
    try {
      return std::async(std::launch::async, read);
    } catch (const std::system_error&) {
    }
  }
  return std::async(std::launch::deferred, read);
}

/// "ref" is no instruction set: kernels take it for one without any.
bool wants_reference(const Compute& compute) {
  const char* env = std::getenv("LOWBIT_ISA");
  return compute.isa == kReference || (compute.isa.empty() && env != nullptr && env == kReference);
}

Result<Engine> engine_for(const ModelOptions& options) {
  Compute compute = options.compute;
  if (wants_reference(compute)) compute.isa = isa_name(Isa::kScalar);
  LOWBIT_TRY_ASSIGN(Engine engine, Engine::make(compute));
  if (options.gpu_layers > 0 && engine.gpus.empty()) {
    if (compute.device == "cpu")
      return fail(ErrorCode::kInvalidArgument, "--gpu-layers", std::to_string(options.gpu_layers) + " on the CPU",
                  "a GPU", "--device cuda");
    compute.device = "cuda";
    return Engine::make(compute);
  }
  if (options.gpu_layers == 0) {
    engine.gpu = -1;
    engine.gpus.clear();
  }
  return engine;
}

}  // namespace

struct Model::Impl {
  Impl(std::shared_ptr<SharedModel> s, Session session) : shared(std::move(s)), own(std::move(session)) {}
  std::shared_ptr<SharedModel> shared;
  Session own;
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

namespace {

LoadOptions load_options_of(const ModelOptions& options, const Engine& engine, const XPolicy& x, const KvFormat& kv,
                            int64_t max_positions) {
  LoadOptions load;
  load.x = x;
  load.isa = engine.isa;
  load.reference = wants_reference(options.compute);
  load.gpus = engine.gpus;
  load.gpu_layers = options.gpu_layers;
  load.threads = engine.threads;
  load.tune = options.tune;
  // Attention keeps the CPU's order where it is asked for, and where nothing else of x is rounded.
  load.exact = options.exact || options.activation == "f32";
  load.kv = kv;
  load.kv_keep = options.kv_keep;
  load.context = options.context > 0 ? options.context : std::min(max_positions, kDefaultContext);
  if (options.progress)
    load.progress = [&](int64_t done, int64_t total) { return options.progress("loading", done, total); };
  return load;
}

/// The --act that gives the same bits: "auto" where it gives scales that no other one does.
std::string activation_name(const ActivationChoice& wanted, const std::vector<WeightInfo>& linears) {
  std::string name = wanted.name;
  for (const WeightInfo& l : linears) {
    if (!wanted.x.by_weight || l.activation != Activation::kInt8) continue;
    if (l.activation_group == kExactScaleColumns) return "auto";
    if (l.activation_group == 0) name = "int8-row";
  }
  return name;
}

/// All that says how a model runs; what its source says is there.
void fill_info(ModelInfo& info, const SharedModel& model, const LoadOptions& load, const Engine& engine,
               const ActivationChoice& activation) {
  info.context = load.context;
  info.weight_bytes = model.transformer->resident_bytes();
  info.kv = kv_format_name(load.kv);
  info.kv_keep = load.kv.packed() ? load.kv_keep : "";
  info.kv_refresh = load.kv.refresh;
  info.kv_demote = kv_demote_name(load.kv);
  info.kv_bytes = model.pages->bytes_of(load.context);
  info.activation = activation_name(activation, model.transformer->linears());
  info.isa = engine.gpu >= 0 ? "cuda" : load.reference ? kReference : isa_name(engine.isa);
  info.threads = model.transformer->pool().size();
}

}  // namespace

Result<Model> Model::open(const std::string& name, const ModelOptions& options) {
  const auto start = Clock::now();
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const ActivationChoice activation, parse_activation(options.activation));
  LOWBIT_TRY_ASSIGN(KvFormat kv_format, parse_kv_format(options.kv, options.kv_residual));
  LOWBIT_TRY(set_kv_upkeep(options.kv_refresh, options.kv_demote, kv_format));
  if (options.kv_positions < 0 || options.kv_positions > kMostKvPositions)
    return fail(ErrorCode::kInvalidArgument, "kv_positions", std::to_string(options.kv_positions),
                "0 to " + std::to_string(kMostKvPositions));
  LOWBIT_TRY_ASSIGN(const Engine engine, engine_for(options));
  LOWBIT_TRY_ASSIGN(const auto source, open_source(path));
  LOWBIT_TRY_ASSIGN(const ModelSpec spec, executable_spec_of(*source));
  auto reading_text = start_text_parts_of(*source, engine.threads);

  const LoadOptions load = load_options_of(options, engine, activation.x, kv_format, spec.max_positions);
  auto loaded = Transformer::load(*source, load);
  LOWBIT_TRY_ASSIGN(TextParts text, reading_text.get());
  LOWBIT_TRY_ASSIGN(auto transformer, std::move(loaded));
  const int64_t of_one = ceil_div(load.context, kKvPage);
  const int64_t pages = options.kv_positions > 0 ? ceil_div(options.kv_positions, kKvPage) : kMostSessions * of_one;
  LOWBIT_TRY_ASSIGN(auto kv, transformer->make_pool(pages, of_one));

  auto shared = std::make_shared<SharedModel>(std::move(transformer), std::move(kv), std::move(text.tokenizer));
  shared->chat = std::move(text.chat);
  ModelInfo& info = shared->info;
  info.path = path;
  info.kind = source->kind();
  info.architecture = spec.family;
  for (const SourceTensor& t : source->tensors()) info.parameters += element_count(t.shape).value_or(0);
  info.vocab_size = spec.vocab_size;
  info.layers = spec.block_count();
  info.hidden_size = spec.hidden_size;
  info.max_context = spec.max_positions;
  fill_info(info, *shared, load, engine, activation);
  give_back_freed_memory();
  info.load_s = seconds_since(start);
  Session own(std::make_unique<Session::Impl>(shared));
  return Model(std::make_unique<Impl>(std::move(shared), std::move(own)));
}

SharedModel& shared_model_of(Model& model) { return *model.impl_->shared; }

const ModelInfo& Model::info() const { return impl_->shared->info; }
const Tokenizer& Model::tokenizer() const { return impl_->shared->tokenizer; }
const ChatTemplate* Model::chat_template() const { return impl_->shared->chat ? &*impl_->shared->chat : nullptr; }
Result<std::string> Model::chat_text(ChatInput input) const {
  if (!impl_->shared->chat)
    return fail(ErrorCode::kUnsupported, impl_->shared->info.path, "no chat template",
                "a model trained for conversation");
  const TokenizerSpec& spec = impl_->shared->tokenizer.spec();
  const auto text_of = [&](const std::optional<TokenId>& id) {
    const bool known = id && *id >= 0 && static_cast<size_t>(*id) < spec.tokens.size();
    return known ? spec.tokens[static_cast<size_t>(*id)] : std::string();
  };
  if (input.bos_token.empty()) input.bos_token = text_of(spec.bos_id);
  if (input.eos_token.empty()) input.eos_token = text_of(spec.eos_id);
  return impl_->shared->chat->render(input);
}

void Model::set_profiling(bool on) {
  if (on) impl_->shared->profile.clear();
  impl_->shared->transformer->set_profile(on ? &impl_->shared->profile : nullptr);
}

std::vector<StepProfile> Model::profile() const {
  std::vector<StepProfile> steps;
  for (int i = 0; i < static_cast<int>(ModelStep::kCount); ++i) {
    const StepTime& t = impl_->shared->profile.at(static_cast<ModelStep>(i));
    if (t.calls > 0)
      steps.push_back({model_step_name(static_cast<ModelStep>(i)), t.calls, t.seconds, t.bytes, t.operations});
  }
  return steps;
}

Session Model::session() const { return Session(std::make_unique<Session::Impl>(impl_->shared)); }

Result<std::span<const float>> Model::prefill(std::span<const TokenId> tokens) { return impl_->own.prefill(tokens); }
Status Model::logits_of_all(std::span<const TokenId> tokens, int64_t first, std::vector<float>& out) {
  return impl_->own.logits_of_all(tokens, first, out);
}
int64_t Model::length() const { return impl_->own.length(); }
int64_t Model::device_bytes() const { return impl_->shared->transformer->device_bytes(); }
int64_t Model::kv_bytes() const { return impl_->own.kv_bytes(); }
Status Model::truncate(int64_t length) { return impl_->own.truncate(length); }
Status Model::start_trace(const std::string& path) { return impl_->own.start_trace(path); }
Status Model::finish_trace() { return impl_->own.finish_trace(); }
Result<Generation> Model::generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                                   const std::function<bool(std::string_view)>& on_text) {
  return impl_->own.generate(prompt, options, on_text);
}

Result<Tokenizer> open_tokenizer(const std::string& name) {
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const TokenizerTexts texts, read_tokenizer_texts(path));
  return make_tokenizer(texts.tokenizer, texts.config, path);
}

}  // namespace lowbit
