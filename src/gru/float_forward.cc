#include "gru/float_forward.h"

#include <algorithm>
#include <cmath>

#include "base/cpu.h"
#include "base/try.h"
#include "kernels/registry.h"

namespace lowbit {
namespace {

using Floats = std::vector<float>;

float sigmoid(float x) { return static_cast<float>(1 / (1 + std::exp(-static_cast<double>(x)))); }
float tanh_of(float x) { return static_cast<float>(std::tanh(static_cast<double>(x))); }

/// out [rows, outputs] = in [rows, k] w^T + bias.
void linear(const VectorOps& ops, const Floats& w, const Floats& bias, const float* in, int64_t rows, int64_t k,
            Floats& out) {
  const auto outputs = static_cast<int64_t>(bias.size());
  for (int64_t c = 0; c < outputs; ++c)
    for (int64_t m = 0; m < rows; ++m)
      out[static_cast<size_t>(m * outputs + c)] =
          ops.dot_f32(w.data() + c * k, in + m * k, k) + bias[static_cast<size_t>(c)];
}

/// The tensors of a step, for up to `rows` sequences.
struct StepBuffers {
  Floats x, ih, hh, ui, u, ri, r, ni, n, h, h_old;
  StepBuffers(int64_t rows, int64_t c, int64_t hidden) {
    x.resize(static_cast<size_t>(rows * c));
    for (Floats* f : {&ih, &hh}) f->resize(static_cast<size_t>(rows * 3 * hidden));
    for (Floats* f : {&ui, &u, &ri, &r, &ni, &n, &h, &h_old}) f->resize(static_cast<size_t>(rows * hidden));
  }
  GruTap tap(int cell, int64_t step, int64_t rows, int64_t c, int64_t hidden) const {
    const auto part = [&](const Floats& f, int64_t columns) {
      return std::span(f).first(static_cast<size_t>(rows * columns));
    };
    return {cell,
            step,
            rows,
            part(x, c),
            part(ih, 3 * hidden),
            part(hh, 3 * hidden),
            part(ui, hidden),
            part(u, hidden),
            part(ri, hidden),
            part(r, hidden),
            part(ni, hidden),
            part(n, hidden),
            part(h, hidden),
            part(h_old, hidden)};
  }
};

void gates(StepBuffers& b, int64_t rows, int64_t hidden) {
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t j = 0; j < hidden; ++j) {
      const auto at = static_cast<size_t>(m * hidden + j), sum = static_cast<size_t>(m * 3 * hidden + j);
      const auto step = static_cast<size_t>(hidden);
      b.ui[at] = b.ih[sum] + b.hh[sum];
      b.u[at] = sigmoid(b.ui[at]);
      b.ri[at] = b.ih[sum + step] + b.hh[sum + step];
      b.r[at] = sigmoid(b.ri[at]);
      b.ni[at] = b.ih[sum + 2 * step] + b.r[at] * b.hh[sum + 2 * step];
      b.n[at] = tanh_of(b.ni[at]);
      b.h[at] = b.u[at] * b.h_old[at] + (1 - b.u[at]) * b.n[at];
    }
}

/// Copies the rows of step s between a [rows, columns] array of the schedule and a dense one.
struct RowCopy {
  const GruSchedule& schedule;
  int direction;
  void gather(std::span<const float> from, int64_t columns, int64_t s, Floats& to) const {
    for (int64_t i = 0; i < schedule.active(s); ++i)
      std::copy_n(from.begin() + schedule.row(direction, s, i) * columns, columns, to.begin() + i * columns);
  }
};

struct FloatCellRun {
  const GruWeights& w;
  int cell, direction;
  const GruSchedule& schedule;
  std::span<const float> x;   // [rows, C]
  std::span<const float> h0;  // [N, H] or empty
  float* y;                   // [rows, y_columns], this cell's first column
  int64_t y_columns;
  float* final_state;  // [N, H]
  float* trace;        // [rows, 4H] or null
};

void run_cell(const FloatCellRun& run, const GruTaps& taps) {
  const VectorOps& ops = vector_ops(best_isa());
  const int64_t hidden = run.w.hidden, c = run.w.input;
  const RowCopy copy{run.schedule, run.direction};
  StepBuffers b(run.schedule.batch(), c, hidden);
  Floats& state = b.h_old;
  for (int64_t i = 0; i < run.schedule.batch() && !run.h0.empty(); ++i)
    std::copy_n(run.h0.begin() + run.schedule.sequence(i) * hidden, hidden, state.begin() + i * hidden);
  for (int64_t s = 0; s < run.schedule.steps(); ++s) {
    const int64_t rows = run.schedule.active(s);
    if (rows == 0) break;
    copy.gather(run.x, c, s, b.x);
    linear(ops, run.w.w, run.w.bw, b.x.data(), rows, c, b.ih);
    linear(ops, run.w.r, run.w.br, state.data(), rows, hidden, b.hh);
    gates(b, rows, hidden);
    if (taps.step) taps.step(b.tap(run.cell, s, rows, c, hidden));
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = run.schedule.row(run.direction, s, i);
      std::copy_n(b.h.begin() + i * hidden, hidden, run.y + row * run.y_columns);
      if (run.trace == nullptr) continue;
      float* v = run.trace + row * 4 * hidden;
      std::copy_n(b.u.begin() + i * hidden, hidden, v);
      std::copy_n(b.r.begin() + i * hidden, hidden, v + hidden);
      std::copy_n(b.n.begin() + i * hidden, hidden, v + 2 * hidden);
      std::copy_n(b.hh.begin() + i * 3 * hidden + 2 * hidden, hidden, v + 3 * hidden);
    }
    std::copy_n(b.h.begin(), rows * hidden, state.begin());
  }
  for (int64_t i = 0; i < run.schedule.batch(); ++i)
    std::copy_n(state.begin() + i * hidden, hidden, run.final_state + run.schedule.sequence(i) * hidden);
}

int64_t trace_size(const GruNetwork& network, int64_t rows) { return 4 * rows * network.state_size(); }

}  // namespace

Result<GruOutput> forward_gru(const GruNetwork& network, const GruInput& input, bool trace, const GruTaps& taps) {
  LOWBIT_TRY(check_gru(network));
  LOWBIT_TRY_ASSIGN(const GruSchedule schedule, GruSchedule::make(input, network.input(), network.state_size(), true));
  const int directions = network.directions();
  GruOutput out;
  out.final_state.resize(static_cast<size_t>(input.batch * network.state_size()));
  if (trace) out.trace.resize(static_cast<size_t>(trace_size(network, schedule.rows())));
  Floats x;
  std::span<const float> layer_x = input.x;
  int64_t state_at = 0, trace_at = 0;
  for (int layer = 0; layer < network.layers(); ++layer) {
    const size_t first = static_cast<size_t>(layer) * static_cast<size_t>(directions);
    const int64_t hidden = network.cells[first].hidden, columns = directions * hidden;
    const int64_t layer_state_at = state_at;
    Floats y(static_cast<size_t>(schedule.rows() * columns));
    for (int d = 0; d < directions; ++d) {
      const auto h0 = input.h0.empty()
                          ? input.h0
                          : input.h0.subspan(static_cast<size_t>(state_at), static_cast<size_t>(input.batch * hidden));
      run_cell({network.cells[first + static_cast<size_t>(d)], static_cast<int>(first) + d, d, schedule, layer_x, h0,
                y.data() + d * hidden, columns, out.final_state.data() + state_at,
                trace ? out.trace.data() + trace_at : nullptr},
               taps);
      state_at += input.batch * hidden;
      trace_at += schedule.rows() * 4 * hidden;
    }
    if (taps.layer)
      taps.layer({layer, &schedule, network.cells[first].input, columns, layer_x, y,
                  input.h0.empty() ? input.h0
                                   : input.h0.subspan(static_cast<size_t>(layer_state_at),
                                                      static_cast<size_t>(input.batch * columns))});
    x = std::move(y);
    layer_x = x;
  }
  out.y = std::move(x);
  return out;
}

Result<GruOutput> run_gru(const GruNetwork& network, const GruInput& input, bool trace) {
  return forward_gru(network, input, trace, {});
}

}  // namespace lowbit
