#include "calibrate/row_sample.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "calibrate/layer_fit.h"

namespace lowbit {
namespace {

constexpr int64_t kK = 64;

QTensor random_weight(int64_t n) {
  QTensor w;
  w.n = n;
  w.k = kK;
  w.codes = *Buffer::allocate(n * kK * static_cast<int64_t>(sizeof(float)), "weight");
  Rng rng(3);
  for (int64_t i = 0; i < n * kK; ++i) w.codes.as<float>()[i] = rng.normal();
  return w;
}

TEST(RowSample, OneOfSixteenEvenlySpread) {
  for (const auto& [n, wanted] :
       {std::pair<int64_t, int64_t>{3, 3}, {64, 64}, {100, 64}, {1024, 64}, {1600, 100}, {1999, 124}}) {
    const QTensor w = random_weight(n), some = *sample_rows(w);
    ASSERT_EQ(some.n, wanted) << n;
    ASSERT_EQ(some.k, kK);
    std::vector<float> all(static_cast<size_t>(n * kK)), taken(static_cast<size_t>(wanted * kK));
    dequantize_rows(w, 0, n, all.data());
    dequantize_rows(some, 0, wanted, taken.data());
    for (int64_t i = 0; i < wanted; ++i) {
      const int64_t from = i * n / wanted;
      for (int64_t c = 0; c < kK; ++c)
        ASSERT_EQ(taken[static_cast<size_t>(i * kK + c)], all[static_cast<size_t>(from * kK + c)]) << n << " row " << i;
    }
    // From the first row to one of the last: nothing of the layer is left out.
    EXPECT_LE(n - (wanted - 1) * n / wanted, 2 * (n + wanted - 1) / wanted);
  }
}

TEST(RowSample, BytesOfSomeRowsTellThoseOfAll) {
  const QTensor w = random_weight(1024), some = *sample_rows(w);
  ThreadPool pool(1);
  for (const FormatId format : {FormatId::kInt4, FormatId::kCodebook3, FormatId::kCodebook4, FormatId::kTrellis2,
                                FormatId::kTernaryPacked, FormatId::kInt8}) {
    for (const int64_t group : {QuantizeSpec::kRow, int64_t{32}}) {
      QuantizeSpec spec;
      spec.format = format;
      spec.group = group;
      spec.fit = "lsq";
      if (group > 0) spec.scale = ScaleKind::kDouble;
      LayerFit fit;
      const auto whole = fit_layer("w", w, spec, 0, {}, pool, fit), part = fit_layer("w", some, spec, 0, {}, pool, fit);
      ASSERT_TRUE(whole && part);
      EXPECT_EQ(bytes_of_rows(*part, w.n), whole->total_bytes()) << format_info(format).name << " " << group;
    }
  }
}

}  // namespace
}  // namespace lowbit
