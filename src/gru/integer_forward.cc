#include <algorithm>

#include "base/checked.h"
#include "base/try.h"
#include "gru/model.h"

namespace lowbit {
namespace {

using Codes = std::vector<uint16_t>;  // offset codes q - lo

constexpr int64_t kBlockRows = 64;  // rows of x whose input product is computed at once

uint16_t offset_code(float v, const GruParam& p) { return static_cast<uint16_t>(quantize_value(v, p) - p.lo()); }

double real_of(uint16_t code, const GruParam& p) { return dequantize_value(int64_t{code} + p.lo(), p.scale); }

struct IntegerCellRun {
  const GruPlan& plan;
  const uint8_t* packed;
  int cell, direction;
  const GruSchedule& schedule;
  std::span<const float> numbers;  // [rows, C] of the first layer,
  const Codes& x;                  // or codes from the layer below
  Codes state;                     // [N, H] by length
  uint16_t* y;                     // [rows, y_columns], this cell's first column: codes, or null,
  float* out;                      // numbers, or null
  int64_t y_columns;
  float* trace;  // [rows, 4H] or null

  /// The codes of step t of sequence i.
  void read(int64_t t, int64_t i, uint16_t* to) const {
    const int64_t c = plan.cell().input, from = schedule.row(direction, t, i) * c;
    if (numbers.empty())
      std::copy_n(x.begin() + from, c, to);
    else
      quantize_codes(numbers.subspan(static_cast<size_t>(from), static_cast<size_t>(c)), plan.cell()[GruTensor::kX],
                     to);
  }
  /// The state of sequence i as what step t gives.
  void write(int64_t t, int64_t i) const {
    const auto hidden = static_cast<size_t>(plan.cell().hidden);
    const auto from = std::span(state).subspan(static_cast<size_t>(i) * hidden, hidden);
    const int64_t to = schedule.row(direction, t, i) * y_columns;
    if (y != nullptr) std::copy(from.begin(), from.end(), y + to);
    if (out != nullptr) dequantize_codes(from, plan.cell()[GruTensor::kH], out + to);
  }
};

/// A step's tensors, kept only while somebody looks.
struct TraceBuffers {
  std::vector<int32_t> hh, ui, u, ri, r, ni, n;
  explicit TraceBuffers(int64_t rows, int64_t hidden) {
    hh.resize(static_cast<size_t>(rows * 3 * hidden));
    for (auto* v : {&ui, &u, &ri, &r, &ni, &n}) v->resize(static_cast<size_t>(rows * hidden));
  }
  GruTrace view() { return {hh.data(), ui.data(), u.data(), ri.data(), r.data(), ni.data(), n.data()}; }
};

void write_trace(const IntegerCellRun& run, const TraceBuffers& t, int64_t i, int64_t row) {
  const int64_t hidden = run.plan.cell().hidden;
  const auto put = [&](int part, GruTensor tensor, const int32_t* q) {
    float* to = run.trace + row * 4 * hidden + part * hidden;
    for (int64_t j = 0; j < hidden; ++j)
      to[j] = static_cast<float>(dequantize_value(q[j], run.plan.cell()[tensor].scale));
  };
  put(0, GruTensor::kU, t.u.data() + i * hidden);
  put(1, GruTensor::kR, t.r.data() + i * hidden);
  put(2, GruTensor::kN, t.n.data() + i * hidden);
  put(3, GruTensor::kHh, t.hh.data() + i * 3 * hidden + 2 * hidden);
}

/// Steps [s, e) whose rows together are at most kBlockRows (one step at least).
int64_t block_end(const GruSchedule& schedule, int64_t s) {
  int64_t rows = schedule.active(s), e = s + 1;
  while (e < schedule.steps() && schedule.active(e) > 0 && rows + schedule.active(e) <= kBlockRows)
    rows += schedule.active(e++);
  return e;
}

/// One sequence, the input product of the next rows beside the steps of these.
Status run_ahead(IntegerCellRun& run, const GruKernel& kernel, int64_t ahead_rows) {
  const GruSpec& spec = run.plan.spec();
  int64_t steps = 0;
  while (steps < run.schedule.steps() && run.schedule.active(steps) > 0) ++steps;
  Codes x(static_cast<size_t>(ahead_rows * spec.c));
  std::vector<int32_t> now(static_cast<size_t>(ahead_rows * 3 * spec.h)), next(now.size());
  LOWBIT_TRY_ASSIGN(Buffer scratch, Buffer::allocate(kernel.scratch_bytes(spec, ahead_rows), "gru scratch"));
  const auto read = [&](int64_t first) {
    const int64_t rows = std::min(ahead_rows, steps - first);
    for (int64_t i = 0; i < rows; ++i) run.read(first + i, 0, x.data() + i * spec.c);
    return rows;
  };
  const int64_t first_rows = read(0);
  kernel.input(spec, run.packed, x.data(), first_rows, now.data(), scratch.as<uint8_t>());
  for (int64_t s = 0; s < steps; s += ahead_rows) {
    const int64_t rows = std::min(ahead_rows, steps - s);
    const bool more = s + ahead_rows < steps;
    if (more) read(s + ahead_rows);
    for (int64_t i = 0; i < rows; ++i) {
      const int32_t* ih = now.data() + i * 3 * spec.h;
      if (more)
        kernel.step_ahead(spec, run.packed, ih, run.state.data(), {x.data(), next.data(), i, rows},
                          scratch.as<uint8_t>());
      else
        kernel.step(spec, run.packed, ih, 1, run.state.data(), nullptr, scratch.as<uint8_t>());
      run.write(s + i, 0);
    }
    std::swap(now, next);
  }
  return {};
}

Status run_cell(IntegerCellRun& run, const GruForwardOptions& options) {
  const GruSpec& spec = run.plan.spec();
  const GruKernel& kernel = *options.kernel;
  const int64_t hidden = spec.h, c = spec.c;
  const int64_t block_rows = std::max(kBlockRows, run.schedule.batch());
  const bool traced = run.trace != nullptr || options.tap;
  const int64_t ahead_rows =
      kernel.ahead_rows != nullptr && !traced && run.schedule.batch() == 1 ? kernel.ahead_rows(run.packed) : 0;
  if (ahead_rows > 0 && run.schedule.steps() > 0) return run_ahead(run, kernel, ahead_rows);
  TraceBuffers buffers(traced ? run.schedule.batch() : 0, hidden);
  const GruTrace trace = buffers.view();
  Codes x(static_cast<size_t>(block_rows * c));
  std::vector<int32_t> ih(static_cast<size_t>(block_rows * 3 * hidden));
  LOWBIT_TRY_ASSIGN(Buffer scratch, Buffer::allocate(kernel.scratch_bytes(spec, block_rows), "gru scratch"));
  for (int64_t s = 0; s < run.schedule.steps() && run.schedule.active(s) > 0;) {
    const int64_t end = block_end(run.schedule, s);
    int64_t rows = 0;
    for (int64_t t = s; t < end; ++t)
      for (int64_t i = 0; i < run.schedule.active(t); ++i, ++rows) run.read(t, i, x.data() + rows * c);
    kernel.input(spec, run.packed, x.data(), rows, ih.data(), scratch.as<uint8_t>());
    for (int64_t first = 0; s < end; ++s) {
      const int64_t active = run.schedule.active(s);
      kernel.step(spec, run.packed, ih.data() + first * 3 * hidden, active, run.state.data(), traced ? &trace : nullptr,
                  scratch.as<uint8_t>());
      if (options.tap)
        options.tap(
            {run.cell, s, active, ih.data() + first * 3 * hidden, trace, x.data() + first * c, run.state.data()});
      for (int64_t i = 0; i < active; ++i) {
        run.write(s, i);
        if (run.trace != nullptr) write_trace(run, buffers, i, run.schedule.row(run.direction, s, i));
      }
      first += active;
    }
  }
  return {};
}

}  // namespace

Result<GruOutput> forward_codes(const GruModel::Impl& model, const GruInput& input, const GruForwardOptions& options) {
  LOWBIT_TRY_ASSIGN(const GruSchedule schedule, GruSchedule::make(input, model.input(), model.state_size(), false));
  LOWBIT_TRY_ASSIGN(const auto packed, model.packed_for(*options.kernel));
  const int64_t n = schedule.batch();
  GruOutput out;
  out.final_state.resize(static_cast<size_t>(n * model.state_size()));
  if (options.trace) out.trace.resize(static_cast<size_t>(4 * schedule.rows() * model.state_size()));
  Codes x;
  int64_t state_at = 0, trace_at = 0;
  for (int layer = 0; layer < model.layers(); ++layer) {
    const size_t first = static_cast<size_t>(layer * model.directions());
    const GruCell& any = model.cells[first]->cell();
    const GruParam& h = any[GruTensor::kH];
    const int64_t hidden = any.hidden, columns = model.directions() * hidden;
    const auto zero = static_cast<uint16_t>(h.scale.zp - h.lo());
    const bool last = layer + 1 == model.layers(), codes = !last || options.codes;
    const auto numbers = static_cast<size_t>(schedule.rows() * columns);
    Codes y(codes ? numbers : 0, zero);
    if (last) out.y.resize(numbers);  // 0 behind the end of a sequence, which is what its code says
    for (int d = 0; d < model.directions(); ++d) {
      const size_t cell = first + static_cast<size_t>(d);
      IntegerCellRun run{*model.cells[cell],
                         packed->cells[cell].as<uint8_t>(),
                         static_cast<int>(cell),
                         d,
                         schedule,
                         layer == 0 ? input.x : std::span<const float>(),
                         x,
                         Codes(static_cast<size_t>(n * hidden), zero),
                         codes ? y.data() + d * hidden : nullptr,
                         last ? out.y.data() + d * hidden : nullptr,
                         columns,
                         options.trace ? out.trace.data() + trace_at : nullptr};
      for (int64_t i = 0; i < n && !input.h0.empty(); ++i)
        for (int64_t j = 0; j < hidden; ++j)
          run.state[static_cast<size_t>(i * hidden + j)] =
              offset_code(input.h0[static_cast<size_t>(state_at + schedule.sequence(i) * hidden + j)], h);
      LOWBIT_TRY(run_cell(run, options));
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < hidden; ++j)
          out.final_state[static_cast<size_t>(state_at + schedule.sequence(i) * hidden + j)] =
              static_cast<float>(real_of(run.state[static_cast<size_t>(i * hidden + j)], h));
      state_at += n * hidden;
      trace_at += schedule.rows() * 4 * hidden;
    }
    x = std::move(y);
  }
  if (options.codes) {
    const GruParam& h = model.cells.back()->cell()[GruTensor::kH];
    out.codes.resize(x.size());
    std::transform(x.begin(), x.end(), out.codes.begin(), [&](uint16_t q) { return int32_t{q} + h.lo(); });
  }
  return out;
}

}  // namespace lowbit
