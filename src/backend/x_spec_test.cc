#include "backend/x_spec.h"

#include <gtest/gtest.h>

#include "format/registry.h"
#include "ops/matmul.h"

namespace lowbit {
namespace {

QTensor weight(FormatId format, int64_t group, int64_t k) {
  ValueTensor v;
  v.format = format;
  v.n = 2;
  v.k = k;
  v.scaling.k_block = group;
  v.codes.assign(size_t(v.n * k), 1);
  v.scales.assign(size_t(v.n * (group == Scaling::kAll ? 1 : (k + group - 1) / group)), 0.5f);
  if (format_info(format).kind == ValueKind::kTable)
    for (int i = 0; i < 1 << format_info(format).code_bits; ++i) v.codebook.push_back(float(i));
  auto w = pack(v);
  EXPECT_TRUE(w.has_value()) << (w ? "" : w.error().message());
  return w ? std::move(*w) : QTensor{};
}

/// docs/adr/0225-scales-of-x-that-sums-keep-exact.md: small integers in groups of 128 that are not the row.
TEST(XSpec, ExactScalesGoWithSmallIntegersInGroupsOf128) {
  struct Wanted {
    FormatId format;
    int64_t group, k;
    bool exact;
  };
  for (const Wanted& wanted :
       {Wanted{FormatId::kInt4, 128, 256, true}, Wanted{FormatId::kInt4, 128, 300, true},
        Wanted{FormatId::kUint4, 128, 256, true}, Wanted{FormatId::kInt3, 128, 256, true},
        Wanted{FormatId::kInt3Odd, 128, 256, true}, Wanted{FormatId::kInt2, 128, 256, true},
        Wanted{FormatId::kInt2Odd, 128, 256, true}, Wanted{FormatId::kTernary, 128, 256, true},
        Wanted{FormatId::kBinary, 128, 256, true}, Wanted{FormatId::kInt8, 128, 256, false},
        Wanted{FormatId::kInt4, 64, 256, false}, Wanted{FormatId::kInt4, 32, 256, false},
        Wanted{FormatId::kInt4, 256, 512, false}, Wanted{FormatId::kInt4, Scaling::kAll, 256, false},
        Wanted{FormatId::kInt4, 128, 128, false}, Wanted{FormatId::kCodebook4, 128, 256, false}}) {
    const QTensor w = weight(wanted.format, wanted.group, wanted.k);
    const std::string at = std::string(format_info(wanted.format).name) + " in groups of " +
                           std::to_string(wanted.group) + ", k " + std::to_string(wanted.k);
    EXPECT_EQ(takes_exact_scales(w), wanted.exact) << at;
    const XSpec x = choose_x(w, {.group = 32, .by_weight = true});
    EXPECT_EQ(x.activation, Activation::kInt8) << at;
    EXPECT_EQ(x.group, 32) << at;
    EXPECT_EQ(x.rounding.exact_scales, wanted.exact) << at;
    EXPECT_TRUE(x.rounding.is_default()) << at;
    const MatmulOptions options = host_options(x);
    EXPECT_EQ(options.exact_scales, wanted.exact) << at;
    EXPECT_EQ(options.activation_group, wanted.exact ? 128 : 32) << at;
  }
}

TEST(XSpec, ExactScalesAreNotForOthersWishes) {
  const QTensor w = weight(FormatId::kInt4, 128, 256);
  EXPECT_FALSE(choose_x(w, {.group = 32}).rounding.exact_scales);  // --act int8
  EXPECT_FALSE(choose_x(w, {.group = 32, .by_weight = true, .rounding = {.largest = 7}}).rounding.exact_scales);
  const XSpec floats = choose_x(w, {.activation = Activation::kF32, .group = 32, .by_weight = true});
  EXPECT_EQ(floats.activation, Activation::kF32);
  EXPECT_FALSE(floats.rounding.exact_scales);
}

}  // namespace
}  // namespace lowbit
