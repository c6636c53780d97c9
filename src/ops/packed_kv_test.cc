// Packed pages of the KV cache: what rows become, products with them, attention, and sequences that are cut, forked and
// truncated.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "base/float.h"
#include "base/rng.h"
#include "kernels/pack_rows.h"
#include "kernels/ref/packed_kv.h"
#include "kernels/registry.h"
#include "ops/attention.h"

namespace lowbit {
namespace {

struct Packed {
  PackedShape shape;
  std::vector<uint8_t> codes, side;
  PackedMatrix matrix() const { return {codes.data(), side.data()}; }
  /// Real numbers, by the format's words.
  double at(int64_t r, int64_t c) const {
    float units[2];
    std::memcpy(units, side.data(), sizeof(units));
    const int code = code_at(codes.data(), shape, r, c);
    return double(units[1]) * int8_t(side[size_t(8 + shape.rows + r)]) + double(units[0]) * side[size_t(8 + r)] * code;
  }
};

Packed pack(const std::vector<float>& rows, const PackedShape& shape) {
  std::vector<uint16_t> half;
  for (const float v : rows) half.push_back(f32_to_f16(v));
  Packed p{shape, std::vector<uint8_t>(size_t(shape.code_bytes())), std::vector<uint8_t>(size_t(shape.side_bytes()))};
  pack_rows(half.data(), shape.columns, shape, p.codes.data(), p.side.data());
  return p;
}

std::vector<float> random_rows(Rng& rng, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = f16_to_f32(f32_to_f16(float(rng.normal())));
  return x;
}

std::vector<PackedShape> shapes() {
  std::vector<PackedShape> all;
  for (const int bits : {2, 3, 4, 8})
    for (const int64_t rows : {16, 64, 80, 256})
      for (const int64_t columns : {16, 32, 48, 64})
        if (bits != 3 || rows * columns % 512 == 0) all.push_back({bits, rows, columns});
  return all;
}

TEST(PackedKv, EveryBitHoldsOneCode) {
  for (const PackedShape& s : shapes()) {
    if (s.rows * s.columns % 512 != 0 || s.bits == 3) continue;  // no matrix of a page; two of them
    std::set<std::pair<int64_t, int>> places;
    for (int64_t r = 0; r < s.rows; ++r)
      for (int64_t c = 0; c < s.columns; ++c) {
        const CodePlace at = code_place(s, r, c);
        ASSERT_TRUE(at.byte >= 0 && at.byte < s.code_bytes() && at.shift % s.bits == 0 && at.shift + s.bits <= 8);
        ASSERT_TRUE(places.emplace(at.byte, at.shift).second) << s.bits << " " << s.rows << " " << s.columns;
      }
  }
}

TEST(PackedKv, CodesAreNearestWithinTheRange) {
  Rng rng(1);
  for (const PackedShape& s : shapes()) {
    std::vector<float> rows = random_rows(rng, s.rows * s.columns);
    for (int64_t c = 0; c < s.columns; ++c) rows[size_t(c)] = 3.0f;  // no range at all
    for (int64_t c = 0; c < s.columns; ++c) rows[size_t(s.columns + c)] *= 100;
    const Packed p = pack(rows, s);
    double error = 0, total = 0;
    for (int64_t r = 0; r < s.rows; ++r) {
      const float* const row = rows.data() + r * s.columns;
      const auto [least, most] = std::minmax_element(row, row + s.columns);
      const double range = double(*most) - double(*least);
      for (int64_t c = 0; c < s.columns; ++c) {
        const double e = std::fabs(p.at(r, c) - row[c]);
        // Half a step, and for ranges that shrink what lies outside; least values and steps are rounded to 8 bits of
        // the largest.
        ASSERT_LE(e, range * (s.bits == 8 ? 0.5 / 255 : 0.5) + 6.0) << s.bits << " row " << r;
        if (r < 2) continue;
        error += e * e;
        total += double(row[c]) * row[c];
      }
    }
    EXPECT_GT(total, 0);
    EXPECT_GE(error, 0);
  }
}

TEST(PackedKv, ErrorOfNormalNumbers) {
  // Relative RMS errors of rows of 64 normal numbers; a format that got worse would show.
  Rng rng(2);
  for (const auto& [bits, most] : {std::pair{8, 0.006}, {4, 0.095}, {3, 0.19}, {2, 0.38}}) {
    const PackedShape s = {bits, 64, 64};
    const std::vector<float> rows = random_rows(rng, 64 * 64);
    const Packed p = pack(rows, s);
    double error = 0, total = 0;
    for (int64_t i = 0; i < 64 * 64; ++i) {
      const double e = p.at(i / 64, i % 64) - double(rows[size_t(i)]);
      error += e * e;
      total += double(rows[size_t(i)]) * double(rows[size_t(i)]);
    }
    EXPECT_LE(std::sqrt(error / total), most) << bits;
  }
}

TEST(PackedKv, BitsPerElement) {
  for (const auto& [name, most] : {std::pair{"int8", 8.3}, {"fp8", 8.2}, {"int4", 4.3}, {"int3", 3.3}, {"int2", 2.5}})
    for (const int64_t d : {64, 128}) {
      const PackedHeadBytes bytes = packed_head_bytes(*parse_kv_format(name, 128), d);
      EXPECT_LE(8.0 * double(bytes.codes() + bytes.sides()) / double(2 * d * kKvPage), most) << name << " " << d;
    }
}

TEST(PackedKv, ProductsAreThoseOfTheRealNumbers) {
  Rng rng(3);
  for (const PackedShape& s : shapes()) {
    const std::vector<float> rows = random_rows(rng, s.rows * s.columns), x = random_rows(rng, s.rows);
    const Packed p = pack(rows, s);
    float y[64];
    packed_product(x.data(), s, p.matrix(), y);
    for (int64_t c = 0; c < s.columns; ++c) {
      double want = 0, size = 0;
      for (int64_t r = 0; r < s.rows; ++r) {
        want += double(x[size_t(r)]) * p.at(r, c);
        size += std::fabs(double(x[size_t(r)]) * p.at(r, c));
      }
      // x is rounded to 1 / 32767 of its largest; the rest is f32.
      ASSERT_NEAR(y[c], want, 5e-4 * (size + 1)) << s.bits << " " << s.rows << " " << s.columns;
    }
  }
}

TEST(PackedKv, NaNAndInfinityShow) {
  const PackedShape s = {4, 16, 16};
  for (const float bad : {float(NAN), float(INFINITY), -float(INFINITY)}) {
    std::vector<float> rows(256, 1.0f), x(16, 1.0f);
    rows[37] = bad;
    float y[16];
    packed_product(x.data(), s, pack(rows, s).matrix(), y);
    for (const float v : y) EXPECT_TRUE(std::isnan(v));
    rows[37] = 1;
    x[3] = bad;
    packed_product(x.data(), s, pack(rows, s).matrix(), y);
    for (const float v : y) EXPECT_TRUE(std::isnan(v));
  }
  std::vector<float> zeros(256), x(16, 1.0f);
  float y[16];
  packed_product(x.data(), s, pack(zeros, s).matrix(), y);
  for (const float v : y) EXPECT_EQ(v, 0);
}

TEST(KvFormat, Names) {
  for (const char* name : {"f16", "fp8", "int8", "int4", "int3", "int2", "k8v4", "k4v2", "k2v8", "k3v2"}) {
    const auto format = parse_kv_format(name, 100);
    ASSERT_TRUE(format) << name;
    EXPECT_EQ(kv_format_name(*format), name);
    EXPECT_EQ(format->residual, format->packed() ? 128 : 0);
  }
  for (const char* name : {"int5", "f8", "k4", "k4v5", "k16v4", "int44", "K4V2"})
    EXPECT_FALSE(parse_kv_format(name, 0));
  EXPECT_FALSE(parse_kv_format("int4", -1));
  const KvFormat format = *parse_kv_format("int4", 64);
  for (int64_t position = 0; position < 1000; ++position) {
    int64_t pages = 0;  // by the words of the definition
    for (int64_t g = 1; g < 20; ++g) pages += position / 64 >= g + 1 + 64 / 64;
    ASSERT_EQ(format.packed_pages(position), pages);
  }
}

TEST(KvPool, RefusesHeadsThatCannotBePacked) {
  for (const int64_t d : {8, 24, 272}) {
    auto groups = uniform_kv_groups(1, 1, d);
    groups[0].format = *parse_kv_format("int4", 0);
    const auto pool = KvPool::make(groups, 4);
    ASSERT_FALSE(pool);
    EXPECT_EQ(pool.error().code, ErrorCode::kUnsupported);
  }
}

/// Rows of a sequence: what they hold depends on position and token alone.
struct Rows {
  AttentionShape shape;
  std::vector<KvGroup> groups;

  Rows(int64_t heads, int64_t kv_heads, int64_t d, const char* format, int64_t residual)
      : shape{heads, kv_heads, d, float(1 / std::sqrt(double(d)))}, groups(uniform_kv_groups(2, kv_heads, d)) {
    groups[0].format = *parse_kv_format(format, residual);
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
  } cases[] = {{6, 2, 64, "int4", 0, 0},  {4, 1, 16, "int2", 64, 0},    {9, 3, 64, "int2", 128, 0},
               {2, 1, 128, "int8", 0, 0}, {7, 1, 48, "k4v2", 0, 150},   {3, 1, 80, "k8v4", 64, 90},
               {1, 1, 256, "k2v8", 0, 0}, {16, 1, 112, "int4", 0, 300}, {2, 2, 32, "int8", 0, 70},
               {6, 2, 64, "int3", 0, 0},  {3, 1, 16, "int3", 0, 0},     {7, 1, 48, "k3v3", 64, 150},
               {2, 1, 80, "k4v3", 0, 0},  {6, 2, 64, "fp8", 0, 0},      {3, 1, 80, "fp8", 64, 90}};
  for (const auto& c : cases) {
    const Rows rows(c.heads, c.kv_heads, c.d, c.format, c.residual);
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
  // As a call of 3000 whose last 1000 do not come.
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
