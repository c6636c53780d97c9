// Choices and refusals of kernels for products on a GPU, and the other operations of a device.

#include <gtest/gtest.h>

#include "tests/conformance/cuda/device_matmul_cases.h"

namespace lowbit {
namespace {

using namespace device_cases;

/// The choice, told without a device: a GEMV for few rows and tensor cores for more, or one kernel for both.
TEST(DeviceMatmul, ChoosesAKernelForFewAndOneForManyRows) {
  if (!cuda::built()) GTEST_SKIP() << "a build without CUDA";
  struct Wanted {
    FormatId format;
    int64_t group;
    ZeroKind zero;
    DeviceMatmulOptions options;
    const char *name, *in_reason;
  };
  const Wanted all[] = {
      {FormatId::kTernary, 0, ZeroKind::kNone, {}, "matmul_ternary_a8_row__cuda_gemv16x8", "cuda_tensor (64 rows: sm"},
      {FormatId::kInt4, 128, ZeroKind::kNone, {}, "matmul_int4_a8_g128__cuda_tensor", "64 rows: sm"},
      {FormatId::kInt4,
       32,
       ZeroKind::kNone,
       {},
       "matmul_int4_a8_g32__cuda_gemv16x8",
       "cuda_tensor (64 rows: sm80_128x64)"},
      {FormatId::kInt4,
       64,
       ZeroKind::kOffset,
       {},
       "matmul_int4_a8_g64__cuda_gemv16x8",
       "cuda_tensor (64 rows: sm80_128x64)"},
      {FormatId::kInt2, 64, ZeroKind::kNone, {Activation::kF32}, "matmul_int2_af32_g64__cuda_tensor", "64 rows: sm"},
      {FormatId::kFp8,
       64,
       ZeroKind::kNone,
       {Activation::kF32},
       "matmul_fp8_af32_g64__cuda_tensor",
       "E4M3 weights, exact"},
      {FormatId::kFp8, 40, ZeroKind::kNone, {Activation::kF32}, "matmul_fp8_af32_g40__cuda_warp", "multiples of 16"},
      {FormatId::kInt4, 20, ZeroKind::kNone, {}, "matmul_int4_a8_g20__cuda_warp", "groups that are not 32, 64"},
      {FormatId::kInt4,
       0,
       ZeroKind::kNone,
       {Activation::kInt8, 0, true},
       "matmul_int4_a8_row__cuda_warp",
       "asked for"}};
  for (const Wanted& wanted : all) {
    Case c;
    c.format = wanted.format;
    c.scaling.k_block = wanted.group == 0 ? int64_t{Scaling::kAll} : wanted.group;
    c.scaling.zero = wanted.zero;
    c.n = c.ldy = 256;
    c.k = c.ldx = 640;
    const auto choice = choose_device_kernel(conformance::random_weights(c), wanted.options);
    ASSERT_TRUE(choice.has_value()) << wanted.name;
    EXPECT_EQ(choice->name, wanted.name);
    EXPECT_NE(choice->reason.find(wanted.in_reason), std::string::npos) << wanted.name << ": " << choice->reason;
  }
  Case c;
  c.n = c.ldy = 256;
  c.k = c.ldx = 640;
  DeviceMatmulOptions decoding;
  decoding.most_rows = 8;  // one order of the weight is enough
  const auto choice = choose_device_kernel(conformance::random_weights(c), decoding);
  ASSERT_TRUE(choice.has_value());
  EXPECT_EQ(choice->reason.find("cuda_tensor"), std::string::npos) << choice->reason;
  c.format = FormatId::kTernary;
  for (const auto& [most_rows, kernel] :
       {std::pair{1, "__cuda_gemv16x1"}, {8, "__cuda_gemv16x8"}, {0, "__cuda_gemv16x8"}}) {
    decoding.most_rows = most_rows;  // counted codes serve one row only
    const auto of_ternary = choose_device_kernel(conformance::random_weights(c), decoding);
    ASSERT_TRUE(of_ternary.has_value());
    EXPECT_NE(of_ternary->name.find(kernel), std::string::npos) << of_ternary->name;
  }
}

/// Names say how many columns share a scale of x, not how many a kernel adds up at a time.
TEST(DeviceMatmul, NamesOfExactScales) {
  if (!cuda::built()) GTEST_SKIP() << "a build without CUDA";
  Case c;
  c.scaling.k_block = 128;
  c.n = c.ldy = 256;
  c.k = c.ldx = 640;
  const QTensor w = conformance::random_weights(c);
  for (const auto& [exact, fallback, name] : {std::tuple{false, false, "matmul_int4_a8g32_g128__cuda_"},
                                              {false, true, "matmul_int4_a8g32_g128__cuda_warp"},
                                              {true, false, "matmul_int4_a8g128_g128__cuda_tensor"},
                                              {true, true, "matmul_int4_a8g128_g128__cuda_warp"}}) {
    const auto choice = choose_device_kernel(w, {.activation_group = 32, .fallback = fallback, .exact_scales = exact});
    ASSERT_TRUE(choice.has_value());
    EXPECT_EQ(choice->name.find(name), 0U) << choice->name;
  }
}

/// Tables of integers are multiplied as these, on tensor cores, which look indices up where x has a scale per 32
/// columns, and find them on a trellis of two bits; others as floats.
TEST(DeviceMatmul, TablesOfIntegers) {
  if (!cuda::built()) GTEST_SKIP() << "a build without CUDA";
  for (const FormatId format :
       {FormatId::kCodebook4, FormatId::kCodebook3, FormatId::kCodebook2, FormatId::kTrellis2, FormatId::kTrellis3})
    for (const auto& [group, kernel] : {std::pair{64, "_a8g32_g64__cuda_tensor"}, {192, "_a8g32_g192__cuda_tensor"}}) {
      Case c;
      c.format = format;
      c.scaling.k_block = group;
      c.n = c.ldy = 64;
      c.k = c.ldx = 384;
      QTensor w = conformance::random_weights(c);
      for (size_t i = 0; i < w.codebook.size(); ++i) w.codebook[i] = float(i) * 9 - 60;
      const DeviceMatmulOptions options{.activation_group = 32};
      const auto integers = choose_device_kernel(w, options);
      ASSERT_TRUE(integers.has_value());
      const FormatId in_memory = format == FormatId::kTrellis2 ? format : format_info(format).expanded;
      EXPECT_EQ(integers->name, std::string("matmul_") + format_info(in_memory).name + kernel);
      const auto per_row = choose_device_kernel(w, {});
      ASSERT_TRUE(per_row.has_value());
      EXPECT_NE(per_row->reason.find("becomes int8 in memory"), std::string::npos) << per_row->reason;
      w.codebook[1] = 0.5F;
      const auto floats = choose_device_kernel(w, options);
      ASSERT_TRUE(floats.has_value());
      EXPECT_NE(floats->name.find("cuda_warp"), std::string::npos) << floats->name;
    }
}

TEST(DeviceMatmul, PlansWithExactScalesHaveTheNamesOfTheChoice) {
  LOWBIT_NEEDS_GPU();
  Case c;
  c.scaling.k_block = 128;
  c.n = c.ldy = 256;
  c.k = c.ldx = 640;
  const auto plan =
      DeviceMatmulPlan::make(conformance::random_weights(c), {.activation_group = 32, .exact_scales = true});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->scale_columns(), 128);
  EXPECT_EQ(plan->group(), 32);
  for (const int64_t m : {1, 8, 64, 2048})
    EXPECT_EQ(plan->kernel_name(m).find("matmul_int4_a8g128_g128__cuda_tensor"), 0U) << plan->kernel_name(m);
}

TEST(DeviceMatmul, TrellisesOfTwoBitsTakeTwoBits) {
  LOWBIT_NEEDS_GPU();
  Case c;
  c.format = FormatId::kTrellis2;
  c.scaling.k_block = 128;
  c.n = c.ldy = 256;
  c.k = c.ldx = 1024;
  QTensor w = conformance::random_weights(c);
  for (size_t i = 0; i < w.codebook.size(); ++i) w.codebook[i] = float(i) * 9 - 60;
  const auto plan = DeviceMatmulPlan::make(w, {.activation_group = 32});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->code_bytes(), c.n * c.k / 4);
}

TEST(DeviceMatmul, RefusesWhatDoesNotFit) {
  LOWBIT_NEEDS_GPU();
  Case c;
  const QTensor w = conformance::random_weights(c);
  auto plan = DeviceMatmulPlan::make(w, {});
  ASSERT_TRUE(plan.has_value());
  float y = 0;
  EXPECT_FALSE(plan->run({&y, Element::kInt8, 1, 64, nullptr}, nullptr, &y, Element::kF32, 16, nullptr, nullptr));
  EXPECT_FALSE(plan->run({&y, Element::kF32, 2, 8, nullptr}, nullptr, &y, Element::kF32, 16, nullptr, nullptr));
  EXPECT_FALSE(plan->run({&y, Element::kF32, 1, 64, nullptr}, nullptr, &y, Element::kInt8, 16, nullptr, nullptr));
  EXPECT_TRUE(plan->run({&y, Element::kF32, 0, 64, nullptr}, nullptr, &y, Element::kF32, 16, nullptr, nullptr));
}

TEST(Device, OutOfMemoryIsAnErrorAndNothingIsLost) {
  LOWBIT_NEEDS_GPU();
  const auto all = cuda::devices();
  const auto too_much = cuda::allocate(all[0].memory_bytes * 2, "a test");
  ASSERT_FALSE(too_much.has_value());
  EXPECT_EQ(too_much.error().code, ErrorCode::kOutOfMemory);
  auto little = cuda::allocate(1024, "a test");
  ASSERT_TRUE(little.has_value());
  EXPECT_TRUE(cuda::fill(*little, 7));
  std::vector<uint8_t> back(1024);
  EXPECT_TRUE(cuda::download(back.data(), *little, 1024));
  EXPECT_EQ(back, std::vector<uint8_t>(1024, 7));
}

TEST(Device, QuantizedActivationsEqualTheCpus) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Case c = conformance::random_case(seed);
    if (seed % 8 == 0) c.k = 250 * int64_t(1 + seed), c.ldx = c.k + int64_t(seed % 7);  // a block for each scale
    const std::vector<float> x = conformance::random_activations(c);
    const int64_t group = seed % 3 == 0 ? 32 : std::max<int64_t>(c.k, 1),
                  groups = std::max<int64_t>(1, ceil_div(c.k, group));
    const Codes want = quantize(c, x, group, groups);
    Buffer in = on_device(x.data(), 4 * x.size());
    std::vector<int8_t> codes(size_t(c.m * c.ldx + 1));
    std::vector<float> scales(size_t(c.m * groups + 1));
    Buffer q = on_device(codes.data(), codes.size()), s = on_device(scales.data(), 4 * scales.size());
    ASSERT_TRUE(cuda::quantize_activations(in.data(), Element::kF32, c.m, c.k, c.ldx, seed % 3 == 0 ? 32 : 0, false,
                                           q.as<int8_t>(), c.ldx, s.as<float>(), nullptr));
    ASSERT_TRUE(cuda::download(codes.data(), q, int64_t(codes.size())));
    ASSERT_TRUE(cuda::download(scales.data(), s, int64_t(4 * scales.size())));
    for (size_t i = 0; i < size_t(c.m * groups); ++i) ASSERT_TRUE(same_float(want.scales[i], scales[i])) << c.name();
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t k = 0; k < c.k; ++k)
        ASSERT_EQ(want.values[size_t(m * c.ldx + k)], codes[size_t(m * c.ldx + k)]) << c.name();
  }
}

}  // namespace
}  // namespace lowbit
