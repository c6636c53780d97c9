#pragma once
// Piecewise-linear activation functions on integers: made in double once, verified on every input, stored as integers.

#include "gru/cell.h"

namespace lowbit {

enum class GruFunction : uint8_t { kSigmoid, kTanh };

/// 16 for outputs up to 8 bits, 64 up to 12, 256 above: the fit stays near a quarter of a step.
int default_segments(int output_bits);

/// clamp(rint(f(x) 2^shift) + zp) for the input code q: what every table approximates.
int32_t rounded_function(GruFunction f, const GruParam& in, const GruParam& out, int64_t q);

/// A table from codes of `in` to codes of `out` with at most `segments` (>= 4) segments. Non-decreasing. Odd for tanh
/// with both zero points 0, except where the format itself saturates on one side only.
/// Fused and seed: knots such that all segments have the same largest error (greedy for a bound, bisection over the
/// bound), slopes of 15 bits, the intercept in the middle of the error. Source: gru.md 3.6 of the design.
GruTable make_table(GruFunction f, const GruParam& in, const GruParam& out, GruTableMode mode, int segments);

/// The table's output code for input code q; the same integers as kernels/ref/gru.cc.
int32_t evaluate_table(const GruTable& table, const GruParam& in, const GruParam& out, int64_t q);

/// Over all 2^bits inputs.
GruTableError table_error(GruFunction f, const GruTable& table, const GruParam& in, const GruParam& out);

}  // namespace lowbit
