#include "calibrate/layer_fit.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lowbit
