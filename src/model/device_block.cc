#include "model/device_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <vector>

#include "base/try.h"
#include "kernels/cuda_api.h"
#include "kernels/vector_math.h"
#include "model/fetch_tensor.h"
#include "model/model_spec.h"
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

Result<DeviceBlockWorkspace> DeviceBlockWorkspace::make(const ModelSpec& spec, int64_t context, int64_t windows,
                                                        ThreadPool& pool) {
  DeviceBlockWorkspace work;
  const AttentionSpec& a = spec.blocks.front().attention;
  const int64_t hidden = spec.hidden_size, mlp_width = spec.blocks.front().mlp.width;
  const int64_t row = hidden + 2 * a.q_size() + 2 * a.kv_size() + 2 * mlp_width;
  const int64_t window = context * row * kFloat + cuda::attend_workspace_bytes(1, context, a.heads);
  work.context_ = context;
  work.windows_ = std::clamp<int64_t>(std::min({kWorkspaceBytes / window, kMostHeads / a.heads, kMostRows / context}),
                                      1, std::max<int64_t>(1, windows));
  const auto rows = [&](Buffer& buffer, int64_t width) -> Status {
    LOWBIT_TRY_ASSIGN(buffer, cuda::allocate(work.windows_ * context * width * kFloat, "workspace"));
    return {};
  };
  LOWBIT_TRY(rows(work.h_, hidden));
  LOWBIT_TRY(rows(work.q_, a.q_size()));
  LOWBIT_TRY(rows(work.attn_, a.q_size()));
  LOWBIT_TRY(rows(work.k_, a.kv_size()));
  LOWBIT_TRY(rows(work.v_, a.kv_size()));
  LOWBIT_TRY(rows(work.gate_, mlp_width));
  LOWBIT_TRY(rows(work.up_, mlp_width));
  LOWBIT_TRY_ASSIGN(work.scores_,
                    cuda::allocate(cuda::attend_workspace_bytes(work.windows_, context, a.heads), "attention scores"));
  std::vector<float> cos(static_cast<size_t>(context * a.head_dim / 2)), sin(cos.size());
  rope_table(rope_frequencies(*a.rope), 0, context, cos.data(), sin.data(), pool);
  LOWBIT_TRY_ASSIGN(work.cos_, to_device(cos, "rotations"));
  LOWBIT_TRY_ASSIGN(work.sin_, to_device(sin, "rotations"));
  return work;
}

DeviceLinear* DeviceBlock::linear(LinearRole role) {
  switch (role) {
    case LinearRole::kQuery:
      return &q_;
    case LinearRole::kKey:
      return &k_;
    case LinearRole::kValue:
      return &v_;
    case LinearRole::kOutput:
      return &o_;
    case LinearRole::kGate:
      return &gate_;
    case LinearRole::kUp:
      return &up_;
    case LinearRole::kDown:
      return &down_;
    case LinearRole::kHead:
      break;  // in no block
  }
  return nullptr;
}

Buffer* DeviceBlock::norm(InputRole role) {
  if (!reads_stream(role)) return nullptr;
  return role == InputRole::kAttention ? &input_norm_ : &post_norm_;
}

Result<DeviceBlock> DeviceBlock::load(const WeightSource& source, const ModelSpec& spec, int64_t block,
                                      ThreadPool& pool) {
  LOWBIT_TRY(check_device_block(block, spec.blocks[static_cast<size_t>(block)]));
  DeviceBlock b(spec.blocks[static_cast<size_t>(block)], spec.hidden_size);
  const auto vector = [&](const std::string& name, int64_t n) -> Result<std::vector<float>> {
    LOWBIT_TRY_ASSIGN(const QTensor w, fetch_tensor(source, name, 1, n, pool));
    std::vector<float> values(static_cast<size_t>(n));
    dequantize_rows(w, 0, 1, values.data());
    return values;
  };
  const auto not_executed = [](const TensorName& name) {
    return fail(ErrorCode::kUnsupported, std::string(name.hf), "a part of a block that is not executed yet");
  };
  const auto norm = [&](const std::optional<NormSpec>& of, Buffer* to) -> Status {
    if (!of) return {};
    if (to == nullptr) return not_executed(of->name);
    LOWBIT_TRY_ASSIGN(const std::vector<float> values, vector(weight_name(block, of->name), of->size));
    LOWBIT_TRY_ASSIGN(*to, to_device(values, "norm"));
    return {};
  };
  for (const InputSpec* input : inputs_of(b.spec_)) {
    LOWBIT_TRY(norm(input->norm, b.norm(input->role)));
    for (const LinearSpec& linear : input->readers) {
      DeviceLinear* const to = b.linear(linear.role);
      if (to == nullptr) return not_executed(linear.name);
      const std::string name = weight_name(block, linear.name);
      std::vector<float> bias;
      if (linear.bias) {
        LOWBIT_TRY_ASSIGN(bias, vector(bias_name(block, linear.name), linear.n));
      }
      LOWBIT_TRY_ASSIGN(const QTensor w, fetch_tensor(source, name, linear.n, linear.k, pool));
      LOWBIT_TRY_ASSIGN(*to, DeviceLinear::upload(name, w, linear.bias ? bias.data() : nullptr, pool));
      source.release(name);
    }
  }
  LOWBIT_TRY(norm(b.spec_.attention.q_norm, &b.q_norm_));
  LOWBIT_TRY(norm(b.spec_.attention.k_norm, &b.k_norm_));
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
  const AttentionSpec& a = spec_.attention;
  const int64_t m = windows * work.context_, half = a.head_dim / 2;
  float *h = work.h_.as<float>(), *q = work.q_.as<float>(), *k = work.k_.as<float>(), *v = work.v_.as<float>();
  float* attn = work.attn_.as<float>();
  const float *cos = work.cos_.as<float>(), *sin = work.sin_.as<float>();
  LOWBIT_TRY(cuda::norm_rows(x, input_norm_.as<float>(), m, hidden_, a.qkv.norm->eps, h, nullptr));
  LOWBIT_TRY(observe(observer, {&q_, &k_, &v_}, h, m));
  LOWBIT_TRY(q_.run(h, m, q));
  LOWBIT_TRY(k_.run(h, m, k));
  LOWBIT_TRY(v_.run(h, m, v));
  if (a.q_norm) LOWBIT_TRY(cuda::norm_rows(q, q_norm_.as<float>(), m * a.heads, a.head_dim, a.q_norm->eps, q, nullptr));
  if (a.k_norm)
    LOWBIT_TRY(cuda::norm_rows(k, k_norm_.as<float>(), m * a.kv_heads, a.head_dim, a.k_norm->eps, k, nullptr));
  LOWBIT_TRY(cuda::rotate_rows({q, cos, sin, m, a.heads, half, work.context_, nullptr}));
  LOWBIT_TRY(cuda::rotate_rows({k, cos, sin, m, a.kv_heads, half, work.context_, nullptr}));
  LOWBIT_TRY(cuda::round_to_f16(k, m * a.kv_size(), nullptr));
  LOWBIT_TRY(cuda::round_to_f16(v, m * a.kv_size(), nullptr));
  LOWBIT_TRY(cuda::attend_windows({q, k, v, attn, work.scores_.as<float>(), windows, work.context_, a.heads, a.kv_heads,
                                   a.head_dim, a.scale, nullptr}));
  LOWBIT_TRY(observe(observer, {&o_}, attn, m));
  LOWBIT_TRY(o_.run(attn, m, h));
  return cuda::add_rows(h, m * hidden_, x, nullptr);
}

Status DeviceBlock::feed_forward_part(DeviceBlockWorkspace& work, float* x, int64_t windows,
                                      const DeviceObserver& observer) const {
  const MlpSpec& mlp = spec_.mlp;
  const int64_t m = windows * work.context_, width = mlp.width, hadamard = mlp.down.hadamard;
  float *h = work.h_.as<float>(), *gate = work.gate_.as<float>(), *up = work.up_.as<float>();
  LOWBIT_TRY(cuda::norm_rows(x, post_norm_.as<float>(), m, hidden_, mlp.gate_up.norm->eps, h, nullptr));
  LOWBIT_TRY(observe(observer, {&gate_, &up_}, h, m));
  LOWBIT_TRY(gate_.run(h, m, gate));
  LOWBIT_TRY(up_.run(h, m, up));
  LOWBIT_TRY(cuda::gate_rows(gate, up, m * width, nullptr));
  if (hadamard > 0) LOWBIT_TRY(cuda::hadamard_rows(gate, m, width, hadamard, hadamard_scale(hadamard), nullptr));
  LOWBIT_TRY(observe(observer, {&down_}, gate, m));
  LOWBIT_TRY(down_.run(gate, m, h));
  return cuda::add_rows(h, m * hidden_, x, nullptr);
}

}  // namespace lowbit
