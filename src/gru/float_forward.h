#pragma once
// The float network, with taps on every tensor of every step.

#include <functional>
#include <span>

#include "gru/schedule.h"
#include "lowbit/gru.h"

namespace lowbit {

/// One step of one cell, the sequences that run. Row-major [rows, columns].
struct GruTap {
  int cell = 0;
  int64_t step = 0, rows = 0;
  std::span<const float> x, ih, hh, ui, u, ri, r, ni, n, h;  // C, 3H, 3H, then H; h is the new state
  std::span<const float> h_old;                              // H
};

/// A layer that is done: its input and output in the rows of the schedule.
struct GruLayerTap {
  int layer = 0;
  const GruSchedule* schedule = nullptr;
  int64_t x_columns = 0, y_columns = 0;
  std::span<const float> x, y;
  std::span<const float> h0;  // of the layer's cells, each [N, H]; empty: zeros
};

struct GruTaps {
  std::function<void(const GruTap&)> step;
  std::function<void(const GruLayerTap&)> layer;
};

/// Dot products in f32 (16 partial sums, docs/numerics.md), activations in double rounded to f32.
Result<GruOutput> forward_gru(const GruNetwork& network, const GruInput& input, bool trace, const GruTaps& taps);

}  // namespace lowbit
