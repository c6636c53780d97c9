#pragma once
// One integer GRU cell: the numbers a file holds. What follows from them (folded biases, derived shifts, proofs) is
// plan.h.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lowbit/gru.h"

namespace lowbit {

/// A tensor's format, shift and zero point.
struct GruParam {
  GruFormat format;
  GruScale scale;
  int32_t lo() const { return static_cast<int32_t>(format.q_min()); }
  int32_t hi() const { return static_cast<int32_t>(format.q_max()); }
};

/// An activation function on integers; the meaning is kernels/gru_api.h's GruTableView.
struct GruTable {
  GruTableMode mode = GruTableMode::kDirect;
  std::vector<int32_t> threshold, slope, shift;  // [S - 1], [S], [S]
  std::vector<int64_t> intercept;                // [S]
  std::vector<int32_t> direct;                   // kDirect: [2^bits]
  bool operator==(const GruTable&) const = default;
  int64_t bytes() const;
};

inline constexpr int kMaxShift = 31;                      // of any tensor, either sign
inline constexpr int kMaxSegments = 1024;                 // of a table
inline constexpr int64_t kMaxGruSize = int64_t{1} << 20;  // C or H

struct GruCell {
  int64_t input = 0, hidden = 0;
  std::array<GruParam, kGruTensors> tensors;
  GruFormat w_format, r_format, bw_format, br_format;
  std::vector<int32_t> w, r;                                  // [3H, C], [3H, H]: codes
  std::vector<int32_t> w_zp, r_zp;                            // [3H]; empty: zeros
  std::vector<int32_t> w_shift, r_shift, bw_shift, br_shift;  // [3H]
  std::vector<int32_t> bw, br;                                // [3H]
  std::array<GruTable, 3> tables;                             // u, r, n

  GruParam& operator[](GruTensor t) { return tensors[static_cast<size_t>(t)]; }
  const GruParam& operator[](GruTensor t) const { return tensors[static_cast<size_t>(t)]; }
};

// Which tensors a table goes between.
inline constexpr std::array<GruTensor, 3> kGateInputs = {GruTensor::kUi, GruTensor::kRi, GruTensor::kNi};
inline constexpr std::array<GruTensor, 3> kGateOutputs = {GruTensor::kU, GruTensor::kR, GruTensor::kN};

/// clamp(rint(v * 2^shift) + zp); NaN gives zp, infinities the limits.
int32_t quantize_value(float v, const GruParam& p);
/// Quantizes many numbers, as offset codes q - lo; and back to floats, exactly.
void quantize_codes(std::span<const float> v, const GruParam& p, uint16_t* codes);
void dequantize_codes(std::span<const uint16_t> codes, const GruParam& p, float* out);
/// (q - zp) * 2^-shift, exact in double.
double dequantize_value(int64_t q, const GruScale& scale);

/// Bits in 1..16 (biases 2..32), biases signed and symmetric, segments and saturate inside their ranges.
Status check_gru_config(const GruConfig& config);

/// Hessian of a cell's inputs, a 1 behind each, for feedback rounding: sum (x,1) (x,1)^T. Empty: rounds to nearest.
struct GruHessian {
  std::vector<double> x, h;  // [C + 1, C + 1], [H + 1, H + 1]
};

/// Quantizes weights and biases and makes the tables, for given activations. Errors: kInvalidArgument (the config),
/// kUnsupported (numbers beyond any shift).
Result<GruCell> build_gru_cell(const GruWeights& weights, const std::array<GruParam, kGruTensors>& tensors,
                               const GruConfig& config, const GruHessian& hessian);

/// Input of feedback rounding: rows of k weights.
struct FeedbackProblem {
  std::span<const float> w;  // [rows, k]
  int64_t k = 0;
  std::span<const double> hessian;  // [k + 1, k + 1]
  const GruFormat& format;
  int extra_shifts = 0;              // finer shifts to try per row, beyond the given one
  int input_shift = 0;               // of the inputs; keeps the bias at product scale below 2^30
  std::span<const int32_t> zp = {};  // of the rows' codes; empty: zeros
};

/// q [rows, k] such that the sum over the inputs of ((w, bias) (x, 1) - (q 2^-shift, bias') (x, 1))^2 is small: columns
/// in order, the error of each spread over those to come and the bias at the end (GPTQ, by the Cholesky factor of the
/// inverse Hessian). Rewrites shift where a finer one has the smaller error, and bias.
void round_with_feedback(const FeedbackProblem& problem, std::span<int32_t> shift, std::span<int32_t> q,
                         std::span<float> bias);

}  // namespace lowbit
