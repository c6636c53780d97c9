// The meaning of every step, one after the other: rows in, rows out, nothing fused, nothing kept. Written to be read;
// products, norms and attention are those of kernels/ref.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/backend.h"
#include "backend/hand_out_logits.h"
#include "base/try.h"
#include "kernels/registry.h"
#include "kernels/tables.h"
#include "ops/attention.h"
#include "ops/glu.h"
#include "ops/hadamard.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace lowbit {
namespace {

const VectorOps& ref_ops() { return *ref_table().vector; }

struct RefWeight final : Weight {
  std::string name;
  QTensor table;  // its rows, for an embedding
  MatmulPlan plan;
  bool multiplies = false;
  std::vector<float> bias;
  ActivationRounding rounding;

  WeightInfo info() const override {
    if (!multiplies) return {name, "", "", table.format, table.n, table.k, 0, Activation::kF32, 0};
    return {name,     plan.kernel_name(),    plan.reason(),     plan.format(),           plan.n(),
            plan.k(), plan.resident_bytes(), plan.activation(), plan.code_layout().group};
  }
};

const RefWeight& ref_weight(const Weight* w) { return static_cast<const RefWeight&>(*w); }

struct RefWorkspace final : Workspace {
  int64_t rows() const override { return most_rows; }
  int64_t bytes() const override {
    int64_t total = 0;
    for (const auto& s : slots) total += int64_t(s.size() * sizeof(float));
    return total;
  }
  Status read(Slot slot, int64_t first, int64_t rows, float* to) const override {
    std::copy_n(slots[slot].data() + first * widths[slot], rows * widths[slot], to);
    return {};
  }
  Status write(Slot slot, int64_t first, int64_t rows, const float* from) override {
    std::copy_n(from, rows * widths[slot], slots[slot].data() + first * widths[slot]);
    return {};
  }
  Status load(Slot slot, int64_t row, int64_t rows, const RowBuffer& from, int64_t at) override {
    get_rows(from, at, rows * widths[slot], slots[slot].data() + row * widths[slot]);
    return {};
  }
  Status save(Slot slot, int64_t row, int64_t rows, RowBuffer& to, int64_t at) const override {
    put_rows(slots[slot].data() + row * widths[slot], rows * widths[slot], to, at);
    return {};
  }
  void set_observer(TapObserver to) override { observer = std::move(to); }
  void set_profile(Profile* to) override { profile = to; }

  int64_t most_rows = 0;
  std::vector<int64_t> widths;
  std::vector<std::vector<float>> slots;
  TapObserver observer;
  Profile* profile = nullptr;
  ThreadPool* pool = nullptr;
};

/// One run: the steps, in words.
class RefRun {
 public:
  RefRun(RefWorkspace& work, const Batch& batch, bool taps)
      : work_(work), batch_(batch), taps_(taps), m_(batch.rows()) {}

  int64_t rows() const { return m_; }

  /// The step's input alone.
  Status show(const Step& step) {
    const auto* linear = std::get_if<LinearStep>(&step);
    const auto* glu = std::get_if<GluStep>(&step);
    if (linear == nullptr && glu == nullptr)
      return fail(ErrorCode::kInvalidArgument, "show", "a step without an input", "one with a tap");
    LOWBIT_TRY(linear != nullptr ? input(linear->in, linear->out.front().weight) : input(glu->in, glu->gate));
    return {};
  }

  Status operator()(const EmbedStep& step) {
    const QTensor& table = ref_weight(step.table).table;
    for (int64_t r = 0; r < m_; ++r) dequantize_rows(table, batch_.tokens[size_t(r)], 1, rows(step.to) + r * table.k);
    return {};
  }

  Status operator()(const LinearStep& step) {
    LOWBIT_TRY_ASSIGN(const Input x, input(step.in, step.out.front().weight));
    const bool own = std::ranges::any_of(step.out, [](const Product& p) { return p.norm != nullptr; });
    for (const Product& p : step.out) {
      LOWBIT_TRY_ASSIGN(std::vector<float> y, product(p.weight, x, own, p.norm));
      if (p.to == kLogits) {
        hand_out_logits(batch_.wanted, 0, m_, y.data(), ref_weight(p.weight).plan.n(), *work_.pool);
        return {};
      }
      float* const to = rows(p.to);
      for (size_t i = 0; i < y.size(); ++i) to[i] = p.add ? to[i] + y[i] : y[i];
    }
    return {};
  }

  Status operator()(const GluStep& step) {
    LOWBIT_TRY_ASSIGN(const Input x, input(step.in, step.gate));
    const bool own = step.gate_norm != nullptr || step.up_norm != nullptr;
    LOWBIT_TRY_ASSIGN(const std::vector<float> gate, product(step.gate, x, own, step.gate_norm));
    LOWBIT_TRY_ASSIGN(const std::vector<float> up, product(step.up, x, own, step.up_norm));
    glu_function(ref_ops(), step.glu)(gate.data(), up.data(), int64_t(gate.size()), rows(step.to));
    return {};
  }

  Status operator()(const AttentionStep& step) {
    const AttentionSpec& a = *step.spec;
    norm_heads(step.q_norm, step.q, a.heads, a.head_dim);
    norm_heads(step.k_norm, step.k, a.kv_heads, a.head_dim);
    const auto frequencies = rope_frequencies(*a.rope);
    const int64_t half = a.rope->dims / 2;
    LOWBIT_TRY_ASSIGN(Attention attention,
                      Attention::make(ref_ops(), {a.heads, a.kv_heads, a.head_dim, a.scale}, *work_.pool));
    for (const SequenceRows& s : batch_.sequences) {
      std::vector<float> cos(size_t(s.rows * half)), sin(cos.size());
      rope_table(frequencies, s.position, s.rows, cos.data(), sin.data(), *work_.pool);
      float *q = rows(step.q) + s.row * a.q_size(), *k = rows(step.k) + s.row * a.kv_size();
      float *v = rows(step.v) + s.row * a.kv_size(), *out = rows(step.to) + s.row * a.q_size();
      rope_rows(ref_ops(), q, a.q_size(), s.rows, a.heads, half, cos.data(), sin.data(), *work_.pool);
      rope_rows(ref_ops(), k, a.kv_size(), s.rows, a.kv_heads, half, cos.data(), sin.data(), *work_.pool);
      if (s.cache->group_of(step.layer).format.packed()) {
        ref_ops().hadamard(q, s.rows * a.q_size(), hadamard_block(a.head_dim));
        ref_ops().hadamard(k, s.rows * a.kv_size(), hadamard_block(a.head_dim));
        ref_ops().hadamard(v, s.rows * a.kv_size(), hadamard_block(a.head_dim));
      }
      s.cache->store(ref_ops(), step.layer, s.position, s.rows, k, v, a.kv_size(), *work_.pool);
      s.cache->pack(step.layer, s.rows, *work_.pool);
      LOWBIT_TRY(attention.reserve(s.position + s.rows));
      attention.run({step.layer, s.position, s.rows, q, out, a.window}, *s.cache);
      if (s.cache->group_of(step.layer).format.packed())
        ref_ops().hadamard(out, s.rows * a.q_size(), hadamard_block(a.head_dim));
    }
    return {};
  }

  Status operator()(const GatherStep& step) {
    const int64_t width = work_.widths[step.slot];
    m_ = 0;
    for (const WantedRows& w : batch_.wanted)
      for (int64_t r = w.row; r < w.row + w.rows; ++r)
        std::copy_n(rows(step.slot) + r * width, width, rows(step.slot) + m_++ * width);
    return {};
  }

 private:
  float* rows(Slot slot) { return work_.slots[slot].data(); }

  /// Rows that products read: normed, transformed, shown to an observer; and, where a norm is all that was done to
  /// them, what they were before it.
  struct Input {
    std::vector<float> x, before;
    const Norm* norm = nullptr;
  };
  Result<Input> input(const StepInput& in, const Weight* reader) {
    const int64_t k = ref_weight(reader).plan.k();
    std::vector<float> x(rows(in.from), rows(in.from) + m_ * k);
    Input input;
    if (in.norm != nullptr && in.hadamard == 0) input.before = x, input.norm = in.norm;
    for (int64_t r = 0; r < m_ && in.norm != nullptr; ++r)
      ref_ops().rms_norm(x.data() + r * k, in.norm->weight.data(), k, in.norm->eps, x.data() + r * k);
    for (int64_t r = 0; r < m_ && in.hadamard > 0; ++r) ref_ops().hadamard(x.data() + r * k, k, in.hadamard);
    if (taps_ && in.tap >= 0 && work_.observer) LOWBIT_TRY(work_.observer(in.tap, x.data(), m_, k));
    input.x = std::move(x);
    return input;
  }

  std::vector<float> normed(std::vector<float> x, const Norm* norm) const {
    const int64_t k = norm == nullptr ? 0 : int64_t(norm->weight.size());
    for (int64_t r = 0; r < m_ && norm != nullptr; ++r)
      ref_ops().rms_norm(x.data() + r * k, norm->weight.data(), k, norm->eps, x.data() + r * k);
    return x;
  }

  /// `own`: norms of single layers stand between, of which this layer's is `norm`, or null.
  Result<std::vector<float>> product(const Weight* weight, const Input& in, bool own, const Norm* norm) {
    const RefWeight& w = ref_weight(weight);
    const int64_t k = w.plan.k();
    std::vector<float> y(size_t(m_ * w.plan.n()));
    ActivationRows prepared;
    prepared.set_rounding(w.rounding);
    const std::vector<float> x = normed(in.x, norm);
    if (in.norm != nullptr && !own && w.plan.activation() == Activation::kInt8) {
      LOWBIT_TRY(prepared.prepare_normed(in.before.data(), in.norm->weight.data(), in.norm->eps, m_, k, k, Isa::kScalar,
                                         *work_.pool));
    } else {
      LOWBIT_TRY(prepared.prepare(w.plan.activation(), x.data(), m_, k, k, Isa::kScalar, *work_.pool));
    }
    LOWBIT_TRY(w.plan.run(prepared, w.bias.empty() ? nullptr : w.bias.data(), y.data(), w.plan.n(), *work_.pool));
    return y;
  }

  void norm_heads(const Norm* norm, Slot slot, int64_t heads, int64_t head_dim) {
    if (norm == nullptr) return;
    for (int64_t i = 0; i < m_ * heads; ++i) {
      float* const head = rows(slot) + i * head_dim;
      ref_ops().rms_norm(head, norm->weight.data(), head_dim, norm->eps, head);
    }
  }

  RefWorkspace& work_;
  const Batch& batch_;
  const bool taps_;
  int64_t m_;
};

class RefProgram final : public Program {
 public:
  RefProgram(std::span<const Step> steps, bool taps) : steps_(steps.begin(), steps.end()), taps_(taps) {}
  int steps() const override { return static_cast<int>(steps_.size()); }
  Status run(Workspace& workspace, const Batch& batch, int first, int last) const override {
    RefRun run(static_cast<RefWorkspace&>(workspace), batch, taps_);
    for (int i = first; i < last && run.rows() > 0; ++i) LOWBIT_TRY(std::visit(run, steps_[size_t(i)]));
    return {};
  }
  Status show(Workspace& workspace, const Batch& batch, int step) const override {
    return RefRun(static_cast<RefWorkspace&>(workspace), batch, taps_).show(steps_[size_t(step)]);
  }

 private:
  std::vector<Step> steps_;
  bool taps_;
};

/// One number after the other, in chains of kHessianChunk rows.
class RefHessianSum final : public HessianSum {
 public:
  RefHessianSum(int64_t k, int64_t n) : k_(k), n_(n) {}

  Status add(const float* x, const float* y, const float* z, int64_t m) override {
    x_.insert(x_.end(), x, x + m * k_);
    if (n_ == 0) return {};
    y_.insert(y_.end(), y, y + m * n_);
    z_.insert(z_.end(), z, z + m * n_);
    return {};
  }

  Result<InputHessian> finish(const std::string& name) override {
    if (x_.empty()) return no_inputs(name);
    for (size_t i = 0; i < x_.size(); ++i)
      if (!std::isfinite(x_[i])) return not_finite(name, int64_t(i) % k_, false);
    std::vector<float> difference(y_.size());
    for (size_t i = 0; i < y_.size(); ++i) {
      if (!std::isfinite(y_[i]) || !std::isfinite(z_[i])) return not_finite(name, int64_t(i) % n_, true);
      difference[i] = y_[i] - z_[i];
    }
    InputHessian hessian{k_, mean_of(x_, k_), {}, {}};
    if (n_ > 0) hessian.mismatch = mean_of(difference, n_);
    return hessian;
  }

 private:
  /// The mean of left_i x_j over all rows left [n].
  std::vector<float> mean_of(const std::vector<float>& left, int64_t n) const {
    const int64_t rows = int64_t(x_.size()) / k_;
    std::vector<float> mean(size_t(n * k_));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < k_; ++j) {
        double sum = 0;
        for (int64_t first = 0; first < rows; first += kHessianChunk) {
          float part = 0;
          for (int64_t r = first; r < std::min(first + kHessianChunk, rows); ++r)
            part = std::fma(left[size_t(r * n + i)], x_[size_t(r * k_ + j)], part);
          sum += double(part);
        }
        mean[size_t(i * k_ + j)] = float(sum * (1.0 / double(rows)));
      }
    return mean;
  }

  int64_t k_, n_;
  std::vector<float> x_, y_, z_;
};

class RefBackend final : public HostBackend {
 public:
  explicit RefBackend(ThreadPool& pool) : pool_(&pool) {}
  const char* name() const override { return "ref"; }

  Result<std::unique_ptr<Weight>> prepare(const std::string& name, const QTensor& w, std::vector<float> bias,
                                          const XSpec& x, WeightUse use) override {
    auto weight = std::make_unique<RefWeight>();
    weight->name = name;
    weight->bias = std::move(bias);
    weight->rounding = x.rounding;
    weight->multiplies = use != WeightUse::kRows;
    if (use != WeightUse::kProducts) weight->table = w;
    if (weight->multiplies) {
      MatmulOptions options = host_options(x);
      options.reference = true;
      LOWBIT_TRY_ASSIGN(weight->plan, MatmulPlan::make(w, options, *pool_));
    }
    return std::unique_ptr<Weight>(std::move(weight));
  }

  Result<std::unique_ptr<Program>> compile(std::span<const Step> steps, const CompileOptions& options) override {
    for (const Step& step : steps)
      if (const auto* glu = std::get_if<GluStep>(&step); glu != nullptr && glu_function(ref_ops(), glu->glu) == nullptr)
        return fail(ErrorCode::kUnsupported, "ref", fmt::format("a gated product by {}", glu_name(glu->glu)),
                    kGluNames);
    return std::unique_ptr<Program>(std::make_unique<RefProgram>(steps, options.taps));
  }

  Result<std::unique_ptr<Workspace>> workspace(std::span<const Step>, const Limits& limits) override {
    auto work = std::make_unique<RefWorkspace>();
    work->most_rows = limits.rows;
    work->widths.assign(limits.widths.begin(), limits.widths.end());
    for (const int64_t width : limits.widths) work->slots.emplace_back(size_t(limits.rows * width));
    work->pool = pool_;
    return std::unique_ptr<Workspace>(std::move(work));
  }

  Result<std::unique_ptr<HessianSum>> hessian_sum(int64_t k, int64_t n) override {
    return std::unique_ptr<HessianSum>(std::make_unique<RefHessianSum>(k, n));
  }

 private:
  ThreadPool* pool_;
};

}  // namespace

std::unique_ptr<Backend> make_ref_backend(ThreadPool& pool) { return std::make_unique<RefBackend>(pool); }

}  // namespace lowbit
