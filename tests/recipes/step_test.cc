// The toy step of docs/adding-a-step.md.
#include <gtest/gtest.h>

#include <vector>

#include "backend/backend.h"
#include "base/cpu.h"

namespace lowbit {
namespace {

TEST(RecipeStep, HasTheSameBitsEverywhere) {
  ThreadPool pool(2);
  const int64_t rows = 37, width = 19;
  std::vector<float> x(size_t(rows * width));
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i) * 0.37f - 100;
  const std::vector<Step> steps = {ScaleStep{0, width, 0.3f}, ScaleStep{0, width, -7.1f}};
  const auto run = [&](Backend& backend) {
    const auto program = *backend.compile(steps, {});
    const auto work = *backend.workspace(steps, {{&width, 1}, rows, 64});
    EXPECT_TRUE(work->write(0, 0, rows, x.data()));
    const SequenceRows sequence{nullptr, 0, 0, rows};
    EXPECT_TRUE(program->run(*work, {{}, {&sequence, 1}, {}}, 0, program->steps()));
    std::vector<float> y(x.size());
    EXPECT_TRUE(work->read(0, 0, rows, y.data()));
    return y;
  };
  const std::vector<float> want = run(*make_ref_backend(pool));
  EXPECT_EQ(want[0], -100 * 0.3f * -7.1f);
  EXPECT_EQ(run(*make_cpu_backend(best_isa(), pool, false)), want);
}

}  // namespace
}  // namespace lowbit
