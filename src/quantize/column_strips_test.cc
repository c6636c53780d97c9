#include "quantize/column_strips.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace lowbit {
namespace {

TEST(ColumnStrips, ProductsEqualThePlainLoopsBits) {
  for (const int64_t k : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65}, int64_t{200}, int64_t{400}}) {
    Rng rng(7, static_cast<uint64_t>(k));
    ColumnStrips m(k);
    std::vector<float> plain(static_cast<size_t>(k * k));
    for (int64_t i = 0; i < k; ++i)
      for (int64_t j = 0; j < k; ++j)
        m.at(i, j) = plain[static_cast<size_t>(i * k + j)] = static_cast<float>(rng.normal());
    constexpr size_t kVectors = 3;
    std::vector<SparseVector> v(kVectors);  // the last one stays empty
    std::vector<std::vector<float>> y(kVectors, std::vector<float>(static_cast<size_t>(m.padded()), 0.25f)), wanted = y;
    for (size_t r = 0; r + 1 < kVectors; ++r)
      for (int64_t i = 0; i < k; ++i)
        if (rng.uniform() < 0.7) v[r].push(static_cast<float>(rng.normal()), i);
    std::vector<float*> targets;
    for (auto& row : y) targets.push_back(row.data());
    const int64_t skipped = m.strips() / 2;
    add_products(m, v, 0, m.strips(), skipped, targets);
    for (size_t r = 0; r < kVectors; ++r)
      for (int64_t j = 0; j < k; ++j) {
        if (j / kStripWidth == skipped) continue;
        for (size_t t = 0; t < v[r].a.size(); ++t)
          wanted[r][static_cast<size_t>(j)] =
              std::fma(v[r].a[t], plain[static_cast<size_t>(v[r].index[t] * k + j)], wanted[r][static_cast<size_t>(j)]);
      }
    EXPECT_EQ(y, wanted) << k;
  }
}

}  // namespace
}  // namespace lowbit
