#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/try.h"
#include "capi/errors.h"
#include "capi/sequence.h"
#include "capi/versioned.h"
#include "lowbit/quantize.h"

namespace lowbit::capi {
namespace {

Status open_model(const char* path, const lb_model_options* options, lb_model** model) {
  if (model == nullptr || path == nullptr)
    return fail(ErrorCode::kInvalidArgument, "lb_model_open", "NULL", "a path and a place");
  *model = nullptr;
  ModelOptions o;
  if (options != nullptr) {
    lb_model_options given{};
    LOWBIT_TRY(read_versioned(
        "lb_model_options", options,
        {offsetof(lb_model_options, kv_positions), offsetof(lb_model_options, kv), offsetof(lb_model_options, kv_keep),
         offsetof(lb_model_options, kv_refresh), offsetof(lb_model_options, exact)},
        given));
    for (const auto& [name, positions] :
         {std::pair{"context", given.context}, std::pair{"kv_positions", given.kv_positions}})
      if (positions < 0)
        return fail(ErrorCode::kInvalidArgument, std::string("lb_model_options ") + name, std::to_string(positions),
                    "positions, or 0");
    if (given.activation != nullptr) o.activation = given.activation;
    if (given.device != nullptr) o.compute.device = given.device;
    o.context = given.context;
    o.kv_positions = given.kv_positions;
    if (given.kv != nullptr) o.kv = given.kv;
    if (given.kv_residual < -1)
      return fail(ErrorCode::kInvalidArgument, "lb_model_options kv_residual", std::to_string(given.kv_residual),
                  "positions, 0 for 128, or -1 for none");
    if (given.kv_residual != 0) o.kv_residual = std::max<int64_t>(given.kv_residual, 0);
    if (given.kv_keep != nullptr) o.kv_keep = given.kv_keep;
    o.kv_refresh = given.kv_refresh;
    if (given.kv_demote != nullptr) o.kv_demote = given.kv_demote;
    o.exact = given.exact != 0;
    o.compute.threads = given.threads;
  }
  LOWBIT_TRY_ASSIGN(const std::string resolved, resolve_model(path));
  LOWBIT_TRY_ASSIGN(Model opened, Model::open(resolved, o));
  Session sequence = opened.session();
  *model = std::make_unique<lb_model>(lb_model{std::move(opened), std::move(sequence)}).release();
  return {};
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

}  // namespace
}  // namespace lowbit::capi

using lowbit::capi::guarded;
using lowbit::capi::sequence_of;

extern "C" {

lb_status lb_model_open(const char* path, const lb_model_options* options, lb_model** model) {
  return guarded([&] { return lowbit::capi::open_model(path, options, model); });
}
void lb_model_close(lb_model* model) { delete model; }

int64_t lb_model_vocab_size(const lb_model* model) { return model == nullptr ? 0 : model->model.info().vocab_size; }
int64_t lb_model_length(const lb_model* model) { return model == nullptr ? 0 : model->sequence.length(); }

lb_status lb_model_prefill(lb_model* model, const int32_t* tokens, size_t count) {
  return guarded([&] { return lowbit::capi::prefill("lb_model_prefill", sequence_of(model), tokens, count); });
}
lb_status lb_model_decode(lb_model* model, int32_t token) { return lb_model_prefill(model, &token, 1); }

lb_status lb_model_logits(const lb_model* model, const float** logits, size_t* count) {
  return guarded([&] { return lowbit::capi::logits("lb_model_logits", sequence_of(model), logits, count); });
}

lb_status lb_model_truncate(lb_model* model, int64_t length) {
  return guarded([&] { return lowbit::capi::truncate("lb_model_truncate", sequence_of(model), length); });
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

lb_status lb_model_generate(lb_model* model, const int32_t* prompt, size_t prompt_count,
                            const lb_generate_options* options, int32_t* tokens, size_t capacity, size_t* count) {
  return guarded([&] {
    return lowbit::capi::generate("lb_model_generate", sequence_of(model), {prompt, prompt_count}, options, tokens,
                                  capacity, count);
  });
}

}  // extern "C"
