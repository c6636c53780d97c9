#include <memory>
#include <span>
#include <string>

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
  LOWBIT_TRY_ASSIGN(model->logits, model->model.prefill({tokens, count}));
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

}  // extern "C"
