#include "ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "base/float.h"
#include "base/rng.h"
#include "kernels/registry.h"
#include "kernels/vector_math.h"

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

/// Layer 1 of 2, so that a wrong layer shows.
KvCache filled_cache(const Problem& p, const VectorOps& ops, ThreadPool& pool) {
  const AttentionShape& s = p.shape;
  const int64_t kv = s.kv_heads * s.head_dim;
  auto cache = KvCache::make(uniform_kv_groups(2, s.kv_heads, s.head_dim), p.positions);
  EXPECT_TRUE(cache && cache->reserve(p.positions));
  cache->store(ops, 1, 0, p.positions, p.k.data(), p.v.data(), kv, pool);
  return std::move(*cache);
}

/// Calls of `call` queries each, positions stored as they come.
std::vector<float> run(const Problem& p, int64_t call, Isa isa, int threads, int64_t window = 0) {
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
    attention->run({1, i, m, p.q.data() + i * width, out.data() + i * width, window}, *cache);
    cache->commit(m);
  }
  return out;
}

size_t first_seen(size_t position, int64_t window) {
  return window == 0 || position < size_t(window) ? 0 : position + 1 - size_t(window);
}

std::vector<double> naive(const Problem& p, int64_t window) {
  const AttentionShape& s = p.shape;
  const size_t d = size_t(s.head_dim), heads = size_t(s.heads), kv_heads = size_t(s.kv_heads);
  std::vector<double> out(p.q.size());
  for (size_t m = 0; m < size_t(p.positions); ++m)
    for (size_t h = 0; h < heads; ++h) {
      const size_t kv = h / (heads / kv_heads) * d, first = first_seen(m, window);
      std::vector<double> w(m + 1);
      double sum = 0;
      for (size_t t = first; t <= m; ++t) {
        double dot = 0;
        for (size_t i = 0; i < d; ++i)
          dot += double(p.q[(m * heads + h) * d + i]) * f16_to_f32(f32_to_f16(p.k[t * kv_heads * d + kv + i]));
        w[t] = std::exp(dot * s.scale);
        sum += w[t];
      }
      for (size_t t = first; t <= m; ++t)
        for (size_t i = 0; i < d; ++i)
          out[(m * heads + h) * d + i] += w[t] / sum * f16_to_f32(f32_to_f16(p.v[t * kv_heads * d + kv + i]));
    }
  return out;
}

/// docs/numerics.md as it stands there, for one head of one row: y [d] from keys and values of positions [first, last].
std::vector<float> by_definition(const Problem& p, const float* q, size_t kv_head, size_t first, size_t last) {
  const size_t d = size_t(p.shape.head_dim), row = size_t(p.shape.kv_heads) * d;
  const auto at = [&](const std::vector<float>& rows, size_t t, size_t i) {
    return f16_to_f32(f32_to_f16(rows[t * row + kv_head * d + i]));
  };
  const auto shift = [](float m) { return m == -INFINITY ? 0.0f : m; };
  float M = 0, L = 0;
  std::vector<float> O;
  for (size_t begin = first; begin <= last; begin = begin / 256 * 256 + 256) {
    const size_t end = std::min(last + 1, begin / 256 * 256 + 256);
    std::vector<float> e(end - begin), o(d);
    float m = -INFINITY, l[16] = {};
    for (size_t t = begin; t < end; ++t) {
      float c = 0;
      for (size_t i = 0; i < d; ++i) c = std::fma(q[i], at(p.k, t, i), c);
      e[t - begin] = p.shape.scale * c;
      if (e[t - begin] > m) m = e[t - begin];
    }
    for (size_t t = begin; t < end; ++t) {
      e[t - begin] = exp_f32(e[t - begin] - shift(m));
      l[t % 16] += e[t - begin];
    }
    for (size_t w = 8; w > 0; w /= 2)
      for (size_t i = 0; i < w; ++i) l[i] += l[i + w];
    for (size_t i = 0; i < d; ++i)
      for (size_t t = begin; t < end; ++t) o[i] = std::fma(e[t - begin], at(p.v, t, i), o[i]);
    if (O.empty()) {
      M = m, L = l[0], O = o;
      continue;
    }
    const float next = m > M ? m : M, a = exp_f32(M - shift(next)), b = exp_f32(m - shift(next));
    L = std::fma(l[0], b, L * a);
    for (size_t i = 0; i < d; ++i) O[i] = std::fma(o[i], b, O[i] * a);
    M = next;
  }
  for (float& y : O) y *= 1.0f / L;
  return O;
}

std::vector<float> by_definition(const Problem& p, int64_t window) {
  const size_t d = size_t(p.shape.head_dim), heads = size_t(p.shape.heads);
  std::vector<float> out;
  for (size_t m = 0; m < size_t(p.positions); ++m)
    for (size_t h = 0; h < heads; ++h) {
      const auto y =
          by_definition(p, p.q.data() + (m * heads + h) * d, h / size_t(p.shape.group()), first_seen(m, window), m);
      out.insert(out.end(), y.begin(), y.end());
    }
  return out;
}

/// Equal bits, or NaN in both.
void expect_same(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_TRUE(std::memcmp(&got[i], &want[i], sizeof(float)) == 0 || (std::isnan(got[i]) && std::isnan(want[i])))
        << what << ": element " << i << " is " << got[i] << ", not " << want[i];
}

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx})
    if (isa_available(isa)) all.push_back(isa);
  return all;
}

TEST(Attention, EqualsDoubleLoops) {
  for (const Problem& p : {make_problem(4, 2, 16, 150), make_problem(9, 3, 64, 129), make_problem(3, 3, 10, 65),
                           make_problem(8, 1, 128, 70), make_problem(2, 1, 16, 530)})
    for (const int64_t window : {0, 1, 40, 300}) {
      const auto want = naive(p, window);
      const auto got = run(p, p.positions, best_isa(), 2, window);
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << i;
    }
}

TEST(Attention, IsItsDefinition) {
  for (const Problem& p : {make_problem(4, 2, 8, 600), make_problem(3, 1, 24, 300), make_problem(1, 1, 64, 270)})
    for (const int64_t window : {0, 1, 17, 256, 290}) {
      const auto want = by_definition(p, window);
      for (Isa isa : isas())
        for (int64_t call : {1, 50, 600})
          expect_same(run(p, call, isa, 2, window), want, std::string(isa_name(isa)) + " " + std::to_string(window));
    }
}

TEST(Attention, SameBitsForAnyCutIsaAndThreads) {
  const Problem p = make_problem(6, 2, 24, 300);
  for (const int64_t window : {0, 100}) {
    const auto want = run(p, 300, Isa::kScalar, 1, window);
    for (Isa isa : isas()) {
      if (isa == Isa::kScalar && window != 0) continue;  // slow; IsItsDefinition has it
      for (int threads : {1, 2, 5, 8})
        for (int64_t call : {1, 2, 3, 7, 64, 65, 300}) {
          expect_same(
              run(p, call, isa, threads, window), want,
              std::string(isa_name(isa)) + " threads " + std::to_string(threads) + " call " + std::to_string(call));
        }
    }
  }
}

TEST(Attention, InfinitiesAndNaN) {
  Problem p = make_problem(2, 1, 16, 700);
  const auto set = [&](std::vector<float>& rows, int64_t first, int64_t last, float v) {
    std::fill(rows.begin() + first * 16, rows.begin() + last * 16, v);
  };
  for (float& v : p.q) v = std::fabs(v);
  set(p.k, 0, 256, -INFINITY);    // a span without weight, the first
  set(p.k, 512, 520, -INFINITY);  // for some rows the last
  set(p.k, 600, 601, NAN);        // who sees it is NaN
  set(p.v, 650, 651, INFINITY);   // and here infinite, or NaN
  const auto want = by_definition(p, 0), seen = by_definition(p, 30);
  const auto row = [](const std::vector<float>& out, size_t r) { return out[r * 32]; };
  EXPECT_TRUE(std::isnan(row(want, 255)));     // nothing but -inf
  EXPECT_TRUE(std::isfinite(row(want, 256)));  // no longer
  EXPECT_TRUE(std::isfinite(row(want, 515)));  // a span of -inf behind it
  EXPECT_TRUE(std::isnan(row(want, 600)));
  EXPECT_TRUE(std::isfinite(row(seen, 599)) && std::isnan(row(seen, 629)) && std::isfinite(row(seen, 630)));
  EXPECT_TRUE(!std::isfinite(row(seen, 650)) && std::isfinite(row(seen, 680)));
  for (Isa isa : isas())
    for (int64_t call : {1, 700}) {
      expect_same(run(p, call, isa, 3), want, isa_name(isa));
      expect_same(run(p, call, isa, 3, 30), seen, isa_name(isa));
    }
}

TEST(Attention, BatchesOfSequences) {
  // Prompts and single tokens of several sequences in one call: each row as it is alone.
  std::vector<Problem> problems;
  for (int64_t positions : {700, 1, 40, 300, 257}) problems.push_back(make_problem(6, 2, 24, positions));
  const int64_t width = 6 * 24;
  for (Isa isa : isas())
    for (int threads : {1, 3})
      for (int64_t window : {0, 60}) {
        ThreadPool pool(threads);
        const VectorOps& ops = vector_ops(isa);
        std::vector<KvCache> caches;
        std::vector<SequenceRows> rows;
        std::vector<float> q, want;
        for (size_t i = 0; i < problems.size(); ++i) {
          const Problem& p = problems[i];
          const int64_t n = i % 2 == 0 ? std::min<int64_t>(p.positions, 1 + int64_t(i)) : p.positions;
          caches.push_back(filled_cache(p, ops, pool));
          rows.push_back({nullptr, p.positions - n, int64_t(q.size()) / width, n});
          q.insert(q.end(), p.q.end() - n * width, p.q.end());
          const auto alone = run(p, p.positions, isa, 1, window);
          want.insert(want.end(), alone.end() - n * width, alone.end());
        }
        for (size_t i = 0; i < rows.size(); ++i) rows[i].cache = &caches[i];
        auto attention = Attention::make(ops, problems[0].shape, pool);
        ASSERT_TRUE(attention && attention->reserve(700));
        std::vector<float> got(q.size(), -1);
        attention->run({1, rows, q.data(), got.data(), window});
        expect_same(got, want, std::string(isa_name(isa)) + " threads " + std::to_string(threads));
        attention->run({1, {}, nullptr, nullptr, window});  // no rows
      }
}

TEST(Attention, LongContexts) {
  // 8 heads of one kv head and 20000 positions: blocks of rows, and spans shared out among threads, with and without
  // room for them.
  const AttentionShape s{8, 1, 8, 0.35f};
  const int64_t positions = 20000;
  ThreadPool pool(3);
  const VectorOps& ops = vector_ops(best_isa());
  auto cache = KvCache::make(uniform_kv_groups(1, 1, 8), positions);
  auto attention = Attention::make(ops, s, pool), small = Attention::make(ops, s, pool);
  ASSERT_TRUE(cache && attention && small);
  Rng rng(4);
  const auto k = random_floats(rng, positions * 8), v = random_floats(rng, positions * 8),
             q = random_floats(rng, 5 * 64);
  ASSERT_TRUE(cache->reserve(positions));
  const int64_t before = attention->bytes();
  ASSERT_TRUE(attention->reserve(positions));
  EXPECT_GT(attention->bytes(), before);
  cache->store(ops, 0, 0, positions, k.data(), v.data(), 8, pool);
  std::vector<float> block(5 * 64), single(5 * 64), unshared(5 * 64);
  attention->run({0, positions - 5, 5, q.data(), block.data()}, *cache);
  for (int64_t r = 0; r < 5; ++r) {
    attention->run({0, positions - 5 + r, 1, q.data() + r * 64, single.data() + r * 64}, *cache);
    small->run({0, positions - 5 + r, 1, q.data() + r * 64, unshared.data() + r * 64}, *cache);
  }
  EXPECT_EQ(block, single);
  EXPECT_EQ(block, unshared);
}

}  // namespace
}  // namespace lowbit
