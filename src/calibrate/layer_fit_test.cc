#include "calibrate/layer_fit.h"

#include <gtest/gtest.h>

#include <utility>

namespace lowbit {
namespace {

/// docs/adr/0019-aligned-targets.md: of itself for formats of up to three bits.
TEST(LayerFit, AutoAlignsFewBits) {
  for (const auto& [format, wanted] :
       {std::pair{FormatId::kBinary, true}, std::pair{FormatId::kInt2, true}, std::pair{FormatId::kInt3, true},
        std::pair{FormatId::kInt4, false}, std::pair{FormatId::kInt8, false}}) {
    QuantizeSpec spec;
    spec.format = format;
    EXPECT_EQ(aligns(spec), wanted) << format_info(format).name;
    EXPECT_FALSE(must_align(spec));
    spec.fit = "refit";
    EXPECT_FALSE(aligns(spec));
    for (const char* name : {"asymmetric", "align"}) {  // the old name
      spec.fit = name;
      EXPECT_TRUE(aligns(spec) && must_align(spec) && needs_moments(spec));
    }
    spec.keep = true;
    EXPECT_FALSE(aligns(spec) || must_align(spec));
  }
}

}  // namespace
}  // namespace lowbit
