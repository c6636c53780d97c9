// CUDA kernels against the CPU reference: every format x scaling x shape x type. Integer products bit for bit, others
// within the bounds of docs/numerics.md. LOWBIT_CONFORMANCE_CASES sets how many random cases run.

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "tests/conformance/cuda/device_matmul_cases.h"

namespace lowbit {
namespace {

using namespace device_cases;

int64_t case_count() {
  const char* wanted = std::getenv("LOWBIT_CONFORMANCE_CASES");
  return wanted != nullptr ? std::atoll(wanted) : 5000;
}

TEST(DeviceMatmulConformance, RandomCases) {
  LOWBIT_NEEDS_GPU();
  Counts counts;
  int bad = 0;
  for (int64_t i = 0; i < case_count() && bad < 5; ++i)
    bad += compare_case(random_device_case(uint64_t(i)), counts) > 0;
  EXPECT_EQ(bad, 0);
  std::printf("%lld cases, %lld of them on the GEMV kernel, %lld on tensor-core kernels\n",
              static_cast<long long>(counts.compared), static_cast<long long>(counts.gemv),
              static_cast<long long>(counts.tensor));
}

TEST(DeviceMatmulConformance, EveryFormatMeetsEveryGroupRowCountAndType) {
  LOWBIT_NEEDS_GPU();
  Counts counts;
  int bad = 0;
  for (const FormatInfo& info : formats()) {
    if (!info.canonical && info.kind != ValueKind::kDense) continue;
    for (int64_t group : {int64_t{Scaling::kAll}, int64_t{32}, int64_t{64}, int64_t{128}})
      for (int64_t m : {1, 2, 3, 5, 8, 9, 17, 70})
        for (Element y : {Element::kF32, Element::kF16, Element::kBf16}) {
          DeviceCase d;
          d.c.format = info.id;
          d.c.scaling.k_block = group;
          d.c.m = m;
          d.c.n = 70;
          d.c.k = d.c.ldx = 203;
          d.c.ldy = 70;
          d.c.seed = uint64_t(1000 + m);
          d.x = y;
          d.y = y;
          if ((bad += compare_case(d, counts)) > 5) return;
        }
  }
  EXPECT_EQ(bad, 0);
}

/// Groups of x that are no multiple of 32, and tables of integers: their kernels have a group's room, and look up.
TEST(DeviceMatmulConformance, OddGroupsAndTables) {
  LOWBIT_NEEDS_GPU();
  Counts counts;
  int bad = 0;
  for (const FormatId format : {FormatId::kInt8, FormatId::kInt4, FormatId::kInt3, FormatId::kInt2,
                                FormatId::kCodebook4, FormatId::kCodebook3, FormatId::kTrellis2})
    for (const int64_t group : {20, 32, 40, 48, 64, 72, 128, 192})
      for (const int64_t m : {1, 2, 7, 16, 17, 33, 70})
        for (const auto& [n, k] : {std::pair{70, 203}, {300, 640}, {40, 1152}, {20, 4096}}) {
          DeviceCase d;
          d.c.format = format;
          d.c.scaling.k_block = group;
          d.c.activation_group = 32;
          d.c.m = m;
          d.c.n = d.c.ldy = n;
          d.c.k = d.c.ldx = k;
          d.c.seed = uint64_t(m * 100 + group);
          d.quantized_x = m % 2 == 0;
          if ((bad += compare_case(d, counts)) > 3) return;
        }
  EXPECT_EQ(bad, 0);
  std::printf("%lld cases, %lld on tensor cores\n", static_cast<long long>(counts.compared),
              static_cast<long long>(counts.tensor));
}

/// Kernels that add up groups of 32, and one that converts one sum for 128: both have the reference's bits.
TEST(DeviceMatmulConformance, ExactScales) {
  LOWBIT_NEEDS_GPU();
  Counts counts;
  int bad = 0;
  uint64_t seed = 8000;
  for (const FormatId format :
       {FormatId::kInt4, FormatId::kUint4, FormatId::kInt3, FormatId::kInt3Odd, FormatId::kInt2, FormatId::kTernary})
    for (const ZeroKind zero : {ZeroKind::kNone, ZeroKind::kOffset, ZeroKind::kPointI8})
      for (const int64_t m : {1, 2, 3, 8, 9, 17, 33, 70, 300})
        for (const auto& [n, k] : {std::pair{70, 203}, {300, 640}, {257, 1152}, {20, 4096}}) {
          DeviceCase d;
          d.exact_scales = true;
          d.c.format = format;
          d.c.scaling.k_block = 128;
          d.c.scaling.zero = zero;
          d.c.activation_group = 32;
          d.c.m = m;
          d.c.n = d.c.ldy = n;
          d.c.k = d.c.ldx = k;
          d.c.seed = ++seed;
          d.c.bias = seed % 2 == 0;
          d.c.weights = seed % 3 == 0 ? Fill::kExtreme : Fill::kNormal;
          d.c.activations = seed % 5 == 0 ? Fill::kExtreme : seed % 7 == 0 ? Fill::kDenormal : Fill::kNormal;
          d.quantized_x = seed % 3 != 1;
          d.fallback = seed % 11 == 0;
          d.most_rows = m == 1 && seed % 4 == 0 ? 1 : 0;
          if (!d.quantized_x) d.x = std::array{Element::kF32, Element::kF16, Element::kBf16}[seed / 3 % 3];
          if ((bad += compare_case(d, counts)) > 3) return;
        }
  EXPECT_EQ(bad, 0);
  std::printf("%lld cases, %lld on tensor cores\n", static_cast<long long>(counts.compared),
              static_cast<long long>(counts.tensor));
}

TEST(DeviceMatmulConformance, ScalesOfQueriesKeysAndValues) {
  LOWBIT_NEEDS_GPU();
  Counts counts;
  for (int64_t m = 1; m <= 8; ++m)
    for (const int64_t most_rows : {0, 1}) {
      if (m > 1 && most_rows == 1) continue;
      DeviceCase d;
      d.c = conformance::qkv_case(m);
      d.quantized_x = m % 2 == 1;
      d.most_rows = most_rows;
      EXPECT_EQ(compare_case(d, counts), 0);
    }
  EXPECT_EQ(counts.gemv, counts.compared - 3);  // three, five and seven rows of codes
}

TEST(DeviceMatmulConformance, LongRowsManyTilesAndRefills) {  // several parts of a row, several rounds of buffers
  LOWBIT_NEEDS_GPU();
  Counts counts;
  for (const FormatInfo& info : formats()) {
    if (!info.canonical || info.kind != ValueKind::kInteger) continue;
    for (const auto& [m, n, k, group] : {std::array<int64_t, 4>{1, 19, 40000, 0},
                                         {8, 33, 12300, 0},
                                         {2, 40, 20000, 128},
                                         {1, 6000, 2560, 0},
                                         {3, 4500, 700, 64}}) {
      DeviceCase d;
      d.c.format = info.id;
      d.c.scaling.k_block = group == 0 ? int64_t{Scaling::kAll} : group;
      d.c.activation_group = 0;
      d.c.m = m;
      d.c.n = d.c.ldy = n;
      d.c.k = d.c.ldx = k;
      d.c.seed = uint64_t(n);
      if (n * k > 4000000 && info.id != FormatId::kTernary && info.id != FormatId::kBinary &&
          info.id != FormatId::kInt4)
        continue;
      EXPECT_EQ(compare_case(d, counts), 0);
    }
  }
}

TEST(DeviceMatmulConformance,
     OneTokenOfBits) {  // tails of a strip and of a tile, one block of it, both types of loads, all ends
  LOWBIT_NEEDS_GPU();
  Counts counts;
  uint64_t seed = 7000;
  for (const FormatId format : {FormatId::kBinary, FormatId::kTernary, FormatId::kInt2, FormatId::kInt2Odd})
    for (const auto& [n, k] : {std::array<int64_t, 2>{1, 1},
                               {15, 255},
                               {17, 256},
                               {1003, 1100},
                               {2560, 516},
                               {270, 2560},
                               {2300, 1021},
                               {40, 6912},
                               {33, 8192},
                               {18, 8196},
                               {16, 16384}})
      for (const Element x : {Element::kInt8, Element::kF32, Element::kF16, Element::kBf16}) {
        DeviceCase d;
        d.c.format = format;
        d.c.n = d.c.ldy = n;
        d.c.k = d.c.ldx = k;
        d.c.seed = ++seed;
        d.c.bias = seed % 3 == 0;
        d.quantized_x = x == Element::kInt8;
        d.x = d.quantized_x ? Element::kF32 : x;
        d.y = seed % 5 == 0 ? Element::kBf16 : Element::kF32;
        if (seed % 4 == 0) d.c.scaling.zero = ZeroKind::kOffset;
        for (const int64_t most_rows : {0, 1}) {  // ternary codes for one row are counted
          d.most_rows = most_rows;
          EXPECT_EQ(compare_case(d, counts), 0);
        }
      }
  EXPECT_EQ(counts.gemv, counts.compared);
}

TEST(DeviceMatmulConformance, LargestCodesTimes127DoNotOverflow) {
  LOWBIT_NEEDS_GPU();
  Counts counts;
  for (const FormatInfo& info : formats()) {
    if (!info.canonical || info.kind != ValueKind::kInteger) continue;
    for (int64_t m : {1, 5}) {
      DeviceCase d;
      d.c.format = info.id;
      d.c.scaling.scale = ScaleKind::kF32;
      d.c.m = m;
      d.c.n = d.c.ldy = 33;
      d.c.k = d.c.ldx = 20000;
      d.c.weights = d.c.activations = Fill::kExtreme;
      EXPECT_EQ(compare_case(d, counts), 0);
    }
  }
}

TEST(DeviceMatmulConformance, ManyRowsTakeTheTensorCores) {
  LOWBIT_NEEDS_GPU();
  Counts counts;
  for (const FormatInfo& info : formats()) {
    if (!info.canonical || info.kind != ValueKind::kInteger) continue;
    for (const auto& [m, n, k, group] : {std::array<int64_t, 4>{16, 300, 640, 0},
                                         {33, 200, 1000, 0},
                                         {64, 260, 2048, 128},
                                         {130, 136, 520, 64},
                                         {257, 72, 384, 32},
                                         {7, 150, 1536, 128}})
      for (int variant = 0; variant < 4; ++variant) {
        DeviceCase d;
        d.c.format = info.id;
        d.c.scaling.k_block = group == 0 ? int64_t{Scaling::kAll} : group;
        d.c.scaling.zero = variant == 3 ? ZeroKind::kOffset : ZeroKind::kNone;
        d.c.activation_group = 0;
        d.c.m = m;
        d.c.n = d.c.ldy = n;
        d.c.k = d.c.ldx = k;
        d.c.seed = uint64_t(m + variant);
        d.activation = variant == 2 ? Activation::kF32 : Activation::kInt8;
        d.x = variant == 2 && m % 2 == 0 ? Element::kF16 : Element::kF32;
        d.quantized_x = variant == 1;
        const int64_t before = counts.tensor;
        EXPECT_EQ(compare_case(d, counts), 0);
        if (m > 8 && variant != 3) {
          EXPECT_EQ(counts.tensor, before + 1) << d.c.name();
        }
      }
  }
}

/// Few rows and many, blocks of rows and of columns that end in the middle, NaN among the weights of some rows.
TEST(DeviceMatmulConformance, Fp8TakesTheTensorCores) {
  LOWBIT_NEEDS_GPU();
  Counts counts;
  for (const int64_t m : {1, 2, 7, 9, 16, 33, 64, 130})
    for (const auto& [n, k, group, rows] : {std::array<int64_t, 4>{300, 640, 128, 1},
                                            {260, 2048, 128, 128},
                                            {200, 1000, 64, 1},
                                            {70, 203, Scaling::kAll, 1},
                                            {136, 520, 48, 3}})
      for (const Element x : {Element::kF32, Element::kF16, Element::kBf16}) {
        DeviceCase d;
        d.c.format = FormatId::kFp8;
        d.c.scaling.k_block = group;
        d.c.scaling.n_block = rows;
        d.c.scaling.scale = ScaleKind::kF32;
        d.c.m = m;
        d.c.n = d.c.ldy = n;
        d.c.k = d.c.ldx = k;
        d.c.bias = m % 2 == 0;
        d.c.weights = m == 7 ? Fill::kExtreme : Fill::kNormal;
        d.c.seed = uint64_t(m + n);
        d.activation = Activation::kF32;
        d.x = x;
        d.y = m % 3 == 0 ? Element::kBf16 : Element::kF32;
        EXPECT_EQ(compare_case(d, counts), 0);
      }
  EXPECT_EQ(counts.tensor, counts.compared);
}

/// Formats that only kernels derive hold the same values as a canonical twin.
TEST(DeviceMatmulConformance, DerivedPackingsEqualTheirTwins) {
  LOWBIT_NEEDS_GPU();
  const std::pair<FormatId, FormatId> twins[] = {{FormatId::kInt2Transposed, FormatId::kInt2},
                                                 {FormatId::kInt2Planes, FormatId::kInt2},
                                                 {FormatId::kInt3Planes, FormatId::kInt3},
                                                 {FormatId::kInt4Planes, FormatId::kInt4},
                                                 {FormatId::kTernaryPlanes, FormatId::kTernary}};
  for (const auto& [derived, canonical] : twins)
    for (const auto& [group, fallback] :
         {std::pair{int64_t{0}, false}, {int64_t{64}, false}, {int64_t{20}, false}, {int64_t{0}, true}}) {
      DeviceCase d;
      d.c.format = canonical;
      d.c.scaling.k_block = group;
      d.c.m = 3;
      d.c.n = d.c.ldy = 37;
      d.c.k = d.c.ldx = 331;
      d.fallback = fallback;
      const QTensor w = conformance::random_weights(d.c);
      const std::vector<float> x = conformance::random_activations(d.c);
      std::vector<uint8_t> codes(size_t(d.c.k)), rows(size_t(d.c.n * row_bytes(derived, d.c.k)));
      std::vector<float> scales;
      for (int64_t r = 0; r < d.c.n; ++r) {
        format_ops(canonical).unpack(w.row(r), 0, d.c.k, codes.data());
        for (uint8_t& code : codes) code = code_of(derived, int(format_ops(canonical).values[code]));
        format_ops(derived).pack(codes.data(), d.c.k, rows.data() + r * row_bytes(derived, d.c.k));
        for (int64_t g = 0; g < w.scale_cols(); ++g) scales.push_back(w.scale(r, g));
      }
      auto plan = DeviceMatmulPlan::make_derived(derived, rows.data(), d.c.n, d.c.k, scales.data(), nullptr, w.group(),
                                                 {Activation::kInt8, 0, fallback});
      ASSERT_TRUE(plan.has_value()) << plan.error().message();
      const auto want = run_reference(d, w, x);
      EXPECT_EQ(compare(d, want, run_on_device(d, *plan, x), nullptr), 0);
    }
}

}  // namespace
}  // namespace lowbit
