#include "model/device_transformer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "io/lost_pages.h"
#include "kernels/cuda_api.h"
#include "kernels/cuda_block_api.h"
#include "model/fetch_tensor.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};
constexpr int64_t kRowsOfLogits = 256;  // in device memory at once

}  // namespace

Result<std::unique_ptr<DeviceTransformer>> DeviceTransformer::load(const WeightSource& source, int64_t context,
                                                                   ThreadPool& pool) {
  std::unique_ptr<DeviceTransformer> model(new DeviceTransformer());
  LOWBIT_TRY_ASSIGN(model->spec_, executable_spec_of(source));
  const ModelSpec& c = model->spec_;
  for (int64_t i = 0; i < c.block_count(); ++i) LOWBIT_TRY(check_device_block(i, c.blocks[static_cast<size_t>(i)]));
  model->context_ = context;
  if (const int64_t window = c.shortest_window(); window > 0 && context > window)
    return fail(ErrorCode::kUnsupported, "--device cuda", fmt::format("a context of {}", context),
                fmt::format("at most sliding_window = {}", window), "windows are the CPU's alone so far: --device cpu");
  if (c.block_count() > static_cast<int64_t>(source.tensors().size()))
    return fail(ErrorCode::kNotFound, source.path(), fmt::format("{} tensors", source.tensors().size()),
                fmt::format("those of num_hidden_layers = {}", c.block_count()));
  const std::string embedding = weight_name(c.embedding), head_name = weight_name(c.head.name);
  LOWBIT_TRY_ASSIGN(model->embedding_, fetch_tensor(source, embedding, c.vocab_size, c.hidden_size, pool));
  if (c.tied_head) {
    LOWBIT_TRY_ASSIGN(model->head_, DeviceLinear::upload(embedding, model->embedding_, nullptr, pool));
  } else {
    LOWBIT_TRY_ASSIGN(const QTensor head, fetch_tensor(source, head_name, c.vocab_size, c.hidden_size, pool));
    LOWBIT_TRY_ASSIGN(model->head_, DeviceLinear::upload(head_name, head, nullptr, pool));
  }
  LOWBIT_TRY_ASSIGN(const QTensor norm, fetch_tensor(source, weight_name(c.final_norm.name), 1, c.hidden_size, pool));
  std::vector<float> values(static_cast<size_t>(c.hidden_size));
  dequantize_rows(norm, 0, 1, values.data());
  LOWBIT_TRY_ASSIGN(model->final_norm_, cuda::allocate(c.hidden_size * kFloat, "norm"));
  LOWBIT_TRY(cuda::upload(model->final_norm_, values.data(), c.hidden_size * kFloat));
  for (int64_t i = 0; i < c.block_count(); ++i) {
    LOWBIT_TRY_ASSIGN(DeviceBlock block, DeviceBlock::load(source, c, i, pool));
    model->blocks_.push_back(std::move(block));
  }
  LOWBIT_TRY_ASSIGN(model->work_, DeviceBlockWorkspace::make(c, context, 1, pool));
  LOWBIT_TRY_ASSIGN(model->x_, cuda::allocate(context * c.hidden_size * kFloat, "hidden states"));
  LOWBIT_TRY_ASSIGN(model->logits_, cuda::allocate(std::min(kRowsOfLogits, context) * c.vocab_size * kFloat, "logits"));
  return model;
}

Status DeviceTransformer::logits(std::span<const int32_t> tokens, int64_t first, std::span<float> out) {
  const int64_t n = static_cast<int64_t>(tokens.size()), hidden = spec_.hidden_size, vocab = spec_.vocab_size;
  if (n < 1 || n > context_ || first < 0 || first > n || static_cast<int64_t>(out.size()) < (n - first) * vocab)
    return fail(ErrorCode::kInvalidArgument, "logits", fmt::format("{} tokens from {}", n, first),
                fmt::format("1 to {} tokens, and room for their logits", context_));
  // Positions behind the text are zeros: attention does not look forward.
  std::vector<float> x(static_cast<size_t>(context_ * hidden));
  for (int64_t i = 0; i < n; ++i) {
    const int32_t token = tokens[static_cast<size_t>(i)];
    if (token < 0 || token >= vocab)
      return fail(ErrorCode::kInvalidArgument, "logits", fmt::format("token id {}", token),
                  fmt::format("0..{}", vocab - 1), "does the tokenizer belong to this model?");
    dequantize_rows(embedding_, token, 1, x.data() + i * hidden);
  }
  LOWBIT_TRY(check_pages(embedding_.codes.data(), weight_name(spec_.embedding).c_str()));
  LOWBIT_TRY(cuda::upload(x_, x.data(), context_ * hidden * kFloat));
  for (const DeviceBlock& block : blocks_) LOWBIT_TRY(block.run(work_, x_.as<float>(), 1));
  float* const states = x_.as<float>();
  LOWBIT_TRY(cuda::norm_rows(states, final_norm_.as<float>(), context_, hidden, spec_.final_norm.eps, states, nullptr));
  const int64_t most = logits_.size() / (vocab * kFloat);
  for (int64_t row = first; row < n; row += most) {
    const int64_t m = std::min(most, n - row);
    LOWBIT_TRY(head_.run(states + row * hidden, m, logits_.as<float>()));
    LOWBIT_TRY(cuda::download(out.data() + (row - first) * vocab, logits_, m * vocab * kFloat));
  }
  return {};
}

}  // namespace lowbit
