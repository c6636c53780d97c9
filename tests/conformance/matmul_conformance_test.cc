// Matmul kernels of every instruction set this machine has against the reference, bit for bit, through ops/matmul.
// LOWBIT_CONFORMANCE_CASES sets how many random cases run, LOWBIT_CONFORMANCE_FIRST the first seed: cases are
// independent, so that many processes can share them.

#include "ops/matmul.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <memory>

#include "kernels/registry.h"
#include "tests/conformance/matmul_cases.h"
#if defined(LOWBIT_HAS_EMULATED_AMX)
#include "tests/conformance/amx_emulated/table.h"
#endif

namespace lowbit {
namespace {

using conformance::Case;
using conformance::Fill;

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx})
    if (isa_available(isa)) all.push_back(isa);
  return all;
}

ThreadPool& pool(int threads) {
  static std::array<std::unique_ptr<ThreadPool>, 9> pools;
  auto& p = pools[size_t(threads)];
  if (p == nullptr) p = std::make_unique<ThreadPool>(threads);
  return *p;
}

constexpr float kUntouched = 12345.5f;

struct Outcome {
  std::vector<float> y;
  std::string kernel, reason;
};

Outcome run_case(const Case& c, const QTensor& w, const std::vector<float>& x, Activation activation, Isa isa,
                 bool reference, int threads, const KernelTable* first_table = nullptr) {
  Outcome out;
  auto plan = MatmulPlan::make(w, {activation, isa, reference, c.activation_group, first_table}, pool(threads));
  EXPECT_TRUE(plan.has_value()) << c.name() << ": " << (plan ? "" : plan.error().message());
  if (!plan) return out;
  out.kernel = plan->kernel_name();
  out.reason = plan->reason();
  ActivationRows rows;
  EXPECT_TRUE(rows.prepare(plan->activation(), x.data() + c.shift, c.m, c.k, c.ldx, isa, pool(threads)));
  std::vector<float> bias(size_t(c.n + c.shift));
  Rng rng(c.seed, 4);
  for (float& b : bias) b = float(rng.normal());
  out.y.assign(size_t(c.shift + c.m * c.ldy + 1), kUntouched);
  const Status status =
      plan->run(rows, c.bias ? bias.data() + c.shift : nullptr, out.y.data() + c.shift, c.ldy, pool(threads));
  EXPECT_TRUE(status.has_value()) << c.name();
  return out;
}

bool same_float(float a, float b) {
  return (a != a && b != b) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

/// The number of differing elements; prints the first.
int differences(const Case& c, const Outcome& want, const Outcome& got) {
  if (want.y.size() != got.y.size()) return 1;
  int count = 0;
  for (size_t i = 0; i < want.y.size(); ++i)
    if (!same_float(want.y[i], got.y[i]) && count++ == 0)
      ADD_FAILURE() << got.kernel << " differs from " << want.kernel << " at y[" << i << "]: " << got.y[i] << " wanted "
                    << want.y[i] << "\n"
                    << c.name();
  return count;
}

/// Whose kernels `isa` uses for a case.
const char* isa_with_kernel(bool integers, Isa isa) {
  if (integers) return isa_name(isa);
  return isa_name(isa == Isa::kAmx ? Isa::kAvx512 : isa == Isa::kAvxVnni ? Isa::kAvx2 : isa);
}

/// Larger cases are too slow on tiles in memory. LOWBIT_EMULATED_PRODUCTS sets the limit.
int64_t emulated_products() {
  static const int64_t limit = [] {
    const char* wanted = std::getenv("LOWBIT_EMULATED_PRODUCTS");
    return wanted != nullptr ? std::atoll(wanted) : 600000;
  }();
  return limit;
}

int64_t emulated_runs = 0;  // with rows enough for tiles

/// Every instruction set, and a thread count of its own, against the reference on one thread.
int compare_all(const Case& c) {
  const QTensor w = conformance::random_weights(c);
  const std::vector<float> x = conformance::random_activations(c);
  int bad = 0;
  for (Activation activation : {Activation::kInt8, Activation::kF32}) {
    const Outcome want = run_case(c, w, x, activation, Isa::kScalar, true, 1);
    EXPECT_NE(want.kernel.find("__ref"), std::string::npos) << want.kernel;
    for (Isa isa : isas()) {
      if (isa == Isa::kScalar) continue;
      const int threads = 1 + int((c.seed + uint64_t(isa)) % 8);
      const Outcome got = run_case(c, w, x, activation, isa, false, threads);
      bad += differences(c, want, got);
      const bool integers =
          activation == Activation::kInt8 && why_float_sums(w, c.activation_group).empty() && !is_dense(c.format);
      EXPECT_NE(got.kernel.find(std::string("__") + isa_with_kernel(integers, isa)), std::string::npos)
          << got.kernel << ": " << got.reason;  // the forced kernel really ran
      if (activation == Activation::kInt8 && !is_dense(c.format)) {
        EXPECT_EQ(got.kernel.find("_a8f") == std::string::npos, integers) << got.kernel;
        EXPECT_EQ(got.reason.find("sums of floats") == std::string::npos, integers) << got.reason;
      }
    }
#if defined(LOWBIT_HAS_EMULATED_AMX)
    if (activation == Activation::kInt8 && isa_available(Isa::kAvx512) && c.m * c.n * c.k <= emulated_products()) {
      const Outcome got = run_case(c, w, x, activation, Isa::kAvx512, false, 1 + int(c.seed % 3), &kAmxEmulatedTable);
      bad += differences(c, want, got);
      EXPECT_EQ(got.kernel.find("__amx_emulated") != std::string::npos, got.reason.find("asked for: amx_emulated") == 0)
          << got.reason;
      emulated_runs += got.kernel.find("__amx_emulated") != std::string::npos && c.m >= 32;
    }
#endif
  }
  return bad;
}

TEST(MatmulConformance, RandomCases) {
  const char* wanted = std::getenv("LOWBIT_CONFORMANCE_CASES");
  const char* first_seed = std::getenv("LOWBIT_CONFORMANCE_FIRST");
  const int64_t count = wanted != nullptr ? std::atoll(wanted) : 5000, first = first_seed ? std::atoll(first_seed) : 0;
  int bad = 0;
  for (int64_t i = first; i < first + count && bad < 5; ++i) bad += compare_all(conformance::random_case(uint64_t(i)));
  EXPECT_EQ(bad, 0);
  RecordProperty("emulated_tile_runs", std::to_string(emulated_runs));
#if defined(LOWBIT_HAS_EMULATED_AMX)
  if (isa_available(Isa::kAvx512) && count >= 5000 && std::getenv("LOWBIT_EMULATED_PRODUCTS") == nullptr) {
    EXPECT_GT(emulated_runs, 0);
  }
#endif
}

TEST(MatmulConformance, EveryFormatMeetsEveryGroupAndRowCount) {
  int bad = 0;
  for (const FormatInfo& info : formats()) {
    if (!info.canonical) continue;
    for (int64_t group : {int64_t{Scaling::kAll}, int64_t{32}, int64_t{64}, int64_t{128}})
      for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13}) {
        Case c;
        c.format = info.id;
        c.scaling.k_block = group;
        c.m = m;
        c.n = 70;
        c.k = c.ldx = 203;
        c.ldy = 70;
        c.seed = uint64_t(1000 + m);
        if ((bad += compare_all(c)) > 5) return;
      }
  }
}

TEST(MatmulConformance, ScalesOfQueriesKeysAndValues) {
  for (const int64_t m : {1, 8}) {
    const Case c = conformance::qkv_case(m);
    const QTensor w = conformance::random_weights(c);
    ASSERT_EQ(w.scale_rows(), 3);
    EXPECT_EQ(w.scale_row_of(2559), 0);
    EXPECT_EQ(w.scale_row_of(2560), 1);
    EXPECT_EQ(w.scale_row_of(3200), 2);
    EXPECT_EQ(compare_all(c), 0);
  }
}

TEST(MatmulConformance, EveryIntegerFormatOnTiles) {  // of AMX, in memory where the machine has none; codebooks too
  int bad = 0;
  for (const FormatInfo& info : formats()) {
    if (!info.canonical || (info.kind != ValueKind::kInteger && info.kind != ValueKind::kTable)) continue;
    struct Groups {
      int64_t of_weight, of_x, k = 1100;
    };
    for (const auto& [group, activation_group, k] :
         {Groups{Scaling::kAll, 0},
          {Scaling::kAll, 32},
          {32, 0},
          {64, 0},
          {64, 32},
          {128, 32},
          {256, 64},
          {256, 32},
          {192, 0},
          {96, 32},
          {192, 32, 256},  // the last group is short, and begins where one ended
          {40, 0},         // tiles of fewer columns; tokens that end with the last, without scales of x
          {40, 0, 1024},
          {40, 32},
          {48, 32, 576},
          {80, 40, 1536},
          {80, 0},
          {144, 32, 1280},
          {Scaling::kAll, 0, 4500}})  // more than a wide chunk
      for (int64_t m : {16, 31, 33, 96, 101, 112}) {
        Case c;
        c.format = info.id;
        c.scaling.k_block = group;
        c.scaling.zero = m == 33 ? ZeroKind::kOffset : ZeroKind::kNone;
        c.scaling.scale = m == 101 || m == 33 ? ScaleKind::kDouble : ScaleKind::kF16;
        c.activation_group = activation_group;
        c.m = m;
        c.n = c.ldy = 37;
        c.k = c.ldx = k;
        c.bias = m == 31;
        c.seed = uint64_t(2000 + m);
        const QTensor w = conformance::random_weights(c);
        const std::vector<float> x = conformance::random_activations(c);
        const Outcome want = run_case(c, w, x, Activation::kInt8, Isa::kScalar, true, 1);
        for (Isa isa : isas())
          if (isa >= Isa::kAvx512) bad += differences(c, want, run_case(c, w, x, Activation::kInt8, isa, false, 3));
#if defined(LOWBIT_HAS_EMULATED_AMX)
        if (isa_available(Isa::kAvx512))
          bad += differences(c, want, run_case(c, w, x, Activation::kInt8, Isa::kAvx512, false, 2, &kAmxEmulatedTable));
#endif
        if (bad > 5) return;
      }
  }
}

TEST(MatmulConformance, LargestCodesTimes127DoNotOverflow) {
  for (const FormatInfo& info : formats()) {
    if (!info.canonical || info.kind != ValueKind::kInteger) continue;
    for (int64_t m : {1, 5}) {
      Case c;
      c.format = info.id;
      c.scaling.scale = ScaleKind::kF32;
      c.m = m;
      c.n = 33;
      c.k = c.ldx = 20000;
      c.ldy = c.n;
      c.weights = c.activations = Fill::kExtreme;
      EXPECT_EQ(compare_all(c), 0);
    }
  }
}

/// A codebook of `value` alone, k columns in one group, all codes of x 127.
QTensor one_value(FormatId format, float value, int64_t n, int64_t k) {
  ValueTensor v;
  v.format = format;
  v.n = n;
  v.k = k;
  v.scaling.scale = ScaleKind::kF32;
  v.codes.assign(size_t(n * k), 1);
  for (int64_t r = 0; r < n; ++r) make_storable(format, v.codes.data() + r * k, k);
  v.codebook.assign(size_t{1} << format_info(format).code_bits, value);
  v.scales.assign(size_t(n), 1.0f);
  auto w = pack(v);
  EXPECT_TRUE(w.has_value());
  return w ? std::move(*w) : QTensor{};
}

TEST(MatmulConformance, CodebooksAreIntegersAsLongAsNoSumOfFloatsIsRounded) {
  Case c;
  c.n = c.ldy = 33;
  for (const FormatId format : {FormatId::kCodebook4, FormatId::kCodebook3, FormatId::kCodebook2, FormatId::kTrellis2})
    for (const auto& [value, longest] : {std::pair{127.0f, 1040}, {-128.0f, 1032}, {-12.0f, 11008}})
      for (const int64_t k : {longest, longest + 1})
        for (const int64_t m : {1, 2, 9, 40}) {
          c.format = format;
          c.m = m;
          c.k = c.ldx = k;
          const QTensor w = one_value(format, value, c.n, k);
          const std::vector<float> x(size_t(c.m * c.k), 127.0f);
          const Outcome want = run_case(c, w, x, Activation::kInt8, Isa::kScalar, true, 1);
          if (k == longest) {
            EXPECT_EQ(want.y[0], 127 * value * float(k));
          }
          for (Isa isa : isas()) {
            const Outcome got = run_case(c, w, x, Activation::kInt8, isa, false, 2);
            ASSERT_EQ(differences(c, want, got), 0);
            const bool says_floats = got.reason.find("sums of floats: sums of") != std::string::npos;
            ASSERT_EQ(says_floats, k > longest) << got.reason;
            ASSERT_EQ(got.kernel.find("_a8f") != std::string::npos, k > longest && isa != Isa::kScalar) << got.kernel;
          }
        }
  c.k = 64;
  QTensor w = one_value(FormatId::kCodebook4, 3.0f, c.n, c.k);
  EXPECT_EQ(why_float_sums(w, 0), "");
  for (const float other : {0.5f, 128.0f, -129.0f}) {
    w.codebook[15] = other;
    EXPECT_NE(why_float_sums(w, 0).find("not integers of 8 bits"), std::string::npos) << other;
  }
}

TEST(MatmulConformance, TrellisesRunAsTheCodebookOfTheirCodes) {
  for (const FormatId format : {FormatId::kTrellis2, FormatId::kTrellis3})
    for (const int64_t m : {1, 5, 33}) {
      Case c;
      c.format = format;
      c.scaling.k_block = 40;
      c.m = m;
      c.n = c.ldy = 37;
      c.k = c.ldx = 203;
      c.seed = uint64_t(3000 + m);
      const QTensor w = conformance::random_weights(c);
      const Result<QTensor> expanded = expand(w);
      ASSERT_TRUE(expanded) << expanded.error().message();
      EXPECT_EQ(expanded->format, FormatId::kCodebook4);
      EXPECT_EQ(unpack(*expanded)->codes, unpack(w)->codes);
      const std::vector<float> x = conformance::random_activations(c);
      for (const Activation activation : {Activation::kInt8, Activation::kF32})
        for (Isa isa : isas()) {
          const Outcome want = run_case(c, *expanded, x, activation, isa, false, 1);
          const Outcome got = run_case(c, w, x, activation, isa, false, 2);
          EXPECT_EQ(differences(c, want, got), 0);
          const bool own = isa == Isa::kScalar || got.kernel.starts_with("matmul_trellis2_");
          EXPECT_EQ(got.reason.find("becomes codebook4 in memory") == std::string::npos, own)
              << got.kernel << ": " << got.reason;
        }
    }
}

TEST(MatmulConformance, AllOnesTimes127IsExact) {  // bitnet.cpp's int16 sums wrap here
  for (Isa isa : isas()) {
    ValueTensor v;
    v.format = FormatId::kTernary;
    v.n = 1;
    v.k = 65536;
    v.scaling.scale = ScaleKind::kF32;
    v.codes.assign(65536, 2);
    v.scales = {1.0f};
    const auto w = pack(v);
    ASSERT_TRUE(w.has_value());
    Case c;
    c.n = c.ldy = 1;
    c.k = c.ldx = 65536;
    const std::vector<float> x(65536, 127.0f);
    const Outcome got = run_case(c, *w, x, Activation::kInt8, isa, false, 1);
    EXPECT_EQ(got.y[0], 127.0f * 65536.0f) << got.kernel;
  }
}

TEST(MatmulConformance, ReferenceAgreesWithDoubleArithmetic) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Case c = conformance::random_case(seed);
    c.activations = Fill::kNormal;
    c.weights = Fill::kNormal;
    c.shift = 0;
    if (c.format == FormatId::kFp8) c.format = FormatId::kInt8;  // random E4M3 codes hold NaN
    const QTensor w = conformance::random_weights(c);
    const std::vector<float> x = conformance::random_activations(c);
    std::vector<float> real(size_t(c.n * c.k));
    dequantize_rows(w, 0, c.n, real.data());
    const Outcome got = run_case(c, w, x, Activation::kF32, Isa::kScalar, true, 1);
    c.bias = false;
    const Outcome f32 = run_case(c, w, x, Activation::kF32, Isa::kScalar, true, 1);
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t n = 0; n < c.n; ++n) {
        double y = 0, magnitude = 1e-30;
        for (int64_t k = 0; k < c.k; ++k) {
          const double term = double(x[size_t(m * c.ldx + k)]) * real[size_t(n * c.k + k)];
          y += term;
          magnitude += std::fabs(term);
        }
        // Zero points join behind the sums, which cancels: the bound is generous there.
        const double bound = (c.scaling.zero == ZeroKind::kNone ? 1e-5 : 3e-3) * magnitude;
        ASSERT_NEAR(f32.y[size_t(m * c.ldy + n)], y, bound) << c.name();
      }
    EXPECT_EQ(got.y[size_t(c.m * c.ldy)], kUntouched);
  }
}

}  // namespace
}  // namespace lowbit
