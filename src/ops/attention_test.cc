#include "ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/float.h"
#include "base/rng.h"
#include "kernels/registry.h"

namespace lowbit {
namespace {

struct Problem {
  AttentionShape shape;
  int64_t positions;
  std::vector<float> q, k, v;  // [positions, heads * d], [positions, kv_heads * d]
};

std::vector<float> random_floats(Rng& rng, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = float(1.5 * rng.normal());
  return x;
}

Problem make_problem(int64_t heads, int64_t kv_heads, int64_t d, int64_t positions) {
  Rng rng(3);
  Problem p;
  p.shape = {heads, kv_heads, d, float(1 / std::sqrt(double(d)))};
  p.positions = positions;
  p.q = random_floats(rng, positions * heads * d);
  p.k = random_floats(rng, positions * kv_heads * d);
  p.v = random_floats(rng, positions * kv_heads * d);
  return p;
}

/// Layer 1 of 2, so that a wrong layer shows. Calls of `call` queries each.
std::vector<float> run(const Problem& p, int64_t call, Isa isa, int threads) {
  const VectorOps& ops = vector_ops(isa);
  ThreadPool pool(threads);
  const AttentionShape& s = p.shape;
  auto cache = KvCache::make(uniform_kv_groups(2, s.kv_heads, s.head_dim), p.positions);
  auto attention = Attention::make(ops, s, pool);
  EXPECT_TRUE(cache && attention);
  const int64_t kv = s.kv_heads * s.head_dim, width = s.heads * s.head_dim;
  std::vector<float> out(p.q.size(), -1.0f);
  for (int64_t i = 0; i < p.positions; i += call) {
    const int64_t m = std::min(call, p.positions - i);
    EXPECT_TRUE(cache->reserve(m));
    EXPECT_TRUE(attention->reserve(i + m));
    cache->store(ops, 1, i, m, p.k.data() + i * kv, p.v.data() + i * kv, kv, pool);
    attention->run({1, i, m, p.q.data() + i * width, out.data() + i * width}, *cache);
    cache->commit(m);
  }
  return out;
}

std::vector<double> naive(const Problem& p) {
  const AttentionShape& s = p.shape;
  const size_t d = size_t(s.head_dim), heads = size_t(s.heads), kv_heads = size_t(s.kv_heads);
  std::vector<double> out(p.q.size());
  for (size_t m = 0; m < size_t(p.positions); ++m)
    for (size_t h = 0; h < heads; ++h) {
      const size_t kv = h / (heads / kv_heads) * d;
      std::vector<double> w(m + 1);
      double sum = 0;
      for (size_t t = 0; t <= m; ++t) {
        double dot = 0;
        for (size_t i = 0; i < d; ++i)
          dot += double(p.q[(m * heads + h) * d + i]) * f16_to_f32(f32_to_f16(p.k[t * kv_heads * d + kv + i]));
        w[t] = std::exp(dot * s.scale);
        sum += w[t];
      }
      for (size_t t = 0; t <= m; ++t)
        for (size_t i = 0; i < d; ++i)
          out[(m * heads + h) * d + i] += w[t] / sum * f16_to_f32(f32_to_f16(p.v[t * kv_heads * d + kv + i]));
    }
  return out;
}

TEST(Attention, EqualsDoubleLoops) {
  for (const Problem& p : {make_problem(4, 2, 16, 150), make_problem(9, 3, 64, 129), make_problem(3, 3, 10, 65),
                           make_problem(8, 1, 128, 70)}) {
    const auto want = naive(p);
    const auto got = run(p, p.positions, best_isa(), 2);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << i;
  }
}

TEST(Attention, SameBitsForAnyCutIsaAndThreads) {
  const Problem p = make_problem(6, 2, 24, 200);
  const auto want = run(p, 200, Isa::kScalar, 1);
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx}) {
    if (!isa_available(isa)) continue;
    for (int threads : {1, 2, 5, 8})
      for (int64_t call : {1, 2, 3, 7, 64, 65, 200}) {
        const auto got = run(p, call, isa, threads);
        ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
            << isa_name(isa) << " threads " << threads << " call " << call;
      }
  }
}

TEST(Attention, LongContextsShrinkTheQueryBlock) {
  // 8 heads of one kv head and 20000 positions pass the score budget of a worker.
  const AttentionShape s{8, 1, 8, 0.35f};
  const int64_t positions = 20000;
  ThreadPool pool(2);
  const VectorOps& ops = vector_ops(best_isa());
  auto cache = KvCache::make(uniform_kv_groups(1, 1, 8), positions);
  auto attention = Attention::make(ops, s, pool);
  ASSERT_TRUE(cache && attention);
  Rng rng(4);
  const auto k = random_floats(rng, positions * 8), v = random_floats(rng, positions * 8),
             q = random_floats(rng, 5 * 64);
  ASSERT_TRUE(cache->reserve(positions));
  ASSERT_TRUE(attention->reserve(positions));
  cache->store(ops, 0, 0, positions, k.data(), v.data(), 8, pool);
  std::vector<float> block(5 * 64), single(5 * 64);
  attention->run({0, positions - 5, 5, q.data(), block.data()}, *cache);
  for (int64_t r = 0; r < 5; ++r)
    attention->run({0, positions - 5 + r, 1, q.data() + r * 64, single.data() + r * 64}, *cache);
  EXPECT_EQ(block, single);
}

}  // namespace
}  // namespace lowbit
