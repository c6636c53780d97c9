#include "ops/device_codes.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "format/registry.h"

namespace lowbit {
namespace {

QTensor random_tensor(FormatId format, int64_t n, int64_t k, int64_t group) {
  ValueTensor v;
  v.format = format, v.n = n, v.k = k;
  v.scaling.k_block = group, v.scaling.scale = ScaleKind::kF32;
  Rng rng(uint64_t(group), 3);
  v.codes.resize(size_t(n * k));
  for (uint8_t& code : v.codes) code = uint8_t(rng.below(format_ops(format).codes));
  for (int64_t r = 0; r < n; ++r) make_storable(format, v.codes.data() + r * k, k);
  v.codebook.assign(format == FormatId::kCodebook3 ? 8 : 16, 1.0f);
  v.scales.assign(size_t(n * ((k + group - 1) / group)), 1.0f);
  return std::move(pack(v)).value();
}

/// In their wide groups codes mean what they meant, on a trellis, too.
TEST(DeviceCodes, WideGroups) {
  constexpr int64_t kRows = 3, kColumns = 203;
  for (const FormatId format : {FormatId::kCodebook4, FormatId::kCodebook3, FormatId::kTrellis2, FormatId::kTrellis3})
    for (const auto& [group, wide] : {std::pair<int64_t, int64_t>{40, 64}, {20, 32}, {61, 64}, {2, 32}, {72, 128}}) {
      const QTensor w = random_tensor(format, kRows, kColumns, group);
      const int64_t columns = (kColumns + group - 1) / group * wide;
      const auto rows = widen_groups(w, group, wide, columns, nullptr);
      ASSERT_TRUE(rows.has_value());
      std::vector<uint8_t> codes(kColumns), spread(static_cast<size_t>(columns));
      for (int64_t r = 0; r < kRows; ++r) {
        format_ops(format).unpack(w.row(r), 0, kColumns, codes.data());
        format_ops(format).unpack(rows->as<uint8_t>() + r * row_bytes(format, columns), 0, columns, spread.data());
        for (int64_t k = 0; k < kColumns; ++k)
          ASSERT_EQ(codes[size_t(k)], spread[size_t(k / group * wide + k % group)])
              << format_info(format).name << ", group " << group << ", row " << r << ", column " << k;
      }
    }
}

TEST(DeviceCodes, CodesBefore) {
  EXPECT_EQ(codes_before(FormatId::kTrellis2), 3);
  EXPECT_EQ(codes_before(FormatId::kTrellis3), 2);
  EXPECT_EQ(codes_before(FormatId::kInt4), 0);
}

}  // namespace
}  // namespace lowbit
