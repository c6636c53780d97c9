// Caches that give pages back before a window, layers of several forms in one cache, and caches that a file restores.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/float.h"
#include "base/rng.h"
#include "kernels/fp8_rows.h"
#include "kernels/registry.h"
#include "ops/attention.h"

namespace lowbit {
namespace {

constexpr int64_t kHead = 16;

/// One head in each of as many layers as the groups have; rows depend on position, token and layer alone.
class Sequences {
 public:
  explicit Sequences(std::vector<KvGroup> groups) : groups_(std::move(groups)) {
    for (const KvGroup& g : groups_) layers_ += int64_t(g.layers.size());
  }
  const std::vector<KvGroup>& groups() const { return groups_; }

  /// Appends tokens, `call` at a time; attention of the rows of all layers.
  std::vector<float> append(KvCache& cache, std::span<const int> tokens, int64_t call) {
    const VectorOps& ops = vector_ops(best_isa());
    auto attention = Attention::make(ops, {1, 1, kHead, 0.25f}, pool_);
    std::vector<float> all;
    EXPECT_TRUE(cache.reserve(int64_t(tokens.size())));
    for (size_t done = 0; done < tokens.size();) {
      const int64_t m = std::min(call, int64_t(tokens.size() - done)), first = cache.length();
      EXPECT_TRUE(cache.open(m));
      EXPECT_TRUE(attention->reserve(first + m));
      for (int64_t layer = 0; layer < layers_; ++layer) {
        std::vector<float> rows[3], y(size_t(m * kHead));
        for (int64_t i = 0; i < m; ++i) {
          Rng rng(uint64_t(((first + i) * 8 + tokens[done + size_t(i)]) * 8 + layer));
          for (auto& of_row : rows)
            for (int64_t e = 0; e < kHead; ++e) of_row.push_back(float(rng.normal()));
        }
        cache.store(ops, layer, first, m, rows[1].data(), rows[2].data(), kHead, pool_);
        cache.pack(layer, m, pool_);
        attention->run({layer, first, m, rows[0].data(), y.data(), cache.group_of(layer).window}, cache);
        all.insert(all.end(), y.begin(), y.end());
      }
      cache.commit(m);
      done += size_t(m);
    }
    return all;
  }
  /// The logits after one more token.
  std::vector<float> next(const KvCache& cache) {
    KvCache fork = cache.fork();
    const int token = 1;
    return append(fork, {&token, 1}, 1);
  }
  std::vector<float> next_of_fresh(std::span<const int> tokens) {
    auto fresh = KvCache::make(groups_, 4096);
    append(*fresh, tokens, 64);
    return next(*fresh);
  }

 private:
  std::vector<KvGroup> groups_;
  int64_t layers_ = 0;
  ThreadPool pool_{2};
};

std::vector<KvGroup> groups_with(std::vector<std::pair<int64_t, const char*>> forms) {
  std::vector<KvGroup> groups;
  for (const auto& [window, format] : forms)
    groups.push_back({{int(groups.size())}, 1, kHead, window, *parse_kv_format(format, 64)});
  return groups;
}

std::vector<int> some_tokens(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<int> tokens(n);
  for (int& t : tokens) t = int(rng.below(5));
  return tokens;
}

void expect_same(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0);
}

TEST(KvWindow, PagesBeforeItAreGivenBack) {
  Sequences s(groups_with({{100, "f16"}}));
  auto cache = KvCache::make(s.groups(), 4096);
  ASSERT_TRUE(cache);
  const int64_t page = cache->pool().page_bytes(0);
  for (const int64_t call : {1000, 1, 64}) {
    cache->clear();
    s.append(*cache, some_tokens(2000, 1), call);
    // 100 positions of the window and 256 that may be cut, in whole pages, and the part of a prompt that is open.
    EXPECT_LE(cache->bytes(), 24 * page) << call;
    s.append(*cache, some_tokens(1, 2), 1);
    EXPECT_LE(cache->bytes(), 8 * page) << call;
    EXPECT_EQ(cache->bytes(), cache->pool().bytes_of(2001));
  }
  cache->clear();
  EXPECT_EQ(cache->pool().pages_in_use(), 0);
}

/// Sequences appended to, cut, forked, dropped and restored: 1,000 steps.
void check_random_sequences(std::vector<KvGroup> groups) {
  Sequences s(std::move(groups));
  auto pool = KvPool::make(s.groups(), 4096);
  ASSERT_TRUE(pool) << pool.error().message();
  Rng rng(3);
  struct Sequence {
    KvCache cache;
    std::vector<int> tokens;
    int64_t longest = 0;
  };
  std::vector<Sequence> all;
  int cut = 0, refused = 0, restored = 0;
  for (int step = 0; step < 1000; ++step) {
    if (all.empty()) all.push_back({KvCache(*pool, 1500), {}, 0});
    Sequence& one = all[rng.below(all.size())];
    const uint64_t what = rng.below(11);
    if (what < 5) {
      const auto more = some_tokens(1 + rng.below(what == 0 ? 400 : 40), rng.next());
      if (one.tokens.size() + more.size() > 1500) continue;
      s.append(one.cache, more, 1 + int64_t(rng.below(200)));
      one.tokens.insert(one.tokens.end(), more.begin(), more.end());
      one.longest = std::max(one.longest, int64_t(one.tokens.size()));
    } else if (what < 8) {
      const auto back = int64_t(rng.below(what == 5 ? 1500 : 300));
      const int64_t length = std::max<int64_t>(0, int64_t(one.tokens.size()) - back);
      const bool can = one.cache.can_truncate(length);
      ASSERT_TRUE(can || (length > 0 && one.longest - length > kKeptPositions));
      ASSERT_EQ(one.cache.truncate(length).has_value(), can);
      (can ? cut : refused) += 1;
      if (can) one.tokens.resize(size_t(length));
    } else if (what == 8 && all.size() < 6) {
      Sequence other{one.cache.fork(), one.tokens, one.longest};
      all.push_back(std::move(other));
    } else if (what == 9 && all.size() > 1 && rng.below(3) == 0) {
      all.erase(all.begin() + int64_t(rng.below(all.size())));
      continue;
    } else if (what == 10) {
      const KvImage image = one.cache.image();
      auto again = KvCache::from_image(*pool, 1500, image);
      ASSERT_TRUE(again) << again.error().message();
      for (int g = 0; g < int(image.groups.size()); ++g) {
        const auto copy = [&](int store, int64_t page) {
          std::vector<std::byte> bytes(size_t((*pool)->page_bytes(store)));
          ASSERT_TRUE(one.cache.read_page(store, page, bytes.data()));
          ASSERT_TRUE(again->write_page(store, page, bytes.data()));
        };
        for (const int64_t page : image.groups[size_t(g)].f16) copy(g, page);
        const KvImage::Group& group = image.groups[size_t(g)];
        for (int64_t page = group.packed_gone + 1; page <= group.packed; ++page) copy((*pool)->packed_store(g), page);
        for (int64_t page = 1; page <= group.demoted; ++page) copy((*pool)->demoted_store(g), page);
      }
      ASSERT_EQ(again->bytes(), one.cache.bytes());
      one.cache = std::move(*again);
      ++restored;
    }
    if (step % 9 != 0) continue;
    ASSERT_EQ(one.cache.length(), int64_t(one.tokens.size()));
    expect_same(s.next(one.cache), s.next_of_fresh(one.tokens));
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(cut, 100);
  EXPECT_GT(refused, 5);
  EXPECT_GT(restored, 20);
  all.clear();
  EXPECT_EQ((*pool)->pages_in_use(), 0);
}

TEST(KvWindow, RandomSequences) {
  // Windows and whole layers, packed and f16 ones.
  check_random_sequences(groups_with({{0, "f16"}, {70, "f16"}, {130, "f16"}, {0, "int4"}, {90, "k3v2"}, {0, "fp8"}}));
}

TEST(KvDemotion, RandomSequences) {
  auto groups = groups_with({{0, "f16"}, {0, "int8"}, {90, "int4"}, {0, "fp8"}});
  ASSERT_TRUE(set_kv_upkeep(0, "65:k4v2", groups[1].format));
  ASSERT_TRUE(set_kv_upkeep(0, "320:int2", groups[2].format));
  ASSERT_TRUE(set_kv_upkeep(0, "200:int3", groups[3].format));
  check_random_sequences(std::move(groups));
}

TEST(KvWindow, ACallThatFailsLeavesItAsItWas) {
  Sequences s(groups_with({{100, "f16"}}));
  auto cache = KvCache::make(s.groups(), 4096);
  const auto tokens = some_tokens(500, 1);
  s.append(*cache, tokens, 500);
  ASSERT_TRUE(cache->reserve(3000));
  const auto more = some_tokens(2000, 2);
  for (size_t done = 0; done < more.size(); done += 100) {
    // append() begins calls of its own; this is one.
    const VectorOps& ops = vector_ops(best_isa());
    ThreadPool pool(1);
    const std::vector<float> row(100 * kHead, float(done));
    ASSERT_TRUE(cache->open(100));
    cache->store(ops, 0, cache->length(), 100, row.data(), row.data(), kHead, pool);
    cache->commit(100);
  }
  ASSERT_TRUE(cache->can_truncate(500));
  ASSERT_FALSE(cache->can_truncate(1000));
  ASSERT_TRUE(cache->truncate(500));
  expect_same(s.next(*cache), s.next_of_fresh(tokens));
}

TEST(KvImage, RefusesWhatNoSequenceHas) {
  auto pool = KvPool::make(groups_with({{0, "int4"}, {100, "f16"}}), 100);
  ASSERT_TRUE(pool);
  Sequences s({(*pool)->groups().begin(), (*pool)->groups().end()});
  KvCache cache(*pool, 2000);
  s.append(cache, some_tokens(1000, 1), 100);
  const KvImage good = cache.image();
  ASSERT_TRUE(KvCache::from_image(*pool, 2000, good));
  const auto refused = [&](const KvImage& image, ErrorCode code, int64_t capacity = 2000) {
    const int64_t before = (*pool)->pages_in_use();
    const auto made = KvCache::from_image(*pool, capacity, image);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, code) << made.error().message();
    EXPECT_EQ((*pool)->pages_in_use(), before);
  };
  KvImage bad = good;
  bad.groups.pop_back();
  refused(bad, ErrorCode::kCorrupt);
  refused(good, ErrorCode::kInvalidArgument, 999);
  for (const int64_t length : {-1, 2001}) {
    bad = good;
    bad.length = length;
    refused(bad, ErrorCode::kInvalidArgument);
  }
  for (size_t g = 0; g < 2; ++g) {
    bad = good;
    bad.groups[g].f16.pop_back();  // the newest page
    refused(bad, ErrorCode::kCorrupt);
    bad = good;
    bad.groups[g].f16.back() = 16;  // 1,000 positions end in page 15
    refused(bad, ErrorCode::kCorrupt);
    bad = good;
    bad.groups[g].f16.back() = bad.groups[g].f16.front();
    refused(bad, ErrorCode::kCorrupt);
  }
  bad = good;
  bad.groups[0].f16.erase(bad.groups[0].f16.begin());  // page 0
  refused(bad, ErrorCode::kCorrupt);
  for (const int64_t packed : {-1, 1, 15}) {
    bad = good;
    bad.groups[0].packed = packed;
    refused(bad, ErrorCode::kCorrupt);
  }
  bad = good;
  bad.groups[1].packed = 1;
  refused(bad, ErrorCode::kCorrupt);
}

TEST(KvFormat, LayersThatStayF16) {
  EXPECT_EQ(parse_kv_keep("", 4).value(), std::vector<int>());
  EXPECT_EQ(parse_kv_keep("last,first", 4).value(), (std::vector<int>{0, 3}));
  EXPECT_EQ(parse_kv_keep("2,first,2,0", 4).value(), (std::vector<int>{0, 2}));
  for (const char* names : {"4", "-1", "firs", "1,", ",", "1,,2", "1 2", "0x1", "99999999999"})
    EXPECT_FALSE(parse_kv_keep(names, 4)) << names;
}

TEST(Fp8Rows, AreTheNearest) {
  // Every f16, in rows of one: what is read is the nearest of the values that the row's exponent has.
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = uint16_t(bits);
    uint8_t code = 0;
    int8_t exponent = 0;
    uint16_t back = 0;
    pack_fp8_rows(&half, 1, 1, 1, &code, &exponent);
    expand_fp8_rows(&code, &exponent, 1, 1, &back);
    const float x = f16_to_f32(half), y = f16_to_f32(back);
    if (!std::isfinite(x)) {
      ASSERT_TRUE(std::isnan(y)) << bits;
      continue;
    }
    ASSERT_TRUE(std::isfinite(y)) << bits;
    // 3 bits of mantissa, or the least step of all: 2^-24. The largest have 61,440 before them.
    const float most = std::fabs(x) > 63488.0f ? std::fabs(x) - 61440.0f : std::fabs(x) / 16;
    ASSERT_LE(std::fabs(x - y), std::max(most, 0x1p-25f)) << bits;
  }
  // Small elements beside a large one lose what lies below 2^-9 of the step.
  const uint16_t rows[2] = {f32_to_f16(448), f32_to_f16(0x1p-9f)};
  uint8_t codes[2];
  int8_t exponent = 1;
  pack_fp8_rows(rows, 2, 1, 2, codes, &exponent);
  EXPECT_EQ(exponent, 0);
  EXPECT_EQ(codes[0], 0x7e);
  EXPECT_EQ(codes[1], 1);
}

}  // namespace
}  // namespace lowbit
