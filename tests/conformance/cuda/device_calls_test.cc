// Guarantees for callers of the CUDA kernels: a call may be captured, allocates nothing, waits for nothing, and refuses
// what it cannot do with an error.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/float.h"
#include "base/try.h"
#include "ops/device_matmul.h"
#include "tests/conformance/cuda/on_device.h"
#include "tests/conformance/matmul_cases.h"

namespace lowbit {
namespace {

using conformance::Case;
using cuda::Element;

struct Wanted {
  FormatId format;
  int64_t group, n, k, m;
  Activation activation;
};
const Wanted kCalls[] = {{FormatId::kTernary, 0, 2560, 2560, 1, Activation::kInt8},
                         {FormatId::kTernary, 0, 13824, 2560, 1, Activation::kInt8},
                         {FormatId::kInt4, 128, 1024, 2048, 1, Activation::kInt8},
                         {FormatId::kInt4, 0, 1024, 2048, 8, Activation::kInt8},
                         {FormatId::kInt4, 128, 1024, 2048, 16, Activation::kInt8},
                         {FormatId::kInt4, 128, 1024, 2048, 64, Activation::kInt8},
                         {FormatId::kInt4, 64, 1024, 2048, 64, Activation::kF32},
                         {FormatId::kInt8, 0, 1024, 2048, 256, Activation::kInt8},
                         {FormatId::kFp8, 64, 512, 512, 3, Activation::kF32}};

/// A plan with all that its calls need.
struct Ready {
  DeviceMatmulPlan plan;
  Buffer x, y, workspace;
  int64_t m;

  Status run(void* stream, bool overlap) const {
    return plan.run({x.data(), Element::kF16, m, plan.k(), nullptr}, nullptr, const_cast<uint8_t*>(y.as<uint8_t>()),
                    Element::kF32, plan.n(),
                    workspace.empty() ? nullptr : const_cast<uint8_t*>(workspace.as<uint8_t>()), stream, overlap);
  }
  std::vector<uint8_t> output() const {
    std::vector<uint8_t> bytes(static_cast<size_t>(y.size()));
    EXPECT_TRUE(cuda::download(bytes.data(), y, y.size()));
    return bytes;
  }
};

Result<Ready> make_ready(const Wanted& wanted) {
  Case c;
  c.format = wanted.format;
  c.scaling.k_block = wanted.group == 0 ? int64_t{Scaling::kAll} : wanted.group;
  c.m = wanted.m;
  c.n = c.ldy = wanted.n;
  c.k = c.ldx = wanted.k;
  LOWBIT_TRY_ASSIGN(DeviceMatmulPlan plan,
                    DeviceMatmulPlan::make(conformance::random_weights(c), {wanted.activation, 0, false, 0}));
  std::vector<uint16_t> x;
  for (const float v : conformance::random_activations(c)) x.push_back(f32_to_f16(std::clamp(v, -1000.0f, 1000.0f)));
  LOWBIT_TRY_ASSIGN(Buffer on_device, cuda::allocate(2 * wanted.m * wanted.k, "x"));
  LOWBIT_TRY(cuda::upload(on_device, x.data(), 2 * wanted.m * wanted.k));
  LOWBIT_TRY_ASSIGN(Buffer y, cuda::allocate(4 * wanted.m * wanted.n, "y"));
  Buffer workspace;
  if (const int64_t bytes = plan.workspace_bytes(wanted.m, Element::kF16); bytes > 0) {
    LOWBIT_TRY_ASSIGN(workspace, cuda::allocate(bytes, "workspace"));
  }
  return Ready{std::move(plan), std::move(on_device), std::move(y), std::move(workspace), wanted.m};
}

/// Capturing fails where a call allocates or waits; what was captured gives the bits of the call itself.
TEST(DeviceCalls, AGraphGivesTheBitsOfTheCall) {
  LOWBIT_NEEDS_GPU();
  auto stream = cuda::Stream::create();
  ASSERT_TRUE(stream.has_value());
  for (const Wanted& wanted : kCalls)
    for (const bool overlap : {false, true}) {
      auto ready = make_ready(wanted);
      ASSERT_TRUE(ready.has_value()) << ready.error().message();
      const std::string name = ready->plan.kernel_name(wanted.m);
      ASSERT_TRUE(cuda::fill(ready->y, 0xff));
      ASSERT_TRUE(ready->run(stream->handle(), overlap));
      ASSERT_TRUE(cuda::synchronize(stream->handle())) << name;
      const auto eager = ready->output();
      ASSERT_TRUE(cuda::fill(ready->y, 0xff));
      ASSERT_TRUE(cuda::Graph::begin(stream->handle()));
      Status status;
      for (int i = 0; i < 3 && status; ++i) status = ready->run(stream->handle(), overlap);
      auto graph = cuda::Graph::end(stream->handle());
      ASSERT_TRUE(status) << name << ": " << status.error().message();
      ASSERT_TRUE(graph.has_value()) << name << ": " << graph.error().message();
      ASSERT_TRUE(graph->launch(stream->handle()));
      ASSERT_TRUE(cuda::synchronize(stream->handle())) << name;
      EXPECT_EQ(eager, ready->output()) << name << " m " << wanted.m;
    }
}

/// A call costs a launch: far less than an allocation (100 us and more) or waiting for the work before it.
TEST(DeviceCalls, EagerTakesNoLongerThanALaunchMore) {
  LOWBIT_NEEDS_GPU();
  constexpr int kCalled = 200;
  constexpr double kLaunchSeconds = 20e-6;  // with room for a slow host
  auto stream = cuda::Stream::create();
  ASSERT_TRUE(stream.has_value());
  auto ready = make_ready(kCalls[0]);
  ASSERT_TRUE(ready.has_value());
  ASSERT_TRUE(cuda::Graph::begin(stream->handle()));
  for (int i = 0; i < kCalled; ++i) ASSERT_TRUE(ready->run(stream->handle(), true));
  auto graph = cuda::Graph::end(stream->handle());
  ASSERT_TRUE(graph.has_value());
  ASSERT_TRUE(graph->time(stream->handle(), 1).has_value());
  const auto in_graph = graph->time(stream->handle(), 5);
  ASSERT_TRUE(in_graph.has_value());
  double eager = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    ASSERT_TRUE(cuda::synchronize(stream->handle()));
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalled; ++i) ASSERT_TRUE(ready->run(stream->handle(), true));
    ASSERT_TRUE(cuda::synchronize(stream->handle()));
    eager = std::min(eager, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  EXPECT_LE(eager / kCalled, *in_graph / 5 / kCalled + kLaunchSeconds);
}

TEST(DeviceCalls, SizesThatAreNegativeOrHugeAreErrors) {
  if (!cuda::built()) GTEST_SKIP() << "a build without CUDA";
  uint8_t byte = 0;
  float number = 0;
  for (const int64_t huge : {int64_t{-1}, (int64_t{1} << 30) + 1, int64_t{1} << 62}) {
    for (int which = 0; which < 3; ++which) {
      cuda::QuantizedMm call;
      call.input = &number;
      call.weight = &byte;
      call.output = &number;
      call.m = call.n = call.k = 1;
      (which == 0 ? call.m : which == 1 ? call.n : call.k) = huge;
      call.input_stride = call.output_stride = call.weight_stride = int64_t{1} << 30;
      const Status status = cuda::quantized_mm(4, call);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    }
  }
  cuda::QuantizedMm call;  // overlapping rows
  call.input = &number;
  call.weight = &byte;
  call.output = &number;
  call.m = 2;
  call.n = 2;
  call.k = 64;
  call.input_stride = 64;
  call.output_stride = 2;
  call.weight_stride = 31;
  EXPECT_FALSE(cuda::quantized_mm(4, call));
  call.weight_stride = 32;
  call.input_stride = 63;
  EXPECT_FALSE(cuda::quantized_mm(4, call));
  call.input_stride = 64;
  call.output_stride = 1;
  EXPECT_FALSE(cuda::quantized_mm(4, call));
}

}  // namespace
}  // namespace lowbit
