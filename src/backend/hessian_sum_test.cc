// The Hessian: the same bits on every backend, for any cut of the rows; and rows that go between workspaces and
// buffers.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "backend/backend.h"
#include "base/rng.h"
#include "base/test_bits.h"

namespace lowbit {
namespace {

std::vector<float> random_rows(uint64_t seed, int64_t count) {
  Rng rng(seed);
  std::vector<float> rows(static_cast<size_t>(count));
  for (float& v : rows) v = rng.normal();
  return rows;
}

/// y and z have n columns, or are empty. `cut`: rows of each call.
InputHessian sum_of(Backend& backend, const std::vector<float>& x, const std::vector<float>& y,
                    const std::vector<float>& z, int64_t k, int64_t cut) {
  const auto rows = int64_t(x.size()) / k, n = int64_t(y.size()) / rows;
  const auto sum = *backend.hessian_sum(k, n);
  for (int64_t first = 0; first < rows; first += cut)
    EXPECT_TRUE(sum->add(x.data() + first * k, n == 0 ? nullptr : y.data() + first * n,
                         n == 0 ? nullptr : z.data() + first * n, std::min(cut, rows - first)));
  return *sum->finish("rows");
}

TEST(HessianSum, EveryBackendGivesTheReferencesBits) {
  ThreadPool pool(2);
  const auto ref = make_ref_backend(pool);
  for (const int64_t k : {40, 209}) {  // within a panel of columns; a panel and some
    const int64_t rows = kHessianChunk * (k < 100 ? 2 : 1) + 100;
    const std::vector<float> x = random_rows(1, rows * k);
    for (const int64_t n : {int64_t{0}, int64_t{33}, k, int64_t{70}}) {
      const std::vector<float> y = random_rows(2, rows * n), z = n == k ? x : random_rows(8, rows * n);
      const InputHessian want = sum_of(*ref, x, y, z, k, rows);
      EXPECT_EQ(want.mismatch.size(), size_t(n * k));
      for (int i = 0; i <= int(best_isa()); ++i) {
        if (!isa_available(Isa(i))) continue;
        const auto cpu = make_cpu_backend(Isa(i), pool, false);
        for (const int64_t cut : {int64_t{77}, kHessianChunk, rows}) {
          const InputHessian got = sum_of(*cpu, x, y, z, k, cut);
          EXPECT_EQ(got.k, k);
          EXPECT_TRUE(same_bits(got.h, want.h)) << isa_name(Isa(i)) << ", k " << k << ", cut " << cut;
          EXPECT_TRUE(same_bits(got.mismatch, want.mismatch))
              << isa_name(Isa(i)) << ", n " << n << ", k " << k << ", cut " << cut;
        }
      }
    }
  }
}

/// The reference itself, against doubles.
TEST(HessianSum, IsTheMeanOfProducts) {
  ThreadPool pool(1);
  constexpr int64_t kWidth = 5, kOutputs = 3, kRows = 3000;
  const std::vector<float> x = random_rows(3, kRows * kWidth), y = random_rows(4, kRows * kOutputs),
                           z = random_rows(9, kRows * kOutputs);
  const InputHessian got = sum_of(*make_ref_backend(pool), x, y, z, kWidth, kRows);
  for (int64_t j = 0; j < kWidth; ++j) {
    for (int64_t i = 0; i < kWidth; ++i) {
      double h = 0;
      for (int64_t r = 0; r < kRows; ++r)
        h += double(x[size_t(r * kWidth + i)]) * x[size_t(r * kWidth + j)] / double(kRows);
      EXPECT_NEAR(got.h[size_t(i * kWidth + j)], h, 1e-5);
    }
    for (int64_t i = 0; i < kOutputs; ++i) {
      double d = 0;
      for (int64_t r = 0; r < kRows; ++r)
        d += (double(y[size_t(r * kOutputs + i)]) - z[size_t(r * kOutputs + i)]) * x[size_t(r * kWidth + j)] /
             double(kRows);
      EXPECT_NEAR(got.mismatch[size_t(i * kWidth + j)], d, 1e-5);
    }
  }
}

TEST(HessianSum, RefusesWhatIsNotFinite) {
  ThreadPool pool(2);
  const auto ref = make_ref_backend(pool), cpu = make_cpu_backend(best_isa(), pool, false);
  const std::vector<float> good = random_rows(5, 1200 * 8);
  for (Backend* backend : {ref.get(), cpu.get()}) {
    for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
      for (const bool in_y : {false, true}) {
        std::vector<float> x = good, y = good;
        (in_y ? y[1100 * 4 + 3] : x[1100 * 8 + 3]) = value;
        const auto sum = *backend->hessian_sum(8, 4);
        ASSERT_TRUE(sum->add(x.data(), y.data(), good.data(), 1200));
        const auto refused = sum->finish("layer");
        ASSERT_FALSE(refused.has_value());
        EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
        const char* const what = in_y ? "layer: got NaN or infinity in column 3 of what it aims at"
                                      : "layer: got NaN or infinity as input 3";
        EXPECT_NE(refused.error().message().find(what), std::string::npos) << refused.error().message();
      }
    EXPECT_FALSE((*backend->hessian_sum(8, 0))->finish("layer").has_value());  // no rows
  }
}

TEST(Backend, RowsGoFromBuffersToSlotsAndBack) {
  ThreadPool pool(1);
  const auto ref = make_ref_backend(pool), cpu = make_cpu_backend(best_isa(), pool, false);
  const std::vector<float> x = random_rows(6, 7 * 12);
  for (Backend* backend : {ref.get(), cpu.get()}) {
    const std::array<int64_t, 2> widths = {4, 12};
    const auto work = *backend->workspace({}, {widths, 5, 16});
    for (const RowFormat format : {RowFormat::kF32, RowFormat::kBf16}) {
      RowBuffer from = *backend->allocate_rows(7 * 12, format, "rows");
      RowBuffer to = *backend->allocate_rows(7 * 12, RowFormat::kF32, "rows");
      ASSERT_TRUE(backend->upload(x, from, 0));
      ASSERT_TRUE(work->load(1, 2, 3, from, 12));  // rows 1..3 of the buffer
      ASSERT_TRUE(work->save(1, 3, 2, to, 24));    // the last two of them
      std::vector<float> back(24), want(x.begin() + 24, x.begin() + 48);
      ASSERT_TRUE(backend->download(to, 24, back));
      for (float& v : want) v = as_kept(format, v);
      EXPECT_TRUE(same_bits(back, want));
    }
  }
}

TEST(Backend, PagesComeFromItsPool) {
  ThreadPool pool(1);
  const auto ref = make_ref_backend(pool), cpu = make_cpu_backend(best_isa(), pool, false);
  for (Backend* backend : {ref.get(), cpu.get()}) {
    KvCache cache(*backend->kv_pool(uniform_kv_groups(1, 2, 8), 2, 1), 128);
    EXPECT_TRUE(cache.reserve(128));
    EXPECT_EQ(cache.pool().pages_in_use(), 2);
  }
}

}  // namespace
}  // namespace lowbit
