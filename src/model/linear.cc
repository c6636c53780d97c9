#include "model/linear.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/try.h"
#include "ops/hadamard.h"
#include "ops/norm.h"

namespace lowbit {

LayerActivation layer_activation(const QTensor& w, Activation wanted, int64_t group) {
  if (wanted == Activation::kF32 || is_dense(w.format)) return {};
  const std::string floats = why_float_sums(w, group);
  if (floats.empty()) return {wanted, ""};
  return {Activation::kF32, "f32 activations: " + floats};
}

int64_t trained_activation_group(const QTensor& w, int64_t group) {
  const bool low =
      w.format == FormatId::kTernary || w.format == FormatId::kTernaryPacked || w.format == FormatId::kBinary;
  return low && w.group() >= w.k ? 0 : group;
}

void LinearInput::set_rounding(const ActivationRounding& rounding) {
  clips_ = rounding.clipped > 0;
  for (Rows* rows : {&int8_rows_, &next_rows_}) rows->rows.set_rounding(rounding);
}

void LinearInput::set(const float* x, int64_t m, int64_t k) {
  x_ = x;
  m_ = m;
  k_ = k;
  float_rows_.ready = int8_rows_.ready = false;
}

Status LinearInput::set_normed(const NormedRows& rows, std::span<const Linear* const> readers, float* normed) {
  const auto reads_codes = [](const Linear* l) { return l->plan.activation() == Activation::kInt8; };
  if (observer_ || !std::all_of(readers.begin(), readers.end(), reads_codes)) {
    rms_norm_rows(*ops_, rows.x, rows.k, rows.weight, rows.m, rows.k, rows.eps, normed, rows.k, *pool_);
    set(normed, rows.m, rows.k);
  } else {
    set(nullptr, rows.m, rows.k);
    LOWBIT_TRY(int8_rows_.rows.prepare_normed(rows.x, rows.weight, rows.eps, rows.m, rows.k, rows.k, isa_, *pool_));
    int8_rows_.ready = true;
  }
  for (const Linear* reader : readers) {
    LOWBIT_TRY_ASSIGN(ActivationRows* const input, rows_for(reader->plan.activation()));
    LOWBIT_TRY(input->prepare_for(reader->plan, *pool_));
  }
  return {};
}

Result<ActivationRows*> LinearInput::rows_for(Activation kind) {
  Rows& input = kind == Activation::kInt8 ? int8_rows_ : float_rows_;
  if (!input.ready) LOWBIT_TRY(input.rows.prepare(kind, x_, m_, k_, k_, isa_, *pool_));
  input.ready = true;
  return &input.rows;
}

ReadAhead LinearInput::read_ahead(NextLinears next) const {
  constexpr int64_t kFewRows = 16;  // more: weights are read slower than they come
  if (m_ > kFewRows || next.size() == 0) return {};
  int64_t columns = 0;
  for (const Linear* l : next) columns += l->plan.n();
  return (*next.begin())->plan.read_ahead(columns);
}

Status LinearInput::run(std::span<const LinearCall> calls, NextLinears next) {
  constexpr size_t kMostCalls = 4;
  if (calls.size() > kMostCalls)
    return fail(ErrorCode::kInvalidArgument, "linear layers", std::to_string(calls.size()) + " of the same rows",
                "at most 4");
  for (const Activation kind : {Activation::kInt8, Activation::kF32}) {
    std::array<MatmulCall, kMostCalls> of_kind;
    size_t count = 0;
    for (const LinearCall& call : calls) {
      if (call.linear->plan.activation() != kind) continue;
      observe(*call.linear);
      of_kind[count++] = {&call.linear->plan, call.linear->bias_or_null(), call.y, call.ldy};
    }
    if (count == 0) continue;
    LOWBIT_TRY_ASSIGN(ActivationRows* const input, rows_for(kind));
    LOWBIT_TRY(run_matmuls(std::span(of_kind).first(count), *input, *pool_, tuner_.get(), read_ahead(next)));
  }
  return {};
}

Status LinearInput::run(const Linear& linear, float* y, int64_t ldy, NextLinears next) {
  const LinearCall call{&linear, y, ldy};
  return run({&call, 1}, next);
}

void LinearInput::set_gated(float* y, int64_t m, int64_t width, int64_t hadamard) {
  if (hadamard > 0) hadamard_rows(*ops_, y, m, width, hadamard, *pool_);
  set(y, m, width);
}

Status LinearInput::run_gated(const LinearCall& gate, const LinearCall& up, const Linear& reader, int64_t hadamard) {
  const Activation kind = gate.linear->plan.activation();
  const int64_t m = m_, width = gate.linear->plan.n();
  if (up.linear->plan.activation() != kind) {  // a recipe that gives the two different kinds of formats
    const std::array<LinearCall, 2> both = {gate, up};
    LOWBIT_TRY(run(both));
    for (int64_t r = 0; r < m; ++r)
      ops_->silu_mul(gate.y + r * gate.ldy, up.y + r * up.ldy, width, gate.y + r * gate.ldy);
    set_gated(gate.y, m, width, hadamard);
    return {};
  }
  observe(*gate.linear);
  observe(*up.linear);
  LOWBIT_TRY_ASSIGN(ActivationRows* const input, rows_for(kind));
  const CodeLayout codes = reader.plan.code_layout();
  // Codes on the way need rows that are done.
  const bool fill = hadamard == 0 && !observer_ && !clips_ && reader.plan.activation() == Activation::kInt8 &&
                    codes.run == 0 && codes.group > 0 &&
                    64 % codes.group == 0;  // run_gated()'s chunks are whole groups
  if (fill) LOWBIT_TRY(next_rows_.rows.expect_codes(m, width, codes.group, isa_));
  LOWBIT_TRY(lowbit::run_gated({&gate.linear->plan, gate.linear->bias_or_null(), gate.y, gate.ldy},
                               {&up.linear->plan, up.linear->bias_or_null(), up.y, up.ldy}, *ops_, *input,
                               fill ? &next_rows_.rows : nullptr, *pool_, tuner_.get(), read_ahead({&reader})));
  set_gated(gate.y, m, width, hadamard);
  if (!fill) return {};
  std::swap(int8_rows_, next_rows_);
  int8_rows_.ready = true;
  return int8_rows_.rows.prepare_for(reader.plan, *pool_);
}

}  // namespace lowbit
