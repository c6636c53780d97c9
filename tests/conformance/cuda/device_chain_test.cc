// A chain of matmuls in one launch against the CPU's matmuls one after the other: bit for bit, launch after launch.

#include "ops/device_matmul_chain.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/float.h"
#include "base/try.h"
#include "ops/matmul.h"
#include "tests/conformance/cuda/on_device.h"
#include "tests/conformance/matmul_cases.h"

namespace lowbit {
namespace {

using conformance::Case;
using cuda::Element;

#define LOWBIT_NEEDS_HOPPER() \
  LOWBIT_NEEDS_GPU();         \
  if (cuda::devices()[0].major < 9) GTEST_SKIP() << "chains of matmuls need compute capability 9"

struct Shape {
  int64_t n, k;
};

struct Chain {
  std::vector<QTensor> weights;
  std::vector<DeviceMatmulPlan> plans;
};

QTensor random_ternary(int64_t n, int64_t k, uint64_t seed) {
  Case c;
  c.format = FormatId::kTernary;
  c.scaling.k_block = Scaling::kAll;
  c.scaling.scale = ScaleKind::kF32;
  c.n = c.ldy = n;
  c.k = c.ldx = k;
  c.seed = seed;
  return conformance::random_weights(c);
}

Chain random_chain(const std::vector<Shape>& shapes, uint64_t seed) {
  Chain chain;
  for (const auto& [n, k] : shapes) {
    chain.weights.push_back(random_ternary(n, k, seed++));
    auto plan = DeviceMatmulPlan::make(chain.weights.back(), {Activation::kInt8, 0, false, 1});
    EXPECT_TRUE(plan.has_value());
    if (plan) chain.plans.push_back(std::move(*plan));
  }
  return chain;
}

std::vector<float> random_row(int64_t k, uint64_t seed) {
  Rng rng(seed, 7);
  std::vector<float> x(static_cast<size_t>(k));
  for (float& v : x) v = float(rng.normal());
  return x;
}

std::vector<float> expected(const Chain& chain, std::vector<float> x, Element between) {
  ThreadPool pool(1);
  std::vector<float> y;
  for (const QTensor& w : chain.weights) {
    if (!y.empty()) x.assign(y.begin(), y.begin() + w.k);
    if (!y.empty() && between == Element::kBf16)
      for (float& v : x) v = bf16_to_f32(f32_to_bf16(v));
    auto plan = MatmulPlan::make(w, {Activation::kInt8, best_isa(), false, 0}, pool);
    EXPECT_TRUE(plan.has_value());
    ActivationRows rows;
    EXPECT_TRUE(rows.prepare(plan->activation(), x.data(), 1, w.k, w.k, best_isa(), pool));
    y.assign(static_cast<size_t>(w.n), 0.0f);
    EXPECT_TRUE(plan->run(rows, nullptr, y.data(), w.n, pool));
  }
  return y;
}

/// NaNs are equal whatever their payload.
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (f32_to_bits(a[i]) != f32_to_bits(b[i]) && !(a[i] != a[i] && b[i] != b[i])) return false;
  return a.size() == b.size();
}

struct Ready {
  DeviceMatmulChain chain;
  Buffer workspace, y;

  static Result<Ready> make(const Chain& chain, Element between) {
    LOWBIT_TRY_ASSIGN(DeviceMatmulChain c, DeviceMatmulChain::make(chain.plans, between));
    LOWBIT_TRY_ASSIGN(Buffer workspace, c.make_workspace());
    LOWBIT_TRY_ASSIGN(Buffer y, cuda::allocate(4 * c.n(), "y"));
    return Ready{std::move(c), std::move(workspace), std::move(y)};
  }
  std::vector<float> result() {
    std::vector<float> got(static_cast<size_t>(chain.n()));
    EXPECT_TRUE(cuda::download(got.data(), y, y.size()));
    EXPECT_TRUE(cuda::fill(y, 0xff));
    return got;
  }
};

void expect_chain(const std::vector<Shape>& shapes, uint64_t seed, Element between) {
  const Chain chain = random_chain(shapes, seed);
  auto ready = Ready::make(chain, between);
  ASSERT_TRUE(ready.has_value()) << ready.error().message();
  for (uint64_t launch = 0; launch < 3; ++launch) {  // both halves of the workspace, and the first again
    const std::vector<float> x = random_row(shapes[0].k, seed + launch);
    const Buffer on = conformance::on_device(x.data(), 4 * x.size());
    ASSERT_TRUE(ready->chain.run(on.data(), Element::kF32, ready->y.as<float>(), ready->workspace, nullptr));
    ASSERT_TRUE(cuda::synchronize(nullptr));
    EXPECT_TRUE(same(expected(chain, x, between), ready->result()))
        << shapes.size() << " matmuls, seed " << seed << ", launch " << launch;
  }
}

TEST(DeviceChain, LayersOfAModelGiveTheBitsOfTheReference) {
  LOWBIT_NEEDS_HOPPER();
  const std::vector<Shape> layer = {{3840, 2560}, {2560, 2560}, {13824, 2560}, {2560, 6912}};
  std::vector<Shape> layers;
  for (int i = 0; i < 3; ++i) layers.insert(layers.end(), layer.begin(), layer.end());
  for (const Element between : {Element::kF32, Element::kBf16}) expect_chain(layers, 1, between);
}

TEST(DeviceChain, OddShapes) {
  LOWBIT_NEEDS_HOPPER();
  for (const Element between : {Element::kF32, Element::kBf16}) {
    expect_chain({{5, 3}}, 2, between);
    expect_chain({{1, 1}, {1, 1}, {1, 1}}, 3, between);
    expect_chain({{255, 257}, {258, 255}, {17, 258}, {4000, 15}, {33, 3999}}, 4, between);
    expect_chain({{7680, 7680}, {7680, 7680}, {100, 7680}}, 5, between);
    for (uint64_t seed = 10; seed < 30; ++seed) {
      Rng rng(seed);
      std::vector<Shape> shapes;
      int64_t k = 1 + int64_t(rng.below(3000));
      for (uint64_t i = 1 + rng.below(12); i > 0; --i) {
        shapes.push_back({1 + int64_t(rng.below(5000)), k});
        k = 1 + int64_t(rng.below(uint64_t(shapes.back().n)));
      }
      expect_chain(shapes, seed, between);
    }
  }
}

TEST(DeviceChain, AsManyAsThereMayBe) {
  LOWBIT_NEEDS_HOPPER();
  expect_chain(std::vector<Shape>(128, Shape{512, 512}), 40, Element::kF32);
}

TEST(DeviceChain, InfinityAndNaNGoThroughAsInTheReference) {
  LOWBIT_NEEDS_HOPPER();
  const Chain chain = random_chain({{300, 256}, {64, 300}, {40, 64}}, 50);
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 0.0f, 1e-38f}) {
    std::vector<float> x = random_row(256, 51);
    if (odd == 0.0f || odd == 1e-38f) std::fill(x.begin(), x.end(), odd);
    x[7] = odd;
    for (const Element between : {Element::kF32, Element::kBf16}) {
      auto ready = Ready::make(chain, between);
      ASSERT_TRUE(ready.has_value()) << ready.error().message();
      const Buffer on = conformance::on_device(x.data(), 4 * x.size());
      ASSERT_TRUE(ready->chain.run(on.data(), Element::kF32, ready->y.as<float>(), ready->workspace, nullptr));
      ASSERT_TRUE(cuda::synchronize(nullptr));
      EXPECT_TRUE(same(expected(chain, x, between), ready->result())) << odd;
    }
  }
}

TEST(DeviceChain, ManyReplaysOfAGraphAndHalfX) {
  LOWBIT_NEEDS_HOPPER();
  const Chain chain = random_chain({{3840, 2560}, {2560, 2560}, {1000, 2000}}, 60);
  auto ready = Ready::make(chain, Element::kBf16);
  ASSERT_TRUE(ready.has_value()) << ready.error().message();
  std::vector<float> x = random_row(2560, 61);
  std::vector<uint16_t> half;
  for (float& v : x) {
    half.push_back(f32_to_bf16(v));
    v = bf16_to_f32(half.back());
  }
  const std::vector<float> want = expected(chain, x, Element::kBf16);
  const Buffer on = conformance::on_device(half.data(), 2 * half.size());
  auto stream = cuda::Stream::create();
  ASSERT_TRUE(stream.has_value());
  ASSERT_TRUE(cuda::Graph::begin(stream->handle()));
  Status status;
  for (int i = 0; i < 3 && status; ++i)
    status = ready->chain.run(on.data(), Element::kBf16, ready->y.as<float>(), ready->workspace, stream->handle());
  auto graph = cuda::Graph::end(stream->handle());
  ASSERT_TRUE(status) << status.error().message();
  ASSERT_TRUE(graph.has_value()) << graph.error().message();
  for (int replay = 0; replay < 400; ++replay) {
    ASSERT_TRUE(graph->launch(stream->handle()));
    if (replay % 40 != 0) continue;
    ASSERT_TRUE(cuda::synchronize(stream->handle()));
    ASSERT_TRUE(same(want, ready->result())) << replay;
  }
  ASSERT_TRUE(cuda::synchronize(stream->handle()));
}

TEST(DeviceChain, RefusesWhatItCannotDo) {
  LOWBIT_NEEDS_HOPPER();
  EXPECT_FALSE(DeviceMatmulChain::make({}, Element::kF32));
  const Chain good = random_chain({{64, 64}, {32, 64}}, 70), bad = random_chain({{64, 64}, {32, 65}}, 71);
  EXPECT_EQ(DeviceMatmulChain::make(bad.plans, Element::kF32).error().code, ErrorCode::kShapeMismatch);
  EXPECT_EQ(DeviceMatmulChain::make(good.plans, Element::kF16).error().code, ErrorCode::kInvalidArgument);
  const Chain tall = random_chain({{400000, 16}}, 72);
  EXPECT_EQ(DeviceMatmulChain::make(tall.plans, Element::kF32).error().code, ErrorCode::kUnsupported);
  auto any_rows = DeviceMatmulPlan::make(good.weights[0], {Activation::kInt8, 0, false, 0});
  ASSERT_TRUE(any_rows.has_value());
  EXPECT_EQ(DeviceMatmulChain::make({&*any_rows, 1}, Element::kF32).error().code, ErrorCode::kUnsupported);
  auto ready = Ready::make(good, Element::kF32);
  ASSERT_TRUE(ready.has_value());
  Buffer none;
  EXPECT_FALSE(ready->chain.run(ready->y.data(), Element::kF32, ready->y.as<float>(), none, nullptr));
  EXPECT_FALSE(ready->chain.run(ready->y.data(), Element::kInt8, ready->y.as<float>(), ready->workspace, nullptr));
}

}  // namespace
}  // namespace lowbit
