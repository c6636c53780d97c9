// The toy backend of docs/adding-a-backend.md, against the reference.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "runtime/program_checks.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace {

using namespace program_checks;  // NOLINT

std::unique_ptr<Backend> sealed(ThreadPool& pool) {
  return make_sealed_backend(make_cpu_backend(best_isa(), pool, false));
}

std::vector<float> random_rows(uint64_t seed, int64_t count) {
  Rng rng(seed);
  std::vector<float> rows(static_cast<size_t>(count));
  for (float& v : rows) v = rng.normal();
  return rows;
}

RowBuffer uploaded(Backend& backend, const std::vector<float>& rows) {
  RowBuffer buffer = *backend.allocate_rows(int64_t(rows.size()), RowFormat::kF32, "rows");
  EXPECT_TRUE(backend.upload(rows, buffer, 0));
  return buffer;
}

TEST(RecipeBackend, GivesTheReferencesBits) {
  ThreadPool pool(2);
  for (const Variant& v : variants()) expect_reference(*sealed(pool), v, pool);
  expect_reference_sessions(*sealed(pool), variants().front(), pool, 10);
}

TEST(RecipeBackend, RowsGoFromBuffersToSlotsAndBack) {
  ThreadPool pool(1);
  const auto backend = sealed(pool);
  const std::vector<float> x = random_rows(6, 7 * 12);
  const std::vector<int64_t> widths = {4, 12};
  const auto work = *backend->workspace({}, {widths, 5, 16});
  const RowBuffer from = uploaded(*backend, x);
  EXPECT_NE(std::memcmp(from.bytes.data(), x.data(), x.size() * sizeof(float)), 0);  // or the other tests say nothing
  ASSERT_TRUE(work->load(1, 2, 3, from, 12));                                        // rows 1..3 of the buffer
  std::vector<float> back(24), want(x.begin() + 24, x.begin() + 48);
  ASSERT_TRUE(work->read(1, 3, 2, back.data()));
  EXPECT_TRUE(same_bits(back, want));
  for (const RowFormat format : {RowFormat::kF32, RowFormat::kBf16}) {
    RowBuffer to = *backend->allocate_rows(7 * 12, format, "rows");
    for (float& v : want) v = as_kept(format, v);
    ASSERT_TRUE(work->save(1, 3, 2, to, 24));  // the last two of them
    ASSERT_TRUE(backend->download(to, 24, back));
    EXPECT_TRUE(same_bits(back, want));
    ASSERT_TRUE(backend->upload({x.data() + 24, 24}, to, 24));
    ASSERT_TRUE(backend->download(to, 24, back));
    EXPECT_TRUE(same_bits(back, want));
  }
}

TEST(RecipeBackend, HessianSumsAreTheReferences) {
  ThreadPool pool(2);
  const auto ref = make_ref_backend(pool), backend = sealed(pool);
  const int64_t k = 24, n = 20, rows = kHessianChunk + 100, cut = 700;
  std::vector<float> x = random_rows(1, rows * k), y = random_rows(2, rows * n), z = random_rows(3, rows * n);
  const auto sum_of = [&](Backend& b) {
    const auto sum = *b.hessian_sum(k, n);
    const Buffer bx = uploaded(b, x).bytes, by = uploaded(b, y).bytes, bz = uploaded(b, z).bytes;
    EXPECT_TRUE(sum->add(bx.as<float>(), by.as<float>(), bz.as<float>(), cut));
    EXPECT_TRUE(sum->add(bx.as<float>() + cut * k, by.as<float>() + cut * n, bz.as<float>() + cut * n, rows - cut));
    return sum->finish("layer");
  };
  const auto want = sum_of(*ref), got = sum_of(*backend);
  ASSERT_TRUE(want.has_value() && got.has_value());
  EXPECT_TRUE(same_bits(got->h, want->h));
  EXPECT_TRUE(same_bits(got->mismatch, want->mismatch));
  y[1100 * size_t(n) + 3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sum_of(*backend).error().message(), sum_of(*ref).error().message());
}

TEST(RecipeBackend, RefusesStepsByName) {
  ThreadPool pool(1);
  const auto backend = sealed(pool);
  auto model = load(make_random_model({}), {}, *backend);
  for (Step& step : model->steps)
    if (auto* glu = std::get_if<GluStep>(&step)) glu->glu = Glu::kGeluTanh;
  const auto refused = backend->compile(model->steps, {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().message().find("GELU"), std::string::npos) << refused.error().message();
}

/// Rows of all taps, as the host sees them.
struct Rows final : RowObserver {
  void begin(int64_t, std::span<const int32_t>, int64_t, int64_t) override {}
  void rows(int, const float* x, int64_t m, int64_t k) override { seen.insert(seen.end(), x, x + m * k); }
  void logits(const float*, int64_t, int64_t) override {}
  std::vector<float> seen;
};

TEST(RecipeBackend, ModelsLoadOnIt) {
  const MemorySource source = make_random_model({});
  const auto run = [&](bool on_sealed, std::vector<float>& seen) {
    LoadOptions options;
    options.isa = best_isa();
    options.sealed = on_sealed;
    const auto model = *Transformer::load(source, options);
    const std::vector<int32_t> tokens = {7, 0, 3, 12, 3, 3, 29};
    std::vector<float> logits(tokens.size() * size_t(model->spec().vocab_size));
    auto cache = *model->make_cache();
    Rows rows;
    BatchPart part{tokens, &cache, 0, int64_t(tokens.size()), logits.data(), &rows};
    EXPECT_TRUE(cache.reserve(int64_t(tokens.size())));
    EXPECT_TRUE(model->run({&part, 1}));
    seen = std::move(rows.seen);
    return logits;
  };
  std::vector<float> want_rows, got_rows;
  const std::vector<float> want = run(false, want_rows);
  EXPECT_TRUE(same_bits(run(true, got_rows), want));
  EXPECT_GT(want_rows.size(), 0u);
  EXPECT_TRUE(same_bits(got_rows, want_rows));
}

}  // namespace
}  // namespace lowbit
