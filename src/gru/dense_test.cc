// Dense layers on integers: every instruction set against the formula of lowbit/dense.h in exact doubles.

#include "lowbit/dense.h"

#include <cmath>
#include <limits>

#include "base/cpu.h"
#include "gru/test_networks.h"

namespace lowbit {
namespace {

using testing_gru::between;

/// Weights that are whole steps of their row's scale, so that quantizing them loses nothing.
DenseWeights on_grid(Rng& rng, int64_t inputs, int64_t outputs, DenseFunction f) {
  DenseWeights l{inputs, outputs, {}, {}, f};
  for (int64_t row = 0; row < outputs; ++row) {
    const int shift = between(rng, 4, 9);
    for (int64_t i = 0; i < inputs; ++i)
      l.w.push_back(static_cast<float>(std::ldexp(i == 0 ? -127 : between(rng, -127, 127), -shift)));
    l.bias.push_back(static_cast<float>(std::ldexp(between(rng, -2000, 2000), -8)));
  }
  return l;
}

DenseTensor random_tensor(Rng& rng, bool relu) {
  const GruFormat f{between(rng, 4, 16), relu || rng.below(2) == 0, false, 1};
  const auto zp = relu ? 0 : between(rng, static_cast<int>(f.q_min()), static_cast<int>(f.q_max()));
  return {f, {between(rng, 8, 12), zp}};
}

/// The layer's code by the formula: every number here is exact in a double.
uint16_t expected(const DenseWeights& l, const DenseTensor& in, const DenseTensor& out, const uint16_t* x, int64_t j) {
  double sum = static_cast<double>(l.bias[static_cast<size_t>(j)]);
  for (int64_t i = 0; i < l.inputs; ++i)
    sum += static_cast<double>(l.w[static_cast<size_t>(j * l.inputs + i)]) *
           std::ldexp(static_cast<double>(x[i] + in.format.q_min() - in.scale.zp), -in.scale.shift);
  const auto code = [](double v, int64_t low, int64_t high) {
    return static_cast<int64_t>(std::clamp(v, static_cast<double>(low), static_cast<double>(high)));
  };
  if (l.function == DenseFunction::kSigmoid) {
    const double v = std::ldexp(static_cast<double>(code(std::nearbyint(std::ldexp(sum, 8)), -2048, 2047)), -8);
    sum = 1 / (1 + std::exp(-v));
  }
  const double q = std::nearbyint(std::ldexp(sum, out.scale.shift)) + out.scale.zp;
  return static_cast<uint16_t>(code(q, out.format.q_min(), out.format.q_max()) - out.format.q_min());
}

TEST(DenseLayer, EveryInstructionSetGivesTheFormula) {
  Rng rng(77);
  for (int i = 0; i < 120; ++i) {
    const auto f = static_cast<DenseFunction>(i % 3);
    const DenseWeights l = on_grid(rng, between(rng, 1, i % 10 == 0 ? 300 : 70), between(rng, 1, 90), f);
    const DenseTensor in = random_tensor(rng, false), out = random_tensor(rng, f == DenseFunction::kRelu);
    const auto layer = DenseLayer::quantize(l, in, out);
    ASSERT_TRUE(layer) << layer.error().message();
    const auto codes = static_cast<uint64_t>(in.format.q_max() - in.format.q_min() + 1);
    std::vector<uint16_t> x(static_cast<size_t>(l.inputs * between(rng, 1, 70)));
    for (auto& q : x) q = static_cast<uint16_t>(rng.below(codes));
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
      if (!isa_available(isa)) continue;
      const auto y = layer->run(x, isa_name(isa));
      ASSERT_TRUE(y) << y.error().message();
      ASSERT_EQ(y->size(), x.size() / static_cast<size_t>(l.inputs) * static_cast<size_t>(l.outputs));
      for (size_t at = 0; at < y->size(); ++at) {
        const auto row = at / static_cast<size_t>(l.outputs);
        ASSERT_EQ((*y)[at], expected(l, in, out, x.data() + row * static_cast<size_t>(l.inputs),
                                     static_cast<int64_t>(at % static_cast<size_t>(l.outputs))))
            << isa_name(isa) << " layer " << i << " output " << at;
      }
    }
  }
}

TEST(DenseLayer, NearTheFloatLayer) {
  Rng rng(78);
  DenseWeights l{200, 50, testing_gru::normals(rng, 200 * 50, 0.1), testing_gru::normals(rng, 50, 0.5), {}};
  const std::vector<float> x = testing_gru::normals(rng, 200 * 9, 1);
  const GruFormat wide{16, false, false, 1};
  const auto layer = DenseLayer::quantize(l, DenseTensor::covering(wide, -5, 5), DenseTensor::covering(wide, -9, 9));
  ASSERT_TRUE(layer) << layer.error().message();
  const std::vector<float> y = layer->decode(*layer->run(layer->encode(x)));
  double error = 0, size = 0;
  for (size_t row = 0; row < 9; ++row)
    for (size_t j = 0; j < 50; ++j) {
      double sum = static_cast<double>(l.bias[j]);
      for (size_t i = 0; i < 200; ++i)
        sum += static_cast<double>(l.w[j * 200 + i]) * static_cast<double>(x[row * 200 + i]);
      error += std::pow(sum - static_cast<double>(y[row * 50 + j]), 2);
      size += sum * sum;
    }
  EXPECT_GT(10 * std::log10(size / error), 35) << "dB";
  EXPECT_LT(layer->bytes(), 200 * 50 + 50 * 8);
}

TEST(DenseLayer, RefusesWhatItCannotBe) {
  const DenseTensor eight{{8, true, false, 1}, {4, 0}}, with_zero{{8, true, false, 1}, {4, 3}};
  const DenseWeights l{2, 1, {1, 2}, {0}, DenseFunction::kRelu};
  const auto code_of = [](const auto& r) { return r ? ErrorCode::kIo : r.error().code; };
  EXPECT_EQ(code_of(DenseLayer::quantize(l, eight, with_zero)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(DenseLayer::quantize(l, eight, eight, 9)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(DenseLayer::quantize(l, eight, {{17, true, false, 1}, {4, 0}})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(DenseLayer::quantize(l, {{8, true, false, 1}, {4, 256}}, eight)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(DenseLayer::quantize({2, 1, {1}, {0}, {}}, eight, eight)), ErrorCode::kShapeMismatch);
  EXPECT_EQ(code_of(DenseLayer::quantize({2, 1, {1, NAN}, {0}, {}}, eight, eight)), ErrorCode::kInvalidArgument);
  const auto layer = DenseLayer::quantize(l, eight, eight);
  ASSERT_TRUE(layer) << layer.error().message();
  EXPECT_EQ(code_of(layer->run(std::vector<uint16_t>{1})), ErrorCode::kShapeMismatch);
  EXPECT_EQ(code_of(layer->run(std::vector<uint16_t>{1, 256})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(layer->run(std::vector<uint16_t>{1, 2}, "mmx")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(layer->encode(std::vector<float>{NAN, INFINITY, -INFINITY, 0.5f}), (std::vector<uint16_t>{0, 255, 0, 8}));
}

}  // namespace
}  // namespace lowbit
