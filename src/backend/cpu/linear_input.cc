#include "backend/cpu/linear_input.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/try.h"
#include "ops/glu.h"
#include "ops/norm.h"

namespace lowbit {

WeightInfo CpuWeight::info() const {
  if (!multiplies) return {name, "", "", table.format, table.n, table.k, 0, Activation::kF32, 0};
  return {name,     plan.kernel_name(),    plan.reason(),     plan.format(),           plan.n(),
          plan.k(), plan.resident_bytes(), plan.activation(), plan.code_layout().group};
}

void LinearInput::set_rounding(const ActivationRounding& rounding) {
  clips_ = rounding.clipped > 0;
  for (Rows* rows : {&int8_rows_, &next_rows_, &float_rows_}) rows->rows.set_rounding(rounding);
}

void LinearInput::set(const float* x, int64_t m, int64_t k) {
  x_ = x;
  m_ = m;
  k_ = k;
  float_rows_.ready = int8_rows_.ready = fp8_rows_.ready = false;
}

Status LinearInput::set_normed(const NormedRows& rows, Linears readers, float* normed) {
  const auto reads_codes = [](const CpuWeight* l) { return l->plan.activation() == Activation::kInt8; };
  if (!std::ranges::all_of(readers, reads_codes)) {
    rms_norm_rows(*ops_, rows.x, rows.k, rows.weight, rows.m, rows.k, rows.eps, normed, rows.k, *pool_);
    set(normed, rows.m, rows.k);
  } else {
    set(nullptr, rows.m, rows.k);
  }
  if (std::ranges::any_of(readers, reads_codes)) {
    LOWBIT_TRY(int8_rows_.rows.prepare_normed(rows.x, rows.weight, rows.eps, rows.m, rows.k, rows.k, isa_, *pool_));
    int8_rows_.ready = true;
  }
  for (const CpuWeight* reader : readers) {
    LOWBIT_TRY_ASSIGN(ActivationRows* const input, rows_for(reader->plan.activation()));
    LOWBIT_TRY(input->prepare_for(reader->plan, *pool_));
  }
  return {};
}

Result<ActivationRows*> LinearInput::rows_for(Activation kind) {
  Rows& input = kind == Activation::kInt8 ? int8_rows_ : kind == Activation::kFp8 ? fp8_rows_ : float_rows_;
  if (!input.ready) LOWBIT_TRY(input.rows.prepare(kind, x_, m_, k_, k_, isa_, *pool_));
  input.ready = true;
  return &input.rows;
}

ReadAhead LinearInput::read_ahead(Linears next) const {
  constexpr int64_t kFewRows = 16;  // more: weights are read slower than they come
  if (m_ > kFewRows || next.empty()) return {};
  int64_t columns = 0;
  for (const CpuWeight* l : next) columns += l->plan.n();
  return next.front()->plan.read_ahead(columns);
}

Status LinearInput::run(std::span<const LinearCall> calls, Linears next) {
  constexpr size_t kMostCalls = 4;
  if (calls.size() > kMostCalls)
    return fail(ErrorCode::kInvalidArgument, "linear layers", std::to_string(calls.size()) + " of the same rows",
                "at most 4");
  for (const Activation kind : {Activation::kInt8, Activation::kFp8, Activation::kF32}) {
    std::array<MatmulCall, kMostCalls> of_kind;
    size_t count = 0;
    for (const LinearCall& call : calls) {
      if (call.linear->plan.activation() != kind) continue;
      of_kind[count++] = {&call.linear->plan, call.linear->bias_or_null(), call.y, call.ldy};
    }
    if (count == 0) continue;
    LOWBIT_TRY_ASSIGN(ActivationRows* const input, rows_for(kind));
    LOWBIT_TRY(run_matmuls(std::span(of_kind).first(count), *input, *pool_, tuner_.get(), read_ahead(next)));
  }
  return {};
}

bool LinearInput::takes_codes(const CpuWeight& reader) const {
  const CodeLayout codes = reader.plan.code_layout();
  // run_gated()'s chunks are whole groups.
  return !clips_ && reader.plan.activation() == Activation::kInt8 && codes.run == 0 && codes.group > 0 &&
         (64 % codes.group == 0 || codes.group % 64 == 0);
}

Status LinearInput::run_gated(const LinearCall& gate, const LinearCall& up, Glu glu, const CpuWeight* reader,
                              Linears next) {
  const GluFunction multiply = glu_function(*ops_, glu);  // compile() refuses those without one
  const Activation kind = gate.linear->plan.activation();
  const int64_t m = m_, width = gate.linear->plan.n();
  if (up.linear->plan.activation() != kind) {  // a recipe that gives the two different kinds of formats
    const std::array<LinearCall, 2> both = {gate, up};
    LOWBIT_TRY(run(both));
    for (int64_t r = 0; r < m; ++r) multiply(gate.y + r * gate.ldy, up.y + r * up.ldy, width, gate.y + r * gate.ldy);
    set(gate.y, m, width);
    return {};
  }
  LOWBIT_TRY_ASSIGN(ActivationRows* const input, rows_for(kind));
  const bool fill = reader != nullptr && takes_codes(*reader);
  if (fill) LOWBIT_TRY(next_rows_.rows.expect_codes(m, width, reader->plan.code_layout(), isa_));
  LOWBIT_TRY(lowbit::run_gated({&gate.linear->plan, gate.linear->bias_or_null(), gate.y, gate.ldy},
                               {&up.linear->plan, up.linear->bias_or_null(), up.y, up.ldy}, multiply, *input,
                               fill ? &next_rows_.rows : nullptr, *pool_, tuner_.get(), read_ahead(next)));
  set(gate.y, m, width);
  if (!fill) return {};
  std::swap(int8_rows_, next_rows_);
  int8_rows_.ready = true;
  return int8_rows_.rows.prepare_for(reader->plan, *pool_);
}

}  // namespace lowbit
