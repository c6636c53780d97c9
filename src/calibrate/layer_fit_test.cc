#include "calibrate/layer_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace lowbit {
namespace {

/// docs/adr/0019-aligned-targets.md, docs/adr/0173-fp8-is-calibrated-asymmetrically.md: of itself up to three bits, and
/// for fp8.
TEST(LayerFit, AutoIsAsymmetricForFewBitsAndFp8) {
  for (const auto& [format, wanted] :
       {std::pair{FormatId::kBinary, true}, std::pair{FormatId::kInt2, true}, std::pair{FormatId::kInt3, true},
        std::pair{FormatId::kInt4, false}, std::pair{FormatId::kInt8, false}, std::pair{FormatId::kFp8, true}}) {
    QuantizeSpec spec;
    spec.format = format;
    EXPECT_EQ(is_asymmetric(spec), wanted) << format_info(format).name;
    EXPECT_FALSE(asks_for_asymmetric(spec));
    spec.fit = "refit";
    EXPECT_FALSE(is_asymmetric(spec));
    for (const char* name : {"asymmetric", "align"}) {  // the old name
      spec.fit = name;
      EXPECT_TRUE(is_asymmetric(spec) && asks_for_asymmetric(spec) && needs_hessian(spec));
    }
    spec.keep = true;
    EXPECT_FALSE(is_asymmetric(spec) || asks_for_asymmetric(spec));
  }
}

/// A source of 34 MB: its pages can go while it is read, and are asked for again.
TEST(LayerFit, PagesOfALargeSourceAreDroppedOnTheWay) {
  QTensor source;
  source.format = FormatId::kBf16;
  source.n = 4224;
  source.k = 4096;
  auto codes = Buffer::allocate(2 * source.n * source.k, "test");
  ASSERT_TRUE(codes);
  source.codes = std::move(*codes);
  for (int64_t i = 0; i < source.n * source.k; ++i)
    source.codes.as<uint16_t>()[i] = static_cast<uint16_t>(0x3f00 + i % 97);
  QuantizeSpec spec;
  spec.format = FormatId::kInt4;
  spec.group = 128;
  spec.fit = "absmax";
  ThreadPool pool(2);
  LayerFit fit;
  std::atomic<int> dropped = 0;
  const auto w = fit_layer("w", source, spec, 0, {}, pool, fit, [&] { ++dropped; });
  const auto whole = fit_layer("w", source, spec, 0, {}, pool, fit);
  ASSERT_TRUE(w && whole);
  EXPECT_EQ(dropped, 1);
  EXPECT_TRUE(std::ranges::equal(w->codes.span(), whole->codes.span()));
}

}  // namespace
}  // namespace lowbit
