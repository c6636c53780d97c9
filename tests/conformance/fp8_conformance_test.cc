// FP8 in blocks: every instruction set against the reference, bit for bit, over shapes, tails, blocks and special
// values.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/float.h"
#include "base/rng.h"
#include "kernels/fp8_api.h"
#include "ops/fp8.h"

namespace lowbit {
namespace {

struct Subject {
  const char* name;
  Isa isa;
  const Fp8Kernels* kernels;
};

class Fp8Conformance : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    if (!isa_available(GetParam().isa) || (kernels.pairs && !has_bf16_pairs()))
      GTEST_SKIP() << "this machine lacks " << GetParam().name;
  }
  int64_t below(int64_t n) { return int64_t(rng.below(uint64_t(n))); }
  const Fp8Kernels& kernels = *GetParam().kernels;
  Rng rng{25};
};

enum class Fill { kNormal, kWide, kSpecial, kTies };

float draw(Rng& rng, Fill fill) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  static const float kSpecials[] = {0.0f,    -0.0f,  kInf,    -kInf,  std::nanf(""), 0x1p-120f, 0x1.fp-121f, 0x1p-149f,
                                    -1e-40f, 448.0f, -464.0f, 465.0f, 0x1p-6f,       0x1.8p-9f, -0x1p-10f,   3e38f};
  if (fill == Fill::kSpecial && rng.below(200) == 0) return kSpecials[rng.below(std::size(kSpecials))];
  if (fill == Fill::kTies) return float(int(rng.below(8193)) - 4096) * 0x1p-11f * (rng.below(2) ? 1.0f : 224.0f);
  const float v = float(rng.normal());
  return fill == Fill::kWide ? std::ldexp(v, int(rng.below(280)) - 150) : v;
}

struct Matrix {
  std::vector<uint8_t> bytes;
  Fp8Element element;
};
Matrix random_matrix(Rng& rng, int64_t count, Fp8Element element, Fill fill) {
  Matrix x{std::vector<uint8_t>(size_t(count * fp8_element_bytes(element))), element};
  for (int64_t i = 0; i < count; ++i) {
    const float v = draw(rng, fill);
    const uint16_t half = element == Fp8Element::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
    if (element == Fp8Element::kF32)
      std::memcpy(x.bytes.data() + 4 * i, &v, 4);
    else
      std::memcpy(x.bytes.data() + 2 * i, &half, 2);
  }
  return x;
}

bool same(float a, float b) { return (a != a && b != b) || std::memcmp(&a, &b, sizeof a) == 0; }

TEST_P(Fp8Conformance, Quantize) {
  for (const Fp8Element element : {Fp8Element::kF32, Fp8Element::kF16, Fp8Element::kBf16})
    for (const Fill fill : {Fill::kNormal, Fill::kWide, Fill::kSpecial, Fill::kTies})
      for (int round = 0; round < 150; ++round) {
        const int64_t columns = 1 + below(round % 3 == 0 ? 40 : 700), rows = round % 4 == 0 ? 1 + below(5) : 1;
        const int64_t block = round % 2 == 0 ? 128 : 1 + below(200), ldx = columns + below(3), ldc = columns + below(9);
        const Matrix x = random_matrix(rng, rows * ldx, element, fill);
        const int64_t blocks = (columns + block - 1) / block, step = 1 + below(3);
        const auto run = [&](const Fp8Kernels& k, std::vector<uint8_t>& codes, std::vector<float>& scales) {
          codes.assign(size_t(rows * ldc), 0x55);
          scales.assign(size_t(blocks * step), -5.0f);
          k.quantize({x.bytes.data(), element, rows, columns, ldx, block, round % 5 == 0, codes.data(), ldc,
                      scales.data(), step});
        };
        std::vector<uint8_t> want_codes, codes;
        std::vector<float> want_scales, scales;
        run(kRefFp8, want_codes, want_scales);
        run(kernels, codes, scales);
        ASSERT_EQ(want_codes, codes) << columns << " columns in blocks of " << block;
        for (size_t i = 0; i < scales.size(); ++i) ASSERT_TRUE(same(want_scales[i], scales[i])) << i;
      }
}

TEST_P(Fp8Conformance, DecodeAndDequantize) {
  for (int64_t n = 1; n < 600; n += 1 + below(9)) {
    std::vector<uint8_t> codes(static_cast<size_t>(n));
    for (uint8_t& c : codes) c = uint8_t(rng.below(256));
    const size_t size = codes.size();
    std::vector<float> want(size), got(size);
    for (const float factor : {1.0f, 256.0f}) {
      kRefFp8.decode(codes.data(), n, factor, want.data());
      kernels.decode(codes.data(), n, factor, got.data());
      for (size_t i = 0; i < size; ++i) ASSERT_TRUE(same(want[i], got[i])) << int(codes[i]);
    }
    const int64_t block = n % 2 == 0 ? 128 : 1 + below(400);
    std::vector<float> scales(static_cast<size_t>((n + block - 1) / block));
    for (float& s : scales) s = std::fabs(draw(rng, Fill::kWide));
    scales[0] = n % 7 == 0 ? std::nanf("") : n % 5 == 0 ? 0.0f : scales[0];
    for (const Fp8Element element : {Fp8Element::kF32, Fp8Element::kF16, Fp8Element::kBf16}) {
      kRefFp8.dequantize({codes.data(), n, block, scales.data(), want.data(), element});
      kernels.dequantize({codes.data(), n, block, scales.data(), got.data(), element});
      for (int64_t i = 0; i < n; ++i) {
        const auto at = [&](const std::vector<float>& v) {
          const uint16_t half = reinterpret_cast<const uint16_t*>(v.data())[i];
          return element == Fp8Element::kF32   ? v[size_t(i)]
                 : element == Fp8Element::kF16 ? f16_to_f32(half)
                                               : bf16_to_f32(half);
        };
        ASSERT_TRUE(same(at(want), at(got))) << n << " " << i;
      }
    }
  }
}

struct Product {
  int64_t m, n, k, lda, ldb, ldc, b_rows, ldb_scales;
  std::vector<uint8_t> a, b;
  std::vector<float> a_scales, b_scales;

  /// The outputs, for columns in panels of the kernel's own size.
  std::vector<float> run(const Fp8Kernels& kernels, Fp8Element element) const {
    std::vector<float> values(size_t(m * lda) + 1), c(size_t(m * ldc), 77.0f);
    for (int64_t i = 0; i < m; ++i)
      decode_fp8_row(kernels, a.data() + i * lda, k, kernels.a_factor, kernels.pairs, values.data() + i * lda);
    std::vector<uint8_t> scratch(size_t(kernels.gemm_scratch_bytes(m)) + 64, 0xff);
    Fp8GemmArgs args;
    args.a = values.data(), args.m = m, args.k = k, args.lda = lda;
    args.a_scales = a_scales.data(), args.a_scale_row = (k + 127) / 128;
    args.b = b.data(), args.n = n, args.ldb = ldb;
    args.b_scales = b_scales.data(), args.ldb_scales = ldb_scales, args.b_rows = b_rows;
    args.c = c.data(), args.element = element, args.ldc = ldc;
    args.scratch = scratch.data() + 64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64;
    for (args.n0 = 0; args.n0 < n; args.n0 = args.n1) {
      args.n1 = std::min(args.n0 + 2 * kernels.panel_rows, n);
      kernels.gemm(args);
    }
    return c;
  }
};

Product random_product(Rng& rng, int64_t m, int64_t n, int64_t k, bool special) {
  Product p{m,  n,  k, k + int64_t(rng.below(4)), k + int64_t(rng.below(4)), n + int64_t(rng.below(3)), 1, 0, {},
            {}, {}, {}};
  p.b_rows = rng.below(2) == 0 ? 1 : rng.below(2) == 0 ? 128 : 7;
  const int64_t blocks = (k + 127) / 128;
  p.ldb_scales = blocks + int64_t(rng.below(2));
  for (auto& [codes, count] : {std::pair{&p.a, m * p.lda}, std::pair{&p.b, n * p.ldb}}) {
    codes->resize(size_t(count));
    for (uint8_t& c : *codes) {
      c = uint8_t(rng.below(256));
      if ((c & 0x7f) == 0x7f && (!special || rng.below(40) != 0)) c = 0x3a;
    }
  }
  for (auto& [scales, count] :
       {std::pair{&p.a_scales, m * blocks}, std::pair{&p.b_scales, (n + p.b_rows - 1) / p.b_rows * p.ldb_scales}}) {
    scales->resize(size_t(count));
    for (float& s : *scales) {
      s = std::fabs(draw(rng, Fill::kNormal));
      if (special && rng.below(40) == 0) s = std::fabs(draw(rng, rng.below(2) ? Fill::kSpecial : Fill::kWide));
    }
  }
  return p;
}

TEST_P(Fp8Conformance, Gemm) {
  for (int round = 0; round < 300; ++round) {
    const int64_t m = round % 3 == 0 ? 1 + below(3) : below(40), n = 1 + below(100),
                  k = below(round % 10 == 0 ? 900 : 300);
    const Product p = random_product(rng, m, n, k, round % 2 == 1);
    for (const Fp8Element element : {Fp8Element::kF32, Fp8Element::kBf16, Fp8Element::kF16}) {
      const auto want = p.run(kRefFp8, element), got = p.run(kernels, element);
      for (size_t i = 0; i < want.size(); ++i) {
        if (element == Fp8Element::kF32) {
          ASSERT_TRUE(same(want[i], got[i]))
              << m << " x " << n << " x " << k << " at " << i << ": " << want[i] << " " << got[i];
          continue;
        }
        for (int half = 0; half < 2; ++half) {
          uint16_t a = 0, b = 0;
          std::memcpy(&a, reinterpret_cast<const char*>(&want[i]) + 2 * half, 2);
          std::memcpy(&b, reinterpret_cast<const char*>(&got[i]) + 2 * half, 2);
          const auto value = [&](uint16_t h) { return element == Fp8Element::kF16 ? f16_to_f32(h) : bf16_to_f32(h); };
          ASSERT_TRUE(same(value(a), value(b))) << m << " x " << n << " x " << k << " at " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, Fp8Conformance,
#if defined(__x86_64__)
                         testing::Values(Subject{"avx2", Isa::kAvx2, &kAvx2Fp8},
                                         Subject{"avx512", Isa::kAvx512, &kAvx512Fp8},
                                         Subject{"avx512_bf16", Isa::kAvx512, &kAvx512PairsFp8}),
#else
                         testing::Values(Subject{"ref", Isa::kScalar, &kRefFp8}),
#endif
                         [](const auto& subject) { return std::string(subject.param.name); });

}  // namespace
}  // namespace lowbit
