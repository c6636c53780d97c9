#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/try.h"
#include "capi/errors.h"
#include "lowbit/model.h"
#include "lowbit/quantize.h"

struct lb_model {
  lowbit::Model model;
  std::span<const float> logits;
};

namespace lowbit::capi {
namespace {

Status open_model(const char* path, const lb_model_options* options, lb_model** model) {
  if (model == nullptr || path == nullptr)
    return fail(ErrorCode::kInvalidArgument, "lb_model_open", "NULL", "a path and a place");
  *model = nullptr;
  if (options != nullptr && options->struct_size != sizeof *options)
    return fail(ErrorCode::kInvalidArgument, "lb_model_options struct_size", std::to_string(options->struct_size),
                std::to_string(sizeof *options));
  ModelOptions o;
  if (options != nullptr) {
    if (options->context < 0)
      return fail(ErrorCode::kInvalidArgument, "lb_model_options context", std::to_string(options->context),
                  "positions, or 0");
    if (options->activation != nullptr) o.activation = options->activation;
    if (options->device != nullptr) o.compute.device = options->device;
    o.context = options->context;
    o.compute.threads = options->threads;
  }
  LOWBIT_TRY_ASSIGN(const std::string resolved, resolve_model(path));
  LOWBIT_TRY_ASSIGN(Model opened, Model::open(resolved, o));
  *model = std::make_unique<lb_model>(lb_model{std::move(opened), {}}).release();
  return {};
}

Status append(lb_model* model, const int32_t* tokens, size_t count) {
  if (model == nullptr || (tokens == nullptr && count > 0))
    return fail(ErrorCode::kInvalidArgument, "lb_model_prefill", "NULL", "a model and tokens");
  LOWBIT_TRY(check_count("lb_model_prefill count", count, sizeof *tokens));
  LOWBIT_TRY_ASSIGN(model->logits, model->model.prefill({tokens, count}));
  return {};
}

/// What a caller's array takes of `from`, and how much there was.
template <class From, class T>
void hand_over(const From& from, T* to, size_t capacity, size_t* count) {
  std::copy_n(from.data(), std::min(capacity, from.size()), to);
  *count = from.size();
}

Status tokenize(const lb_model* model, std::string_view text, EncodeOptions options, int32_t* tokens, size_t capacity,
                size_t* count) {
  if (model == nullptr || count == nullptr || (text.data() == nullptr && !text.empty()) ||
      (tokens == nullptr && capacity > 0))
    return fail(ErrorCode::kInvalidArgument, "lb_model_tokenize", "NULL", "a model, a text and places");
  LOWBIT_TRY(check_count("lb_model_tokenize text_size", text.size(), 1));
  LOWBIT_TRY_ASSIGN(const std::vector<TokenId> ids, model->model.tokenizer().encode(text, options));
  hand_over(ids, tokens, capacity, count);
  return {};
}

Status detokenize(const lb_model* model, const int32_t* tokens, size_t count, char* text, size_t capacity,
                  size_t* size) {
  if (model == nullptr || size == nullptr || (tokens == nullptr && count > 0) || (text == nullptr && capacity > 0))
    return fail(ErrorCode::kInvalidArgument, "lb_model_detokenize", "NULL", "a model, tokens and places");
  LOWBIT_TRY(check_count("lb_model_detokenize count", count, sizeof *tokens));
  LOWBIT_TRY_ASSIGN(const std::string decoded, model->model.tokenizer().decode({tokens, count}));
  hand_over(decoded, text, capacity, size);
  return {};
}

Status chat_text(const lb_model* model, std::string_view variables, char* text, size_t capacity, size_t* size) {
  if (model == nullptr || variables.data() == nullptr || size == nullptr || (text == nullptr && capacity > 0))
    return fail(ErrorCode::kInvalidArgument, "lb_model_chat_text", "NULL", "a model, variables and places");
  if (variables.empty()) return fail(ErrorCode::kInvalidArgument, "chat variables", "nothing", "a JSON object");
  LOWBIT_TRY(check_count("lb_model_chat_text variables_size", variables.size(), 1));
  LOWBIT_TRY_ASSIGN(const std::string written, model->model.chat_text({.extra_json = std::string(variables)}));
  hand_over(written, text, capacity, size);
  return {};
}

GenerateOptions generate_options(const lb_generate_options& o) {
  GenerateOptions options;
  options.max_tokens = o.max_tokens;
  options.stop_at_eos = o.ignore_eos == 0;
  options.sampler.temperature = o.temperature;
  options.sampler.top_k = o.top_k;
  options.sampler.top_p = o.top_p;
  options.sampler.min_p = o.min_p;
  options.sampler.repeat_penalty = o.repeat_penalty;
  options.sampler.seed = o.seed;
  return options;
}

lb_generate_options default_generate_options() {
  const GenerateOptions options;
  lb_generate_options o{};
  o.struct_size = sizeof o;
  o.max_tokens = options.max_tokens;
  o.temperature = options.sampler.temperature;
  o.top_p = options.sampler.top_p;
  o.min_p = options.sampler.min_p;
  o.repeat_penalty = options.sampler.repeat_penalty;
  o.top_k = options.sampler.top_k;
  o.seed = options.sampler.seed;
  return o;
}

Status generate(lb_model* model, std::span<const TokenId> prompt, const lb_generate_options* given, int32_t* tokens,
                size_t capacity, size_t* count) {
  if (model == nullptr || (prompt.data() == nullptr && !prompt.empty()) || (tokens == nullptr && capacity > 0))
    return fail(ErrorCode::kInvalidArgument, "lb_model_generate", "NULL", "a model, a prompt and a place for tokens");
  LOWBIT_TRY(check_count("lb_model_generate prompt_count", prompt.size(), sizeof(TokenId)));
  if (given != nullptr && given->struct_size != sizeof *given)
    return fail(ErrorCode::kInvalidArgument, "lb_generate_options struct_size", std::to_string(given->struct_size),
                std::to_string(sizeof *given));
  const lb_generate_options o = given != nullptr ? *given : default_generate_options();
  const auto on_text = [&o](std::string_view text) {
    return o.on_text == nullptr || o.on_text(o.user, text.data(), text.size()) == 0;
  };
  model->logits = {};
  LOWBIT_TRY_ASSIGN(const Generation made, model->model.generate(prompt, generate_options(o), on_text));
  size_t ignored = 0;
  hand_over(made.tokens, tokens, capacity, count != nullptr ? count : &ignored);
  return {};
}

}  // namespace
}  // namespace lowbit::capi

using lowbit::capi::guarded;

extern "C" {

lb_status lb_model_open(const char* path, const lb_model_options* options, lb_model** model) {
  return guarded([&] { return lowbit::capi::open_model(path, options, model); });
}
void lb_model_close(lb_model* model) { delete model; }

int64_t lb_model_vocab_size(const lb_model* model) { return model == nullptr ? 0 : model->model.info().vocab_size; }
int64_t lb_model_length(const lb_model* model) { return model == nullptr ? 0 : model->model.length(); }

lb_status lb_model_prefill(lb_model* model, const int32_t* tokens, size_t count) {
  return guarded([&] { return lowbit::capi::append(model, tokens, count); });
}
lb_status lb_model_decode(lb_model* model, int32_t token) { return lb_model_prefill(model, &token, 1); }

lb_status lb_model_logits(const lb_model* model, const float** logits, size_t* count) {
  return guarded([&]() -> lowbit::Status {
    if (model == nullptr || logits == nullptr || count == nullptr)
      return lowbit::fail(lowbit::ErrorCode::kInvalidArgument, "lb_model_logits", "NULL", "a model and places");
    if (model->logits.empty())
      return lowbit::fail(lowbit::ErrorCode::kNotFound, "lb_model_logits", "no token since the sequence began",
                          "a token");
    *logits = model->logits.data();
    *count = model->logits.size();
    return {};
  });
}

lb_status lb_model_truncate(lb_model* model, int64_t length) {
  return guarded([&]() -> lowbit::Status {
    if (model == nullptr)
      return lowbit::fail(lowbit::ErrorCode::kInvalidArgument, "lb_model_truncate", "NULL", "a model");
    model->logits = {};
    return model->model.truncate(length);
  });
}

lb_status lb_model_tokenize(const lb_model* model, const char* text, size_t text_size, int32_t add_special,
                            int32_t parse_special, int32_t* tokens, size_t capacity, size_t* count) {
  const lowbit::EncodeOptions options{add_special != 0, parse_special != 0};
  return guarded([&] { return lowbit::capi::tokenize(model, {text, text_size}, options, tokens, capacity, count); });
}

lb_status lb_model_detokenize(const lb_model* model, const int32_t* tokens, size_t count, char* text, size_t capacity,
                              size_t* size) {
  return guarded([&] { return lowbit::capi::detokenize(model, tokens, count, text, capacity, size); });
}

lb_status lb_model_chat_text(const lb_model* model, const char* variables, size_t variables_size, char* text,
                             size_t capacity, size_t* size) {
  return guarded([&] { return lowbit::capi::chat_text(model, {variables, variables_size}, text, capacity, size); });
}

void lb_generate_options_init(lb_generate_options* options) {
  if (options != nullptr) *options = lowbit::capi::default_generate_options();
}

lb_status lb_model_generate(lb_model* model, const int32_t* prompt, size_t prompt_count,
                            const lb_generate_options* options, int32_t* tokens, size_t capacity, size_t* count) {
  return guarded([&] {
    return lowbit::capi::generate(model, {prompt, prompt_count}, options, tokens, capacity, count);
  });
}

}  // extern "C"
