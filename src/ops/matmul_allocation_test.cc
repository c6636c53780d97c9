// Decoding allocates nothing: once scratch has grown, a step over the same layers takes no memory.

#include <gtest/gtest.h>

#include <vector>

#include "base/cpu.h"
#include "base/test_allocations.h"
#include "ops/matmul.h"
#include "ops/time_matmul.h"

#ifdef LOWBIT_COUNTS_ALLOCATIONS

namespace lowbit {
namespace {

/// int4 rows with one f16 scale per 64 columns, all codes of value 0.
QTensor weight(int64_t n, int64_t k) {
  QTensor w;
  w.format = FormatId::kInt4;
  w.n = n;
  w.k = k;
  w.scaling.k_block = 64;
  w.codes = *Buffer::allocate(n * k / 2, "test");
  w.scales = *Buffer::allocate(2 * n * w.scale_cols(), "test");
  return w;
}

TEST(Allocations, NoneInARepeatedStep) {
  for (const Activation activation : {Activation::kInt8, Activation::kF32})
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const MatmulOptions options{activation, best_isa(), false, 32};
      const auto first = MatmulPlan::make(weight(192, 256), options, pool);
      const auto second = MatmulPlan::make(weight(64, 256), options, pool);
      ASSERT_TRUE(first.has_value() && second.has_value());
      std::vector<float> x(256, 1.0f), y(192);
      ActivationRows rows;
      bool good = true;
      const auto step = [&] {
        x[0] += 1.0f;
        good = good && rows.prepare(activation, x.data(), 1, 256, 256, best_isa(), pool).has_value();
        good = good && first->run(rows, nullptr, y.data(), 192, pool).has_value();
        good = good && second->run(rows, nullptr, y.data(), 192, pool).has_value();
      };
      const int64_t before_first = allocations.load();
      step();
      const int64_t before = allocations.load();
      EXPECT_GT(before, before_first);  // the counter counts: scratch grew
      for (int i = 0; i < 10; ++i) step();
      EXPECT_EQ(allocations.load(), before) << threads << " threads";
      EXPECT_TRUE(good);
    }
}

}  // namespace
}  // namespace lowbit

#endif
