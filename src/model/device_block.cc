#include "model/device_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "base/try.h"
#include "kernels/cuda_api.h"
#include "kernels/vector_math.h"
#include "model/fetch_tensor.h"
#include "ops/rope.h"
#include "ops/weight_parts.h"

namespace lowbit {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{1} << 30;
constexpr int64_t kMostHeads = 65535, kMostRows = int64_t{1} << 22;  // of a launch: bounds of a grid
constexpr auto kFloat = int64_t{sizeof(float)};

Result<Buffer> to_device(const std::vector<float>& values, const char* what) {
  const auto bytes = static_cast<int64_t>(values.size()) * kFloat;
  LOWBIT_TRY_ASSIGN(Buffer buffer, cuda::allocate(bytes, what));
  LOWBIT_TRY(cuda::upload(buffer, values.data(), bytes));
  return buffer;
}

}  // namespace

Result<DeviceLinear> DeviceLinear::upload(const std::string& name, const QTensor& w, const float* bias,
                                          ThreadPool& pool) {
  DeviceLinear linear;
  LOWBIT_TRY_ASSIGN(const WeightParts parts, split_weight(w, pool));
  linear.name_ = name;
  linear.n_ = w.n;
  linear.k_ = w.k;
  linear.group_ = parts.group;
  LOWBIT_TRY_ASSIGN(linear.values_, to_device(parts.values, "weights"));
  if (!parts.scales.empty()) {
    LOWBIT_TRY_ASSIGN(linear.scales_, to_device(parts.scales, "scales"));
  }
  if (!parts.offsets.empty()) {
    LOWBIT_TRY_ASSIGN(linear.offsets_, to_device(parts.offsets, "offsets"));
  }
  if (bias != nullptr) {
    LOWBIT_TRY_ASSIGN(linear.bias_, to_device({bias, bias + w.n}, "bias"));
  }
  return linear;
}

Status DeviceLinear::run(const float* x, int64_t m, float* y) const {
  const auto floats = [](const Buffer& b) { return b.empty() ? nullptr : b.as<float>(); };
  return cuda::f32_matmul(
      {floats(values_), floats(scales_), floats(offsets_), floats(bias_), n_, k_, group_, x, y, m, nullptr});
}

Result<DeviceBlockWorkspace> DeviceBlockWorkspace::make(const ModelConfig& c, int64_t context, int64_t windows,
                                                        ThreadPool& pool) {
  DeviceBlockWorkspace work;
  const int64_t row = c.hidden_size + 2 * c.q_size() + 2 * c.kv_size() + 2 * c.intermediate_size;
  const int64_t window = context * row * kFloat + cuda::attend_workspace_bytes(1, context, c.heads);
  work.context_ = context;
  work.windows_ = std::clamp<int64_t>(std::min({kWorkspaceBytes / window, kMostHeads / c.heads, kMostRows / context}),
                                      1, std::max<int64_t>(1, windows));
  const auto rows = [&](Buffer& buffer, int64_t width) -> Status {
    LOWBIT_TRY_ASSIGN(buffer, cuda::allocate(work.windows_ * context * width * kFloat, "workspace"));
    return {};
  };
  LOWBIT_TRY(rows(work.h_, c.hidden_size));
  LOWBIT_TRY(rows(work.q_, c.q_size()));
  LOWBIT_TRY(rows(work.attn_, c.q_size()));
  LOWBIT_TRY(rows(work.k_, c.kv_size()));
  LOWBIT_TRY(rows(work.v_, c.kv_size()));
  LOWBIT_TRY(rows(work.gate_, c.intermediate_size));
  LOWBIT_TRY(rows(work.up_, c.intermediate_size));
  LOWBIT_TRY_ASSIGN(work.scores_,
                    cuda::allocate(cuda::attend_workspace_bytes(work.windows_, context, c.heads), "attention scores"));
  std::vector<float> cos(static_cast<size_t>(context * c.head_dim / 2)), sin(cos.size());
  rope_table(rope_frequencies(c.head_dim, c.rope_theta, c.rope_scaling), 0, context, cos.data(), sin.data(), pool);
  LOWBIT_TRY_ASSIGN(work.cos_, to_device(cos, "rotations"));
  LOWBIT_TRY_ASSIGN(work.sin_, to_device(sin, "rotations"));
  return work;
}

Result<DeviceBlock> DeviceBlock::load(const WeightSource& source, const ModelConfig& c, int64_t block,
                                      ThreadPool& pool) {
  DeviceBlock b(c);
  const std::string at = fmt::format("model.layers.{}.", block);
  const auto vector = [&](const std::string& name, int64_t n) -> Result<std::vector<float>> {
    LOWBIT_TRY_ASSIGN(const QTensor w, fetch_tensor(source, name, 1, n, pool));
    std::vector<float> values(static_cast<size_t>(n));
    dequantize_rows(w, 0, 1, values.data());
    return values;
  };
  const auto norm = [&](const char* part, int64_t n, Buffer& to) -> Status {
    LOWBIT_TRY_ASSIGN(const std::vector<float> values, vector(at + part, n));
    LOWBIT_TRY_ASSIGN(to, to_device(values, "norm"));
    return {};
  };
  const auto linear = [&](const char* part, int64_t n, int64_t k, bool with_bias, DeviceLinear& to) -> Status {
    const std::string name = at + part + ".weight";
    std::vector<float> bias;
    if (with_bias) {
      LOWBIT_TRY_ASSIGN(bias, vector(at + part + ".bias", n));
    }
    LOWBIT_TRY_ASSIGN(const QTensor w, fetch_tensor(source, name, n, k, pool));
    LOWBIT_TRY_ASSIGN(to, DeviceLinear::upload(name, w, with_bias ? bias.data() : nullptr, pool));
    source.release(name);
    return {};
  };
  LOWBIT_TRY(norm("input_layernorm.weight", c.hidden_size, b.input_norm_));
  LOWBIT_TRY(linear("self_attn.q_proj", c.q_size(), c.hidden_size, c.qkv_bias, b.q_));
  LOWBIT_TRY(linear("self_attn.k_proj", c.kv_size(), c.hidden_size, c.qkv_bias, b.k_));
  LOWBIT_TRY(linear("self_attn.v_proj", c.kv_size(), c.hidden_size, c.qkv_bias, b.v_));
  if (c.qk_norm) {
    LOWBIT_TRY(norm("self_attn.q_norm.weight", c.head_dim, b.q_norm_));
    LOWBIT_TRY(norm("self_attn.k_norm.weight", c.head_dim, b.k_norm_));
  }
  LOWBIT_TRY(linear("self_attn.o_proj", c.hidden_size, c.q_size(), c.o_bias, b.o_));
  LOWBIT_TRY(norm("post_attention_layernorm.weight", c.hidden_size, b.post_norm_));
  LOWBIT_TRY(linear("mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias, b.gate_));
  LOWBIT_TRY(linear("mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias, b.up_));
  LOWBIT_TRY(linear("mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias, b.down_));
  return b;
}

Status DeviceBlock::run(DeviceBlockWorkspace& work, float* x, int64_t windows, const DeviceObserver& observer) const {
  if (windows < 1 || windows > work.windows_)
    return fail(ErrorCode::kInvalidArgument, "run block", fmt::format("{} windows", windows),
                fmt::format("1 to {}", work.windows_));
  LOWBIT_TRY(attention_part(work, x, windows, observer));
  return feed_forward_part(work, x, windows, observer);
}

namespace {

Status observe(const DeviceObserver& observer, std::initializer_list<const DeviceLinear*> layers, const float* x,
               int64_t m) {
  for (const DeviceLinear* layer : layers)
    if (observer) LOWBIT_TRY(observer(*layer, x, m));
  return {};
}

}  // namespace

Status DeviceBlock::attention_part(DeviceBlockWorkspace& work, float* x, int64_t windows,
                                   const DeviceObserver& observer) const {
  const ModelConfig& c = config_;
  const int64_t m = windows * work.context_, half = c.head_dim / 2;
  float *h = work.h_.as<float>(), *q = work.q_.as<float>(), *k = work.k_.as<float>(), *v = work.v_.as<float>();
  float* attn = work.attn_.as<float>();
  const float *cos = work.cos_.as<float>(), *sin = work.sin_.as<float>();
  LOWBIT_TRY(cuda::norm_rows(x, input_norm_.as<float>(), m, c.hidden_size, c.rms_eps, h, nullptr));
  LOWBIT_TRY(observe(observer, {&q_, &k_, &v_}, h, m));
  LOWBIT_TRY(q_.run(h, m, q));
  LOWBIT_TRY(k_.run(h, m, k));
  LOWBIT_TRY(v_.run(h, m, v));
  if (c.qk_norm) {
    LOWBIT_TRY(cuda::norm_rows(q, q_norm_.as<float>(), m * c.heads, c.head_dim, c.rms_eps, q, nullptr));
    LOWBIT_TRY(cuda::norm_rows(k, k_norm_.as<float>(), m * c.kv_heads, c.head_dim, c.rms_eps, k, nullptr));
  }
  LOWBIT_TRY(cuda::rotate_rows({q, cos, sin, m, c.heads, half, work.context_, nullptr}));
  LOWBIT_TRY(cuda::rotate_rows({k, cos, sin, m, c.kv_heads, half, work.context_, nullptr}));
  LOWBIT_TRY(cuda::round_to_f16(k, m * c.kv_size(), nullptr));
  LOWBIT_TRY(cuda::round_to_f16(v, m * c.kv_size(), nullptr));
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
  LOWBIT_TRY(cuda::attend_windows({q, k, v, attn, work.scores_.as<float>(), windows, work.context_, c.heads, c.kv_heads,
                                   c.head_dim, scale, nullptr}));
  LOWBIT_TRY(observe(observer, {&o_}, attn, m));
  LOWBIT_TRY(o_.run(attn, m, h));
  return cuda::add_rows(h, m * c.hidden_size, x, nullptr);
}

Status DeviceBlock::feed_forward_part(DeviceBlockWorkspace& work, float* x, int64_t windows,
                                      const DeviceObserver& observer) const {
  const ModelConfig& c = config_;
  const int64_t m = windows * work.context_;
  float *h = work.h_.as<float>(), *gate = work.gate_.as<float>(), *up = work.up_.as<float>();
  LOWBIT_TRY(cuda::norm_rows(x, post_norm_.as<float>(), m, c.hidden_size, c.rms_eps, h, nullptr));
  LOWBIT_TRY(observe(observer, {&gate_, &up_}, h, m));
  LOWBIT_TRY(gate_.run(h, m, gate));
  LOWBIT_TRY(up_.run(h, m, up));
  LOWBIT_TRY(cuda::gate_rows(gate, up, m * c.intermediate_size, nullptr));
  if (c.down_hadamard > 0)
    LOWBIT_TRY(
        cuda::hadamard_rows(gate, m, c.intermediate_size, c.down_hadamard, hadamard_scale(c.down_hadamard), nullptr));
  LOWBIT_TRY(observe(observer, {&down_}, gate, m));
  LOWBIT_TRY(down_.run(gate, m, h));
  return cuda::add_rows(h, m * c.hidden_size, x, nullptr);
}

}  // namespace lowbit
