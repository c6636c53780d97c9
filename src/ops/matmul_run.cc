// Running plans: what a kernel reads is put together per call, and chunks of panels go to the pool's threads.

#include <algorithm>
#include <array>
#include <bit>

#include "base/checked.h"
#include "base/try.h"
#include "ops/matmul.h"

namespace lowbit {
namespace {

/// Rows of x per pass over the weights, so that they stay in the second-level cache: a multiple of every tile's height.
int64_t rows_per_pass(const Blocking& b, int64_t row_bytes) {
  return std::max(b.row_multiple, b.cache_bytes / std::max<int64_t>(row_bytes, 1) / b.row_multiple * b.row_multiple);
}

/// Panels of `bytes` each that make a chunk: so many that a small matrix is not split further than it pays (the more
/// tokens, the more work in each byte), and else a number per thread, so that a thread that loses its core costs
/// little.
int64_t panels_per_chunk(const Blocking& b, int64_t panels, int64_t bytes, int64_t m, int threads) {
  const int64_t least = std::max<int64_t>(1, b.least_chunk_bytes / (std::max<int64_t>(bytes, 1) * m));
  return std::max(least, panels / (b.chunks_per_thread * int64_t{threads}));
}

constexpr size_t kMostCalls = 4;  // that read the same rows: q, k, v

}  // namespace

/// Calls on the same rows, ready for the kernels.
class MatmulBatch {
 public:
  Status prepare(std::span<const MatmulCall> calls, ActivationRows& x, const Blocking& blocking, ThreadPool& pool) {
    blocking_ = blocking;
    if (calls.size() > kMostCalls)
      return fail(ErrorCode::kInvalidArgument, "matmul", std::to_string(calls.size()) + " products of the same rows",
                  "at most " + std::to_string(kMostCalls));
    m_ = x.m();
    for (const MatmulCall& call : calls) LOWBIT_TRY(add(call, x, pool));
    LOWBIT_TRY_ASSIGN(scratch_, x.scratch(scratch_bytes_, pool.size()));
    return {};
  }

  int64_t rows() const { return m_; }
  int64_t pass() const { return pass_; }
  int64_t panels(size_t i) const { return parts_[i].panels; }
  int64_t panel_rows(size_t i) const { return parts_[i].plan->kernel_->panel_rows; }
  int64_t panel_bytes(size_t i) const { return parts_[i].plan->panel_bytes_; }

  /// Panels [begin, end) of call i, rows [m0, m0 + m) of x.
  void run(size_t i, int64_t begin, int64_t end, int64_t m0, int64_t m, int worker) const {
    const Part& part = parts_[i];
    const PanelShape& shape = part.plan->shape_;
    MatmulArgs a = part.args;
    a.m = m;
    if (a.xq != nullptr) a.xq += m0 * a.ldxq;
    if (a.x_group_scale != nullptr) a.x_group_scale += m0 * shape.x_groups;
    if (a.x_scale != nullptr) a.x_scale += m0;
    if (a.x != nullptr) a.x += m0 * a.ldx;
    if (a.x_sums != nullptr) a.x_sums += m0 * shape.groups;
    if (a.code_sums != nullptr) a.code_sums += m0 * shape.x_groups;
    a.y += m0 * a.ldy;
    a.n0 = begin * panel_rows(i);
    a.n1 = std::min(end * panel_rows(i), part.plan->n_);
    a.scratch = scratch_ + worker * scratch_bytes_;
    part.plan->kernel_->run(a);
  }

 private:
  struct Part {
    const MatmulPlan* plan = nullptr;
    MatmulArgs args;
    int64_t panels = 0;
  };

  Status add(const MatmulCall& call, ActivationRows& x, ThreadPool& pool) {
    const MatmulPlan& plan = *call.plan;
    const bool int8 = plan.activation_ == Activation::kInt8;
    if (x.kind() != plan.activation_)
      return fail(ErrorCode::kShapeMismatch, "matmul x", std::string(activation_name(x.kind())) + " activations",
                  activation_name(plan.activation_));
    if (x.k() != plan.k_)
      return fail(ErrorCode::kShapeMismatch, "matmul x", std::to_string(x.k()) + " columns", std::to_string(plan.k_),
                  "was the checkpoint converted for another model?");
    Part& part = parts_[count_++];
    part.plan = &plan;
    part.panels = ceil_div(plan.n_, plan.kernel_->panel_rows);
    if (m_ == 0 || plan.n_ == 0) return {};
    MatmulArgs& a = part.args;
    a.w = plan.panels_.as<uint8_t>();
    a.table = plan.codebook_.empty() ? nullptr : plan.codebook_.data();
    a.table_int8 = plan.table_int8_.empty() ? nullptr : plan.table_int8_.data();
    a.shape = plan.shape_;
    a.n = plan.n_;
    a.bias = call.bias;
    a.y = call.y;
    a.ldy = call.ldy;
    a.x = int8 ? nullptr : x.x_;
    a.ldx = x.ldx_;
    if (plan.activation_ == Activation::kFp8) {
      const bool pairs = plan.kernel_->pairs;
      LOWBIT_TRY_ASSIGN(const ActivationRows::Fp8Rows* const rows, x.fp8_rows(plan.activation_group_, pairs, pool));
      a.x = rows->values.as<float>();
      a.ldx = rows->ld;
      a.x_group_scale = rows->scales.as<float>();
    }
    const CodeLayout layout = plan.code_layout();
    if (plan.shape_.offsets) {
      LOWBIT_TRY_ASSIGN(a.x_sums, x.sums(plan.shape_.group, plan.shape_.k, layout, pool));
    }
    if (plan.kernel_->code_offset != 0) {
      LOWBIT_TRY_ASSIGN(a.code_sums,
                        x.code_sums(plan.shape_.x_group, plan.shape_.k, layout, plan.kernel_->code_offset, pool));
    }
    if (int8) {
      LOWBIT_TRY_ASSIGN(const ActivationRows::Codes* const codes, x.codes(layout, pool));
      a.xq = codes->values.as<int8_t>();
      a.ldxq = codes->ld;
      (layout.group > 0 ? a.x_group_scale : a.x_scale) = codes->scales.as<float>();
    }
    const int64_t pass = rows_per_pass(blocking_, int8 ? a.ldxq : 4 * std::min(a.ldx, plan.k_));
    pass_ = pass_ == 0 ? pass : std::min(pass_, pass);
    const int64_t scratch = round_up(plan.kernel_->scratch_bytes(std::min(pass, m_), plan.shape_), 64);
    scratch_bytes_ = std::max(scratch_bytes_, scratch);
    return {};
  }

  std::array<Part, kMostCalls> parts_;
  size_t count_ = 0;
  int64_t m_ = 0, pass_ = 0, scratch_bytes_ = 0;
  uint8_t* scratch_ = nullptr;
  Blocking blocking_;
};

namespace {

// All that a loop's threads read is in one object, which the pool fetches for them as a whole.

struct ProductLoop {
  MatmulBatch batch;
  size_t calls = 0;
  std::array<int64_t, kMostCalls + 1> first = {};  // panel of the batch at which a call starts
  int64_t m0 = 0, m = 0;                           // tokens

  void operator()(int64_t begin, int64_t end, int worker) const {
    for (size_t i = 0; i < calls; ++i) {
      const int64_t b = std::max(begin, first[i]), e = std::min(end, first[i + 1]);
      if (b < e) batch.run(i, b - first[i], e - first[i], m0, m, worker);
    }
  }
};

Status run_batch(std::span<const MatmulCall> calls, ActivationRows& x, const Blocking& blocking, ThreadPool& pool,
                 const ReadAhead& next) {
  ProductLoop loop;
  const MatmulBatch& batch = loop.batch;
  LOWBIT_TRY(loop.batch.prepare(calls, x, blocking, pool));
  loop.calls = calls.size();
  int64_t bytes = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    loop.first[i + 1] = loop.first[i] + batch.panels(i);
    bytes += batch.panels(i) * batch.panel_bytes(i);
  }
  const int64_t total = loop.first[calls.size()];
  if (batch.pass() == 0 || total == 0) return {};
  for (loop.m0 = 0; loop.m0 < batch.rows(); loop.m0 += batch.pass()) {
    loop.m = std::min(batch.pass(), batch.rows() - loop.m0);
    pool.parallel_for(total, panels_per_chunk(blocking, total, bytes / total, loop.m, pool.size()), loop, next);
  }
  return {};
}

struct Gated {
  const MatmulCall &gate, &up;
  GluFunction glu;
  ActivationRows* next_rows;
  ReadAhead next;
};

struct GatedLoop {
  static constexpr int64_t kColumns = 64;  // a multiple of both panels
  static constexpr int64_t kOutputsAtOnce =
      32768;  // of each product, before the gate: they stay in the second-level cache

  explicit GatedLoop(const Gated& g)
      : gate(g.gate.y),
        up(g.up.y),
        ld_gate(g.gate.ldy),
        ld_up(g.up.ldy),
        n(g.gate.plan->n()),
        columns(g.next_rows == nullptr ? kColumns : std::max(kColumns, g.next_rows->expected_group())),
        glu(g.glu),
        next_rows(g.next_rows) {}

  MatmulBatch batch;
  float* gate;
  const float* up;
  int64_t ld_gate, ld_up, n;
  int64_t columns;  // chunks start at multiples of them: of both panels, and of the groups of x that the next rows have
  GluFunction glu;
  ActivationRows* next_rows;
  int64_t m0 = 0, m = 0;  // tokens

  void operator()(int64_t begin, int64_t end, int worker) const {
    const int64_t at_once = std::max<int64_t>(1, kOutputsAtOnce / (m * columns));
    for (; begin < end; begin += at_once) {
      const int64_t n0 = begin * columns, n1 = std::min(std::min(end, begin + at_once) * columns, n);
      for (size_t i = 0; i < 2; ++i)
        batch.run(i, n0 / batch.panel_rows(i), ceil_div(n1, batch.panel_rows(i)), m0, m, worker);
      for (int64_t r = m0; r < m0 + m; ++r) {
        float* y = gate + r * ld_gate + n0;
        glu(y, up + r * ld_up + n0, n1 - n0, y);
        if (next_rows != nullptr) next_rows->write_codes(r, n0, n1 - n0, y);
      }
    }
  }
};

Status run_gated_batch(const Gated& g, ActivationRows& x, const Blocking& blocking, ThreadPool& pool) {
  const std::array<MatmulCall, 2> calls = {g.gate, g.up};
  GatedLoop loop(g);
  const MatmulBatch& batch = loop.batch;
  LOWBIT_TRY(loop.batch.prepare(calls, x, blocking, pool));
  if (batch.pass() == 0) return {};
  const int64_t blocks = ceil_div(loop.n, loop.columns);
  const int64_t block_bytes = (batch.panel_bytes(0) * loop.columns) / batch.panel_rows(0) +
                              (batch.panel_bytes(1) * loop.columns) / batch.panel_rows(1);
  for (loop.m0 = 0; loop.m0 < batch.rows(); loop.m0 += batch.pass()) {
    loop.m = std::min(batch.pass(), batch.rows() - loop.m0);
    pool.parallel_for(blocks, panels_per_chunk(blocking, blocks, block_bytes, loop.m, pool.size()), loop, g.next);
  }
  return {};
}

/// The key of a tuned choice: the first call's kernel and rows, all columns, and powers of two of m.
BlockingTuner::Shape shape_of(std::span<const MatmulCall> calls, int64_t m) {
  BlockingTuner::Shape shape{&calls[0].plan->kernel(), 0, calls[0].plan->k(), int64_t(std::bit_width(uint64_t(m)))};
  for (const MatmulCall& call : calls) shape.n += call.plan->n();
  return shape;
}

template <class Run>
Status tuned(std::span<const MatmulCall> calls, int64_t m, BlockingTuner* tuner, const Run& run) {
  const Blocking& start = calls[0].plan->blocking();
  return tuner == nullptr ? run(start) : tuner->run(shape_of(calls, m), start, run);
}

}  // namespace

ReadAhead MatmulPlan::read_ahead(int64_t columns) const {
  if (kernel_ == nullptr) return {};  // a model of one block has no head
  return {panels_.data(), panels_.size(), ceil_div(columns, kernel_->panel_rows), panel_bytes_};
}

Status run_matmuls(std::span<const MatmulCall> calls, ActivationRows& x, ThreadPool& pool, BlockingTuner* tuner,
                   const ReadAhead& next) {
  if (calls.empty()) return {};
  return tuned(calls, x.m(), tuner, [&](const Blocking& b) { return run_batch(calls, x, b, pool, next); });
}

Status MatmulPlan::run(ActivationRows& x, const float* bias, float* y, int64_t ldy, ThreadPool& pool) const {
  const MatmulCall call{this, bias, y, ldy};
  return run_matmuls({&call, 1}, x, pool);
}

Status run_gated(const MatmulCall& gate, const MatmulCall& up, GluFunction glu, ActivationRows& x,
                 ActivationRows* next_rows, ThreadPool& pool, BlockingTuner* tuner, const ReadAhead& next) {
  if (up.plan->n() != gate.plan->n())
    return fail(ErrorCode::kShapeMismatch, "gated matmul", std::to_string(up.plan->n()) + " outputs",
                std::to_string(gate.plan->n()));
  const Gated gated{gate, up, glu, next_rows, next};
  const std::array<MatmulCall, 2> calls = {gate, up};
  return tuned(calls, x.m(), tuner, [&](const Blocking& b) { return run_gated_batch(gated, x, b, pool); });
}

}  // namespace lowbit
