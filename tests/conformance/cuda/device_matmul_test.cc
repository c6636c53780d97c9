// CUDA kernels against the CPU reference: every format x scaling x shape x type. Integer products bit for bit, others
// within the bounds of docs/numerics.md. LOWBIT_CONFORMANCE_CASES sets how many random cases run.

#include "ops/device_matmul.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <cstring>

#include "kernels/registry.h"
#include "ops/matmul.h"
#include "tests/conformance/cuda/on_device.h"
#include "tests/conformance/matmul_cases.h"

namespace lowbit {
namespace {

using conformance::Case;
using conformance::Fill;
using conformance::on_device;
using conformance::pick;
using cuda::Element;

ThreadPool& pool() {
  static ThreadPool one(1);
  return one;
}

int64_t case_count() {
  const char* wanted = std::getenv("LOWBIT_CONFORMANCE_CASES");
  return wanted != nullptr ? std::atoll(wanted) : 5000;
}

/// `values` as the element type stores them.
std::vector<uint8_t> stored(const std::vector<float>& values, Element e) {
  std::vector<uint8_t> out(values.size() * size_t(cuda::element_bytes(e)));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = e == Element::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
    if (e == Element::kF32) std::memcpy(out.data() + 4 * i, &values[i], 4);
    if (e != Element::kF32) std::memcpy(out.data() + 2 * i, &half, 2);
  }
  return out;
}
float read_stored(const std::vector<uint8_t>& bytes, Element e, size_t i) {
  if (e == Element::kF32) {
    float f;
    std::memcpy(&f, bytes.data() + 4 * i, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, bytes.data() + 2 * i, 2);
  return e == Element::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
}
float rounded(float v, Element e) { return read_stored(stored({v}, e), e, 0); }

constexpr uint8_t kPoison = 0x5b;

/// What a case becomes on the device.
struct DeviceCase {
  Case c;
  Activation activation = Activation::kInt8;
  Element x = Element::kF32, y = Element::kF32;
  bool quantized_x = false;  // int8 codes come in, made by the CPU
  bool fallback = false, overlap = true;
  int64_t most_rows = 0;
};

std::vector<float> random_bias(const Case& c) {
  std::vector<float> bias(size_t(c.n));
  Rng rng(c.seed, 4);
  for (float& b : bias) b = float(rng.normal());
  return bias;
}

/// x as int8 codes with scales, by the CPU's quantizer.
struct Codes {
  std::vector<int8_t> values;
  std::vector<float> scales;
};
Codes quantize(const Case& c, const std::vector<float>& x, int64_t group, int64_t groups) {
  Codes q{std::vector<int8_t>(size_t(c.m * c.ldx + 1)), std::vector<float>(size_t(c.m * groups + 1))};
  for (int64_t m = 0; m < c.m; ++m)
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * group, n = std::min(group, c.k - first);
      int32_t sum = 0;
      vector_ops(Isa::kScalar)
          .quantize_groups_int8(x.data() + m * c.ldx + first, nullptr, 1.0f, n, n, n,
                                q.values.data() + m * c.ldx + first, &q.scales[size_t(m * groups + g)], &sum);
    }
  return q;
}

struct Outcome {
  std::vector<uint8_t> y;
  std::string kernel;
};

Outcome run_on_device(const DeviceCase& d, const DeviceMatmulPlan& plan, const std::vector<float>& x) {
  const Case& c = d.c;
  Outcome out;
  out.kernel = plan.kernel_name(c.m);
  out.y.assign(size_t((c.m * c.ldy + 1) * cuda::element_bytes(d.y)), kPoison);
  Buffer y = on_device(out.y.data(), out.y.size()), scales, rows_buffer;
  DeviceRows rows{nullptr, d.x, c.m, c.ldx, nullptr};
  if (d.quantized_x) {
    const bool grouped = plan.x_groups();
    const Codes q = quantize(c, x, grouped ? plan.group() : std::max<int64_t>(c.k, 1), grouped ? plan.groups() : 1);
    rows_buffer = on_device(q.values.data(), q.values.size());
    scales = on_device(q.scales.data(), 4 * q.scales.size());
    rows.element = Element::kInt8;
    rows.scales = scales.as<float>();
  } else {
    const auto bytes = stored(x, d.x);
    rows_buffer = on_device(bytes.data(), bytes.size());
  }
  rows.x = rows_buffer.data();
  const auto bias_values = random_bias(c);
  Buffer bias = on_device(bias_values.data(), 4 * bias_values.size()), workspace;
  const int64_t bytes = plan.workspace_bytes(c.m, rows.element);
  if (bytes > 0) workspace = *cuda::allocate(bytes, "test");
  const Status status = plan.run(rows, c.bias ? bias.as<float>() : nullptr, y.data(), d.y, c.ldy,
                                 bytes > 0 ? workspace.as<uint8_t>() : nullptr, nullptr, d.overlap);
  EXPECT_TRUE(status.has_value()) << c.name() << ": " << (status ? "" : status.error().message());
  const Status done = cuda::synchronize(nullptr);
  EXPECT_TRUE(done.has_value()) << c.name() << " " << out.kernel << ": " << (done ? "" : done.error().message());
  EXPECT_TRUE(cuda::download(out.y.data(), y, int64_t(out.y.size())));
  return out;
}

std::vector<float> run_reference(const Case& c, const QTensor& w, const std::vector<float>& x, Activation activation) {
  std::vector<float> y(size_t(c.m * c.ldy + 1));
  auto plan = MatmulPlan::make(w, {activation, Isa::kScalar, true, c.activation_group}, pool());
  EXPECT_TRUE(plan.has_value()) << c.name();
  if (!plan) return y;
  ActivationRows rows;
  EXPECT_TRUE(rows.prepare(plan->activation(), x.data(), c.m, c.k, c.ldx, Isa::kScalar, pool()));
  const auto bias = random_bias(c);
  EXPECT_TRUE(plan->run(rows, c.bias ? bias.data() : nullptr, y.data(), c.ldy, pool()));
  return y;
}

/// Each output in double arithmetic, and the sum of its terms' magnitudes: what float sums are compared with.
struct Exact {
  std::vector<double> values, magnitudes;
};
Exact exact_outputs(const DeviceCase& d, const QTensor& w, const std::vector<float>& x, const DeviceMatmulPlan& plan) {
  const Case& c = d.c;
  std::vector<float> real(size_t(c.n * c.k));
  dequantize_rows(w, 0, c.n, real.data());
  std::vector<double> xs(x.begin(), x.end());
  if (d.activation == Activation::kInt8) {
    const int64_t group = plan.x_groups() ? plan.group() : std::max<int64_t>(c.k, 1),
                  groups = plan.x_groups() ? plan.groups() : 1;
    const Codes q = quantize(c, x, group, groups);
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t k = 0; k < c.k; ++k)
        xs[size_t(m * c.ldx + k)] =
            double(q.values[size_t(m * c.ldx + k)]) * double(q.scales[size_t(m * groups + k / group)]);
  }
  const auto bias = random_bias(c);
  Exact e{std::vector<double>(size_t(c.m * c.n)), std::vector<double>(size_t(c.m * c.n))};
  for (int64_t m = 0; m < c.m; ++m)
    for (int64_t n = 0; n < c.n; ++n) {
      double sum = c.bias ? double(bias[size_t(n)]) : 0, size = std::fabs(sum);
      for (int64_t k = 0; k < c.k; ++k) {
        const double term = xs[size_t(m * c.ldx + k)] * double(real[size_t(n * c.k + k)]);
        sum += term;
        size += std::fabs(term);
      }
      e.values[size_t(m * c.n + n)] = sum;
      e.magnitudes[size_t(m * c.n + n)] = size;
    }
  return e;
}

bool same_float(float a, float b) {
  return (a != a && b != b) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

/// Differences: bit for bit from the reference, or, given exact outputs, by more than 1e-6 of the terms' magnitudes
/// (the zero points' rounding included) and two units of y's type.
int compare(const DeviceCase& d, const std::vector<float>& want, const Outcome& got, const Exact* exact) {
  const Case& c = d.c;
  const double unit = d.y == Element::kF32 ? 0x1p-23 : d.y == Element::kF16 ? 0x1p-10 : 0x1p-7;
  int bad = 0;
  const auto report = [&](int64_t m, int64_t n, float g, double r) {
    if (bad++ == 0)
      ADD_FAILURE() << got.kernel << " at [" << m << ", " << n << "]: " << g << " wanted " << r << "\n"
                    << c.name() << " x " << int(d.x) << (d.quantized_x ? " int8" : "") << " y " << int(d.y);
  };
  for (int64_t m = 0; m < c.m; ++m) {
    for (int64_t n = 0; n < c.n; ++n) {
      const float g = read_stored(got.y, d.y, size_t(m * c.ldy + n)), full = want[size_t(m * c.ldy + n)];
      const float r = rounded(full, d.y);
      if (same_float(g, r)) continue;
      if (exact == nullptr) {
        report(m, n, g, double(r));
        continue;
      }
      const double value = exact->values[size_t(m * c.n + n)], size = exact->magnitudes[size_t(m * c.n + n)];
      if (!(size < 1e37)) continue;  // sums of another order may overflow elsewhere
      const double bound = 1e-6 * size + 2 * unit * std::fabs(value) + (d.y == Element::kF16 ? 0x1p-24 : 0x1p-133);
      if (d.y == Element::kF16 && std::isinf(g) && std::isinf(r)) continue;
      if (!(std::fabs(double(g) - value) <= bound)) report(m, n, g, value);
    }
    const size_t element = size_t(cuda::element_bytes(d.y));
    for (size_t i = size_t(m * c.ldy + c.n) * element; i < size_t((m + 1) * c.ldy) * element; ++i)
      if (got.y[i] != kPoison && bad++ == 0) ADD_FAILURE() << got.kernel << " wrote beside y: " << c.name();
  }
  return bad;
}

struct Counts {
  int64_t compared = 0, gemv = 0, tensor = 0;
};

int compare_case(DeviceCase d, Counts& counts) {
  const QTensor w = conformance::random_weights(d.c);
  std::vector<float> x = conformance::random_activations(d.c);
  const FormatInfo& info = format_info(d.c.format);
  if (d.x != Element::kF32)
    for (float& v : x) v = rounded(v, d.x);
  if (info.kind == ValueKind::kDense) d.activation = Activation::kF32;
  d.quantized_x = d.quantized_x && d.activation == Activation::kInt8;
  auto plan = DeviceMatmulPlan::make(w, {d.activation, d.c.activation_group, d.fallback, d.most_rows});
  EXPECT_TRUE(plan.has_value()) << d.c.name() << ": " << (plan ? "" : plan.error().message());
  if (!plan) return 1;
  const auto want = run_reference(d.c, w, x, d.activation);
  const Outcome got = run_on_device(d, *plan, x);
  ++counts.compared;
  counts.gemv += got.kernel.find("gemv") != std::string::npos;
  counts.tensor += got.kernel.find("tensor") != std::string::npos;
  if (d.activation == Activation::kInt8 && info.kind == ValueKind::kInteger) return compare(d, want, got, nullptr);
  const Exact exact = exact_outputs(d, w, x, *plan);
  return compare(d, want, got, &exact);
}

DeviceCase random_device_case(uint64_t seed) {
  DeviceCase d;
  d.c = conformance::random_case(seed);
  Rng rng(seed, 77);
  d.activation = pick(rng, {Activation::kInt8, Activation::kInt8, Activation::kF32});
  d.x = pick(rng, {Element::kF32, Element::kF16, Element::kBf16});
  d.y = pick(rng, {Element::kF32, Element::kF32, Element::kF16, Element::kBf16});
  d.quantized_x = rng.below(3) == 0;
  d.fallback = rng.below(4) == 0;
  d.overlap = rng.below(2) == 0;
  d.most_rows = d.c.m == 1 && rng.below(2) == 0 ? 1 : 0;
  return d;
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
  EXPECT_EQ(counts.gemv, counts.compared);
}

TEST(DeviceMatmulConformance, LongRowsManyTilesAndRefills) {  // several units of a row, several rounds of buffers
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
     OneRowOfBits) {  // tails of a strip and of a tile, one block of it, both types of loads, all ends
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
        const bool wide =
            info.id == FormatId::kInt8 && d.activation == Activation::kF32;  // bf16 holds no 8-bit codes here
        if (m > 8 && !wide && variant != 3) {
          EXPECT_EQ(counts.tensor, before + 1) << d.c.name();
        }
      }
  }
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
      const auto want = run_reference(d.c, w, x, Activation::kInt8);
      EXPECT_EQ(compare(d, want, run_on_device(d, *plan, x), nullptr), 0);
    }
}

/// What is chosen, told without a device: a GEMV for few rows and tensor cores for more, or one kernel for both.
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
      {FormatId::kFp8, 64, ZeroKind::kNone, {Activation::kF32}, "matmul_fp8_af32_g64__cuda_warp", "f32 activations"},
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
    ASSERT_TRUE(cuda::quantize_activations(in.data(), Element::kF32, c.m, c.k, c.ldx, seed % 3 == 0 ? 32 : 0,
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
