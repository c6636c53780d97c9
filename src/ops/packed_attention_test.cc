// Attention of packed pages, and sequences with them that are cut, forked and truncated.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "kernels/pack_rows.h"
#include "kernels/registry.h"
#include "ops/attention.h"

namespace lowbit {
namespace {

/// Rows of a sequence: what they hold depends on position and token alone.
struct Rows {
  AttentionShape shape;
  std::vector<KvGroup> groups;

  Rows(int64_t heads, int64_t kv_heads, int64_t d, const char* format, int64_t residual, const char* demote = "")
      : shape{heads, kv_heads, d, float(1 / std::sqrt(double(d)))}, groups(uniform_kv_groups(2, kv_heads, d)) {
    groups[0].format = *parse_kv_format(format, residual);
    EXPECT_TRUE(set_kv_upkeep(0, demote, groups[0].format));
  }
  std::vector<float> of(int64_t position, int token, int what, int64_t n) const {
    Rng rng(uint64_t(position * 1000 + token * 10 + what));
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = float(1.5 * rng.normal());
    return x;
  }
  /// Appends tokens, `call` at a time; attention of their rows.
  std::vector<float> append(KvCache& cache, std::span<const int> tokens, int64_t call, Isa isa, ThreadPool& pool,
                            int64_t window = 0) const {
    const VectorOps& ops = vector_ops(isa);
    auto attention = Attention::make(ops, shape, pool);
    const int64_t kv = shape.kv_heads * shape.head_dim, width = shape.heads * shape.head_dim;
    std::vector<float> out;
    EXPECT_TRUE(cache.reserve(int64_t(tokens.size())));
    for (size_t done = 0; done < tokens.size();) {
      const int64_t m = std::min(call, int64_t(tokens.size() - done)), first = cache.length();
      std::vector<float> q, k, v, y(size_t(m * width));
      const auto add = [&](std::vector<float>& to, const std::vector<float>& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      for (int64_t i = 0; i < m; ++i) {
        add(q, of(first + i, tokens[done + size_t(i)], 0, width));
        add(k, of(first + i, tokens[done + size_t(i)], 1, kv));
        add(v, of(first + i, tokens[done + size_t(i)], 2, kv));
      }
      EXPECT_TRUE(cache.open(m));
      EXPECT_TRUE(attention->reserve(first + m));
      for (int64_t layer = 0; layer < 2; ++layer) {
        cache.store(ops, layer, first, m, k.data(), v.data(), kv, pool);
        cache.pack(layer, m, pool);
      }
      attention->run({1, first, m, q.data(), y.data(), window}, cache);
      cache.commit(m);
      add(out, y);
      done += size_t(m);
    }
    return out;
  }
};

void expect_same(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_TRUE(std::memcmp(&got[i], &want[i], sizeof(float)) == 0 || (std::isnan(got[i]) && std::isnan(want[i])))
        << what << ": element " << i << " is " << got[i] << ", not " << want[i];
}

std::vector<int> some_tokens(int64_t n) {
  std::vector<int> tokens(static_cast<size_t>(n));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int(i * 7 % 5);
  return tokens;
}

TEST(PackedAttention, SameBitsForAnyCutIsaAndThreads) {
  const struct {
    int64_t heads, kv_heads, d;
    const char* format;
    int64_t residual, window;
    const char* demote = "";
  } cases[] = {{6, 2, 64, "int4", 0, 0},
               {4, 1, 16, "int2", 64, 0},
               {9, 3, 64, "int2", 128, 0},
               {2, 1, 128, "int8", 0, 0},
               {7, 1, 48, "k4v2", 0, 150},
               {3, 1, 80, "k8v4", 64, 90},
               {1, 1, 256, "k2v8", 0, 0},
               {16, 1, 112, "int4", 0, 300},
               {2, 2, 32, "int8", 0, 70},
               {6, 2, 64, "int3", 0, 0},
               {3, 1, 16, "int3", 0, 0},
               {7, 1, 48, "k3v3", 64, 150},
               {2, 1, 80, "k4v3", 0, 0},
               {6, 2, 64, "fp8", 0, 0},
               {3, 1, 80, "fp8", 64, 90},
               {6, 2, 64, "int8", 0, 0, "64:k4v2"},
               {7, 1, 48, "k4v8", 64, 150, "100:int3"},
               {3, 1, 80, "fp8", 0, 0, "150:k8v2"}};
  for (const auto& c : cases) {
    const Rows rows(c.heads, c.kv_heads, c.d, c.format, c.residual, c.demote);
    const std::vector<int> tokens = some_tokens(330);
    ThreadPool one(1);
    auto cache = KvCache::make(rows.groups, 400);
    const auto want = rows.append(*cache, tokens, 330, Isa::kScalar, one, c.window);
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx}) {
      if (!isa_available(isa)) continue;
      for (const int64_t call : {1, 7, 64, 100, 330}) {
        if (isa == Isa::kScalar && (call != 100 || c.d > 64)) continue;  // slow
        ThreadPool pool(call == 7 ? 1 : 3);
        auto fresh = KvCache::make(rows.groups, 400);
        expect_same(rows.append(*fresh, tokens, call, isa, pool, c.window), want,
                    std::string(c.format) + " " + isa_name(isa) + " calls of " + std::to_string(call));
      }
    }
  }
}

TEST(PackedAttention, ReadsOldPagesWithFewerBits) {
  // Demotion to the bits that a page has is one rounding more, and to fewer as much worse as those are.
  const std::vector<int> tokens = some_tokens(900);
  ThreadPool pool(2);
  const Rows exact(4, 2, 64, "f16", 0);
  auto plain = KvCache::make(exact.groups, 900);
  const auto want = exact.append(*plain, tokens, 900, best_isa(), pool);
  const auto error_of = [&](const char* format, const char* demote) {
    const Rows rows(4, 2, 64, format, 0, demote);
    auto cache = KvCache::make(rows.groups, 900);
    const auto got = rows.append(*cache, tokens, 900, best_isa(), pool);
    double error = 0;
    for (size_t i = want.size() / 2; i < want.size(); ++i) error += std::pow(double(got[i]) - want[i], 2);
    return std::sqrt(error);
  };
  const double eight = error_of("int8", ""), four = error_of("int4", ""), two = error_of("int2", "");
  EXPECT_LT(error_of("int8", "64:int8"), 2 * eight);
  EXPECT_LT(error_of("int4", "64:int4"), 1.3 * four);
  EXPECT_GT(error_of("int8", "64:int4"), 0.6 * four);
  EXPECT_LT(error_of("int8", "64:int4"), 1.2 * four);
  EXPECT_GT(error_of("int4", "64:int2"), 0.7 * two);
  EXPECT_LT(error_of("int4", "64:int2"), 1.2 * two);
  EXPECT_LT(error_of("int4", "512:int2"), error_of("int4", "128:int2"));
}

TEST(PackedAttention, IsNearF16) {
  const std::vector<int> tokens = some_tokens(500);
  ThreadPool pool(2);
  const Rows exact(4, 2, 64, "f16", 0);
  auto cache = KvCache::make(exact.groups, 500);
  const auto want = exact.append(*cache, tokens, 500, best_isa(), pool);
  for (const auto& [format, most] :
       {std::pair{"int8", 0.01}, {"fp8", 0.05}, {"int4", 0.16}, {"int3", 0.32}, {"int2", 0.6}}) {
    const Rows rows(4, 2, 64, format, 0);
    auto packed = KvCache::make(rows.groups, 500);
    const auto got = rows.append(*packed, tokens, 500, best_isa(), pool);
    double error = 0, total = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
      total += double(want[i]) * want[i];
    }
    EXPECT_GT(error, 0) << format;  // packed pages were read
    EXPECT_LE(std::sqrt(error / total), most) << format;
  }
}

TEST(PackedAttention, NaNShowsToThoseWhoSeeIt) {
  const Rows rows(2, 1, 16, "int4", 0);
  ThreadPool pool(1);
  const std::vector<int> tokens = some_tokens(300);
  for (const int64_t window : {0, 40}) {
    std::vector<std::vector<float>> outs;
    for (const Isa isa : {Isa::kScalar, best_isa()}) {
      auto cache = KvCache::make(rows.groups, 300);
      ASSERT_TRUE(cache->reserve(300));
      rows.append(*cache, std::span(tokens).first(100), 100, isa, pool, window);
      std::vector<float> bad(16, NAN);
      cache->store_head(vector_ops(isa), 1, 0, 90, bad.data(), bad.data());  // of page 1, before it is packed
      outs.push_back(rows.append(*cache, std::span(tokens).subspan(100), 50, isa, pool, window));
    }
    expect_same(outs[1], outs[0], "window " + std::to_string(window));
    EXPECT_TRUE(std::isnan(outs[0][(110 - 100) * 32]));
    EXPECT_EQ(std::isnan(outs[0][(299 - 100) * 32]), window == 0);
  }
}

TEST(PackedKvCache, TakesLessMemory) {
  const Rows rows(2, 1, 64, "int4", 128);
  ThreadPool pool(2);
  const std::vector<int> tokens = some_tokens(4096);
  auto cache = KvCache::make(rows.groups, 4096);
  rows.append(*cache, tokens, 512, best_isa(), pool);
  EXPECT_EQ(cache->bytes(), cache->pool().bytes_of(4096));
  const int64_t f16 = 2 * 2 * 2 * 64 * 4096;
  EXPECT_LE(cache->bytes(), int64_t(0.38 * double(f16)));  // 7 of 64 pages stay f16
  EXPECT_LE(cache->pool().allocated_bytes(), int64_t(0.55 * double(f16)));
  cache->clear();
  EXPECT_EQ(cache->bytes(), 0);
  EXPECT_EQ(cache->pool().pages_in_use(), 0);
}

TEST(PackedKvCache, OldPagesTakeLessMemory) {
  const Rows rows(2, 1, 64, "int8", 128, "1024:int2");
  ThreadPool pool(2);
  const std::vector<int> tokens = some_tokens(8192);
  auto cache = KvCache::make(rows.groups, 8192);
  rows.append(*cache, tokens, 512, best_isa(), pool);
  EXPECT_EQ(cache->bytes(), cache->pool().bytes_of(8192));
  // Beyond the length a position costs what it costs at 2 bits.
  const int64_t before = cache->pool().bytes_of(4096), page = cache->pool().page_bytes(cache->pool().demoted_store(0));
  EXPECT_EQ(cache->bytes() - before, 64 * page);
  EXPECT_LT(page, cache->pool().page_bytes(cache->pool().packed_store(0)) / 3);
  const auto is_demoted = [&](int64_t p) { return cache->reads_demoted(0, p, 8192); };
  EXPECT_TRUE(is_demoted(1) && is_demoted(111) && !is_demoted(0) && !is_demoted(112));
  // A demoted page is the packed one, packed again.
  const Rows never(2, 1, 64, "int8", 128);
  auto whole = KvCache::make(never.groups, 8192);
  never.append(*whole, tokens, 512, best_isa(), pool);
  const PackedShape eight = {8, 64, 64}, two = {2, 64, 64};
  std::vector<uint16_t> half(64 * 64);
  std::vector<uint8_t> codes(size_t(two.code_bytes())), side(size_t(two.side_bytes()));
  for (const int64_t p : {1, 50, 110}) {
    unpack_rows(whole->packed_keys(1, 0, p), eight, 64, half.data());
    pack_rows(half.data(), 64, two, codes.data(), side.data());
    const PackedMatrix got = cache->packed_keys(1, 0, p, true);
    EXPECT_EQ(std::memcmp(got.codes, codes.data(), codes.size()), 0);
    EXPECT_EQ(std::memcmp(got.side, side.data(), side.size()), 0);
  }
  cache->clear();
  EXPECT_EQ(cache->pool().pages_in_use(), 0);
}

/// Every page that a row behind the sequence reads has the bytes that it has in one that was never cut.
void expect_as_if_fresh(const Rows& rows, const KvCache& cache, const std::vector<int>& tokens, ThreadPool& pool) {
  ASSERT_EQ(cache.length(), int64_t(tokens.size()));
  if (tokens.empty()) return;
  auto fresh = KvCache::make(rows.groups, cache.capacity());
  rows.append(*fresh, tokens, int64_t(tokens.size()), best_isa(), pool);
  const int64_t d = rows.shape.head_dim, length = cache.length();
  const PackedHeadBytes bytes = packed_head_bytes(rows.groups[0].format, d);
  for (int64_t page = 0; page * kKvPage < length; ++page)
    for (int64_t layer = 0; layer < 2; ++layer) {
      if (page > 0 && page <= rows.groups[0].format.packed_pages(length - 1)) {
        const PackedMatrix a = cache.packed_keys(layer, 0, page), b = fresh->packed_keys(layer, 0, page);
        const PackedMatrix v = cache.packed_values(layer, 0, page), w = fresh->packed_values(layer, 0, page);
        ASSERT_EQ(std::memcmp(a.codes, b.codes, size_t(bytes.key_codes)), 0) << page;
        ASSERT_EQ(std::memcmp(a.side, b.side, size_t(bytes.key_side)), 0);
        ASSERT_EQ(std::memcmp(v.codes, w.codes, size_t(bytes.value_codes)), 0);
        ASSERT_EQ(std::memcmp(v.side, w.side, size_t(bytes.value_side)), 0);
      }
      if (cache.reads_packed(layer, page, length)) continue;
      for (int64_t t = 0; t < std::min(kKvPage, length - page * kKvPage); ++t)
        for (int64_t i = 0; i < d; ++i) {
          ASSERT_EQ(cache.keys_f16(layer, 0, page)[i * kKvPage + t], fresh->keys_f16(layer, 0, page)[i * kKvPage + t]);
          ASSERT_EQ(cache.values_f16(layer, 0, page)[t * d + i], fresh->values_f16(layer, 0, page)[t * d + i]);
        }
    }
}

TEST(PackedKvCache, RandomSequences) {
  // Appended to, cut, forked and dropped at random: 1,000 steps.
  const Rows rows(1, 1, 16, "k4v2", 64);
  ThreadPool pool(2);
  Rng rng(7);
  auto made = KvPool::make(rows.groups, 4096);
  ASSERT_TRUE(made);
  struct Sequence {
    KvCache cache;
    std::vector<int> tokens;
    int64_t longest = 0;  // that it ever was
  };
  std::vector<Sequence> all;
  int truncated = 0, refused = 0;
  for (int step = 0; step < 1000; ++step) {
    if (all.empty()) all.push_back({KvCache(*made, 2000), {}, 0});
    Sequence& s = all[rng.below(all.size())];
    const uint64_t what = rng.below(10);
    if (what < 5) {
      std::vector<int> more(1 + rng.below(what == 0 ? 400 : 40));
      if (s.tokens.size() + more.size() > 2000) continue;
      for (int& t : more) t = int(rng.below(3));
      rows.append(s.cache, more, 1 + int64_t(rng.below(200)), best_isa(), pool);
      s.tokens.insert(s.tokens.end(), more.begin(), more.end());
      s.longest = std::max(s.longest, int64_t(s.tokens.size()));
    } else if (what < 8) {
      const auto back = int64_t(rng.below(what == 5 ? 2000 : 300));
      const int64_t length = std::max<int64_t>(0, int64_t(s.tokens.size()) - back);
      const bool can = s.cache.can_truncate(length);
      ASSERT_TRUE(can || (length > 0 && s.longest - length > kKeptPositions));
      ASSERT_EQ(s.cache.truncate(length).has_value(), can);
      (can ? truncated : refused) += 1;
      if (can) s.tokens.resize(size_t(length));
    } else if (what == 8 && all.size() < 8) {
      Sequence other{s.cache.fork(), s.tokens, s.longest};
      all.push_back(std::move(other));
    } else if (what == 9 && all.size() > 1 && rng.below(3) == 0) {
      all.erase(all.begin() + int64_t(rng.below(all.size())));
      continue;
    }
    if (step % 5 != 0) continue;
    for (const Sequence& each : all) {
      expect_as_if_fresh(rows, each.cache, each.tokens, pool);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(truncated, 100);
  EXPECT_GT(refused, 5);
  all.clear();
  EXPECT_EQ((*made)->pages_in_use(), 0);
}

TEST(PackedKvCache, ACallThatFailsLeavesItAsItWas) {
  // A prompt of many parts that stops half way: back to where it began, whatever went meanwhile.
  const Rows rows(1, 1, 16, "int4", 0);
  ThreadPool pool(1);
  auto cache = KvCache::make(rows.groups, 4000);
  std::vector<int> tokens = some_tokens(500);
  rows.append(*cache, tokens, 500, best_isa(), pool);
  ASSERT_TRUE(cache->reserve(3000));
  const std::vector<int> more = some_tokens(2000);
  const KvCache before = cache->fork();
  // A call of 3000 tokens of which the last 1000 do not come.
  const VectorOps& ops = vector_ops(best_isa());
  for (int64_t done = 0; done < 2000; done += 100) {
    ASSERT_TRUE(cache->open(100));
    const std::vector<float> row(100 * 16, float(done));
    for (int64_t layer = 0; layer < 2; ++layer) {
      cache->store(ops, layer, cache->length(), 100, row.data(), row.data(), 16, pool);
      cache->pack(layer, 100, pool);
    }
    cache->commit(100);
  }
  ASSERT_TRUE(cache->can_truncate(500));
  ASSERT_FALSE(cache->can_truncate(1000));
  ASSERT_TRUE(cache->truncate(500));
  expect_as_if_fresh(rows, *cache, tokens, pool);
  expect_as_if_fresh(rows, before, tokens, pool);
}

}  // namespace
}  // namespace lowbit
