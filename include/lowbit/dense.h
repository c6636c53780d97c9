#pragma once
// Dense layers on the integers of the recurrent networks (lowbit/gru.h): what stands before and behind them.
//
//   y = f(W x + b), real = (q - zp) * 2^-shift. Sums are exact; they are rounded once, half to even, and clamped:
//   linear:  q_y = clamp(rs(sum_k q_W q_x + b, s_W + s_x - s_y) + z_y)
//   relu:    the same into an unsigned format with zero point 0, whose lower limit is the function
//   sigmoid: the same into 12 bits of shift 8, then a table of all 4,096 outputs, each correctly rounded
// Results have the same bits on every instruction set.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lowbit/gru.h"

namespace lowbit {

enum class DenseFunction : uint8_t { kLinear, kRelu, kSigmoid };

struct DenseWeights {
  int64_t inputs = 0, outputs = 0;
  std::vector<float> w, bias;  // [outputs, inputs], [outputs]
  DenseFunction function = DenseFunction::kLinear;
};

/// A tensor's format and scale together.
struct DenseTensor {
  GruFormat format;
  GruScale scale;
  /// The scale of `format` that covers [low, high] and 0, by the rule of GruModel::quantize.
  static DenseTensor covering(const GruFormat& format, float low, float high);
};

/// Integer layer: weights of 2 to 8 bits with a power-of-two scale per row, biases of 32 bits. Immutable, copies share
/// it.
class DenseLayer {
 public:
  /// Errors: kShapeMismatch, kInvalidArgument (formats, numbers that are not finite; relu into a format with negative
  /// numbers or a zero point), kUnsupported (a sum that could overflow 63 bits).
  static Result<DenseLayer> quantize(const DenseWeights& layer, const DenseTensor& in, const DenseTensor& out,
                                     int weight_bits = 8);

  int64_t inputs() const;
  int64_t outputs() const;
  const DenseTensor& in() const;
  const DenseTensor& out() const;
  int64_t bytes() const;  // of all that inference reads

  /// Codes of `in` from floats: NaN becomes the zero point, infinities the limits.
  std::vector<uint16_t> encode(std::span<const float> x) const;
  /// Floats of codes of `out`, exactly.
  std::vector<float> decode(std::span<const uint16_t> y) const;
  /// y [rows, outputs] from x [rows, inputs], as offset codes q - q_min. `isa` as Compute::isa.
  /// Errors: kShapeMismatch, kInvalidArgument (a code outside its format), kUnsupported (an isa that the machine
  /// lacks).
  Result<std::vector<uint16_t>> run(std::span<const uint16_t> x, const std::string& isa = "") const;

  struct Impl;
  explicit DenseLayer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace lowbit
