#include "model/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/try.h"
#include "io/lost_pages.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/rope_append.h"

namespace lowbit {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

}  // namespace

int64_t Transformer::Workspace::bytes() const {
  int64_t total = 0;
  for (const Buffer* b : {&x, &h, &q, &attn, &k, &v, &gate, &up, &cos, &sin}) total += b->size();
  return total;
}

Status Transformer::allocate_workspace(int64_t batch_limit) {
  const ModelConfig& c = config_;
  const int64_t row_elems = 2 * c.hidden_size + 2 * c.q_size() + 2 * c.kv_size() + 2 * c.intermediate_size + c.head_dim;
  const int64_t affordable = std::max<int64_t>(16, kWorkspaceBytes / (row_elems * int64_t(sizeof(float))));
  batch_ = std::max<int64_t>(1, std::min({batch_limit, affordable, context_}));
  const auto rows = [&](Buffer& buffer, int64_t width) -> Status {
    LOWBIT_TRY_ASSIGN(buffer, Buffer::allocate(batch_ * width * int64_t(sizeof(float)), "workspace", Pages::kLarge));
    return {};
  };
  LOWBIT_TRY(rows(work_.x, c.hidden_size));
  LOWBIT_TRY(rows(work_.h, c.hidden_size));
  LOWBIT_TRY(rows(work_.q, c.q_size()));
  LOWBIT_TRY(rows(work_.attn, c.q_size()));
  LOWBIT_TRY(rows(work_.k, c.kv_size()));
  LOWBIT_TRY(rows(work_.v, c.kv_size()));
  LOWBIT_TRY(rows(work_.gate, c.intermediate_size));
  LOWBIT_TRY(rows(work_.up, c.intermediate_size));
  LOWBIT_TRY(rows(work_.cos, c.head_dim / 2));
  LOWBIT_TRY(rows(work_.sin, c.head_dim / 2));
  const AttentionShape shape{c.heads, c.kv_heads, c.head_dim, float(1.0 / std::sqrt(double(c.head_dim)))};
  LOWBIT_TRY_ASSIGN(attention_, Attention::make(*ops_, shape, *pool_));
  LOWBIT_TRY(attention_.reserve(context_));  // decoding allocates nothing
  return {};
}

Result<KvCache> Transformer::make_cache() const { return KvCache::make(kv_shape(), context_); }

int64_t Transformer::resident_bytes() const {
  int64_t total = embedding_.total_bytes() + work_.bytes() + attention_.bytes();
  for (const LinearInfo& info : linears()) total += info.resident_bytes;
  return total;
}

std::vector<LinearInfo> Transformer::linears() const {
  std::vector<LinearInfo> all;
  const auto append = [&](const Linear& l) {
    all.push_back({l.name, l.plan.kernel_name(), l.plan.reason(), l.plan.format(), l.plan.n(), l.plan.k(),
                   l.plan.resident_bytes(), l.plan.activation(), l.plan.code_layout().group});
  };
  for (const Layer& layer : layers_)
    for (const Linear* l : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) append(*l);
  append(head_);
  return all;
}

Status Transformer::check_call(std::span<const int32_t> tokens, const KvCache& cache, const LogitsWanted& wanted,
                               std::span<float> logits) const {
  const int64_t n = int64_t(tokens.size());
  if (n == 0) return fail(ErrorCode::kInvalidArgument, "forward", "no tokens", "at least one");
  for (int32_t token : tokens)
    if (token < 0 || token >= config_.vocab_size)
      return fail(ErrorCode::kInvalidArgument, "forward", fmt::format("token id {}", token),
                  fmt::format("0..{}", config_.vocab_size - 1), "does the tokenizer belong to this model?");
  const KvShape want = kv_shape(), got = cache.shape();
  if (got.layers != want.layers || got.kv_heads != want.kv_heads || got.head_dim != want.head_dim)
    return fail(ErrorCode::kShapeMismatch, "forward kv cache",
                fmt::format("{} layers, {} heads of {}", got.layers, got.kv_heads, got.head_dim),
                fmt::format("{} layers, {} heads of {}", want.layers, want.kv_heads, want.head_dim));
  if (n > context_ - cache.length())
    return fail(ErrorCode::kInvalidArgument, "forward", fmt::format("{} + {} positions", cache.length(), n),
                fmt::format("at most {}", context_), "shorten the text or ask for a larger context (-c)");
  int64_t rows = wanted.kind == LogitsWanted::Kind::kLast ? 1 : 0;
  if (wanted.kind == LogitsWanted::Kind::kRange) {
    rows = wanted.count;
    if (wanted.first < 0 || rows < 0 || wanted.first > n || rows > n - wanted.first)
      return fail(ErrorCode::kInvalidArgument, "forward logits range",
                  fmt::format("{} rows from {}", rows, wanted.first), fmt::format("inside the {} tokens", n));
  }
  if (int64_t(logits.size()) < rows * config_.vocab_size)
    return fail(ErrorCode::kInvalidArgument, "forward logits", fmt::format("room for {} floats", logits.size()),
                fmt::format("{} x {}", rows, config_.vocab_size));
  return {};
}

Status Transformer::forward(std::span<const int32_t> tokens, KvCache& cache, LogitsWanted wanted,
                            std::span<float> logits) {
  LOWBIT_TRY(check_call(tokens, cache, wanted, logits));
  const int64_t n = int64_t(tokens.size()), start = cache.length();
  int64_t want_begin = n, want_end = n;
  if (wanted.kind == LogitsWanted::Kind::kLast) want_begin = n - 1;
  if (wanted.kind == LogitsWanted::Kind::kRange) {
    want_begin = wanted.first;
    want_end = wanted.first + wanted.count;
  }
  LOWBIT_TRY(attention_.reserve(start + n));
  LOWBIT_TRY(cache.reserve(n));
  for (int64_t done = 0; done < n; done += batch_) {
    const int64_t m = std::min(batch_, n - done);
    const int64_t first = std::clamp<int64_t>(want_begin - done, 0, m);
    const int64_t last = std::clamp<int64_t>(want_end - done, first, m);
    float* out = last > first ? logits.data() + (done + first - want_begin) * config_.vocab_size : nullptr;
    auto status = run_batch(tokens.subspan(size_t(done), size_t(m)), start + done, cache, first, last - first, out);
    if (!status) {
      LOWBIT_TRY(cache.truncate(start));
      return status;
    }
    cache.commit(m);
  }
  return {};
}

const char* model_step_name(ModelStep step) {
  static constexpr std::array<const char*, static_cast<size_t>(ModelStep::kCount)> kNames = {
      "embed", "norm", "qkv", "rotate", "attention", "output", "gate_up", "down", "add", "head"};
  return kNames[static_cast<size_t>(step)];
}

StepTimer Transformer::time_linears(ModelStep step, int64_t m, std::initializer_list<const Linear*> linears) const {
  double bytes = 0, operations = 0;
  if (profile_ != nullptr)
    for (const Linear* l : linears) {
      bytes += double(l->plan.resident_bytes());
      operations += 2.0 * double(m) * double(l->plan.n()) * double(l->plan.k());
    }
  return {profile_, step, bytes, operations};
}

void Transformer::embed(std::span<const int32_t> tokens) {
  const int64_t hidden = config_.hidden_size;
  float* x = work_.x.as<float>();
  pool_->parallel_for(int64_t(tokens.size()), 32, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) dequantize_rows(embedding_, tokens[size_t(r)], 1, x + r * hidden);
  });
}

void Transformer::add_rows(const float* h, int64_t m, float* x) {
  const StepTimer timer(profile_, ModelStep::kAdd);
  const int64_t hidden = config_.hidden_size;
  pool_->parallel_for(m, std::max<int64_t>(1, 32768 / hidden), [&](int64_t begin, int64_t end, int) {
    ops_->add(h + begin * hidden, (end - begin) * hidden, x + begin * hidden);
  });
}

Status Transformer::attention_part(const Layer& layer, int64_t index, int64_t m, int64_t position, KvCache& cache) {
  const ModelConfig& c = config_;
  const int64_t q_size = c.q_size(), kv_size = c.kv_size(), d = c.head_dim;
  float *x = work_.x.as<float>(), *h = work_.h.as<float>(), *q = work_.q.as<float>(), *k = work_.k.as<float>();
  float *v = work_.v.as<float>(), *attn = work_.attn.as<float>();
  const float *cos = work_.cos.as<float>(), *sin = work_.sin.as<float>();
  {
    const StepTimer timer(profile_, ModelStep::kNorm);
    const std::array<const Linear*, 3> readers = {&layer.q, &layer.k, &layer.v};
    LOWBIT_TRY(input_->set_normed({x, layer.input_norm.data(), c.rms_eps, m, c.hidden_size}, readers, h));
  }
  if (stop_at_ == 0) return input_->show(layer.q);
  {
    const StepTimer timer = time_linears(ModelStep::kQkv, m, {&layer.q, &layer.k, &layer.v});
    const std::array<LinearCall, 3> calls = {{{&layer.q, q, q_size}, {&layer.k, k, kv_size}, {&layer.v, v, kv_size}}};
    LOWBIT_TRY(input_->run(calls, {&layer.o}));
  }
  {
    const StepTimer timer(profile_, ModelStep::kRotate);
    if (c.qk_norm) {
      rms_norm_rows(*ops_, q, d, layer.q_norm.data(), m * c.heads, d, c.rms_eps, q, d, *pool_);
      rms_norm_rows(*ops_, k, d, layer.k_norm.data(), m * c.kv_heads, d, c.rms_eps, k, d, *pool_);
    }
    rotate_and_store(*ops_, {index, position, m, c.heads, q, k, v, cos, sin}, cache, *pool_);
  }
  {
    const double seen = double(m) * (double(position) + 0.5 * double(m + 1));  // pairs of query and position
    const StepTimer timer(profile_, ModelStep::kAttention, 4.0 * double(kv_size) * double(position + m),
                          4.0 * seen * double(q_size));
    attention_.run({index, position, m, q, attn}, cache, input_->read_ahead({&layer.o}));
  }
  {
    const StepTimer timer = time_linears(ModelStep::kOutput, m, {&layer.o});
    input_->set(attn, m, q_size);
    if (stop_at_ == 1) return input_->show(layer.o);
    LOWBIT_TRY(input_->run(layer.o, h, c.hidden_size, {&layer.gate, &layer.up}));
  }
  add_rows(h, m, x);
  return {};
}

Status Transformer::feed_forward_part(const Layer& layer, const Layer* next, int64_t m) {
  const ModelConfig& c = config_;
  const int64_t width = c.intermediate_size;
  float *x = work_.x.as<float>(), *h = work_.h.as<float>(), *gate = work_.gate.as<float>();
  float* up = work_.up.as<float>();
  {
    const StepTimer timer(profile_, ModelStep::kNorm);
    const std::array<const Linear*, 2> readers = {&layer.gate, &layer.up};
    LOWBIT_TRY(input_->set_normed({x, layer.post_norm.data(), c.rms_eps, m, c.hidden_size}, readers, h));
  }
  if (stop_at_ == 2) return input_->show(layer.gate);
  switch (c.hidden_act) {
    case HiddenAct::kSilu: {
      const StepTimer timer = time_linears(ModelStep::kGateUp, m, {&layer.gate, &layer.up});
      LOWBIT_TRY(input_->run_gated({&layer.gate, gate, width}, {&layer.up, up, width}, layer.down, c.down_hadamard));
    }
  }
  if (stop_at_ == 3) return input_->show(layer.down);
  {
    const StepTimer timer = time_linears(ModelStep::kDown, m, {&layer.down});
    LOWBIT_TRY(next == nullptr ? input_->run(layer.down, h, c.hidden_size, {&head_})
                               : input_->run(layer.down, h, c.hidden_size, {&next->q, &next->k, &next->v}));
  }
  add_rows(h, m, x);
  return {};
}

Status Transformer::run_batch(std::span<const int32_t> tokens, int64_t position, KvCache& cache, int64_t first,
                              int64_t count, float* logits) {
  const int64_t m = int64_t(tokens.size());
  {
    const StepTimer timer(profile_, ModelStep::kEmbed);
    embed(tokens);
    LOWBIT_TRY(check_pages(embedding_.codes.data(), "model.embed_tokens.weight"));
    rope_table(frequencies_, position, m, work_.cos.as<float>(), work_.sin.as<float>(), *pool_);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    LOWBIT_TRY(attention_part(layers_[i], int64_t(i), m, position, cache));
    LOWBIT_TRY(feed_forward_part(layers_[i], i + 1 < layers_.size() ? &layers_[i + 1] : nullptr, m));
  }
  if (count == 0) return {};
  input_->set_rounding({});
  const Status done = run_head(first, count, logits);
  input_->set_rounding(rounding_);
  return done;
}

Status Transformer::run_head(int64_t first, int64_t count, float* logits) {
  const int64_t hidden = config_.hidden_size;
  {
    const StepTimer timer(profile_, ModelStep::kNorm);
    const std::array<const Linear*, 1> readers = {&head_};
    LOWBIT_TRY(
        input_->set_normed({work_.x.as<float>() + first * hidden, final_norm_.data(), config_.rms_eps, count, hidden},
                           readers, work_.h.as<float>()));
  }
  const StepTimer timer = time_linears(ModelStep::kHead, count, {&head_});
  const Layer& first_layer = layers_.front();  // of the next token
  return input_->run(head_, logits, config_.vocab_size, {&first_layer.q, &first_layer.k, &first_layer.v});
}

Status Transformer::run_block(std::span<float> x, KvCache& cache, int stop_at) {
  const int64_t hidden = config_.hidden_size, n = int64_t(x.size()) / hidden;
  if (layers_.size() != 1 || n * hidden != int64_t(x.size()) || n < 1 || n > context_)
    return fail(ErrorCode::kInvalidArgument, "run_block", fmt::format("{} floats", x.size()),
                fmt::format("1 to {} rows of {}, and a model of one block", context_, hidden));
  LOWBIT_TRY(cache.truncate(0));
  LOWBIT_TRY(attention_.reserve(n));
  LOWBIT_TRY(cache.reserve(n));
  stop_at_ = stop_at;
  for (int64_t done = 0; done < n; done += batch_) {
    const int64_t m = std::min(batch_, n - done);
    const auto rows = x.subspan(size_t(done * hidden), size_t(m * hidden));
    std::copy(rows.begin(), rows.end(), work_.x.as<float>());
    rope_table(frequencies_, done, m, work_.cos.as<float>(), work_.sin.as<float>(), *pool_);
    LOWBIT_TRY(attention_part(layers_[0], 0, m, done, cache));
    if (stop_at > 1) LOWBIT_TRY(feed_forward_part(layers_[0], nullptr, m));
    std::copy_n(work_.x.as<float>(), m * hidden, rows.begin());
    cache.commit(m);
  }
  return {};
}

}  // namespace lowbit
