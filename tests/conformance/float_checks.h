// Floats of tests: random ones, and whether two rows have the same bits. No include guard: see block_checks.h.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"

namespace lowbit {
namespace {

std::vector<float> random_floats(Rng& rng, int64_t count, double deviation = 1.5) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = static_cast<float>(deviation * rng.normal());
  return values;
}

/// Bits, but for the sign of a zero and what a NaN carries.
void expect_same(const std::vector<float>& got, const std::vector<float>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const bool same = std::memcmp(&got[i], &wanted[i], sizeof(float)) == 0 || (got[i] == 0 && wanted[i] == 0) ||
                      (std::isnan(got[i]) && std::isnan(wanted[i]));
    ASSERT_TRUE(same) << what << ": element " << i << " is " << got[i] << ", not " << wanted[i];
  }
}

}  // namespace
}  // namespace lowbit
