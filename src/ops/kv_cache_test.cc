#include "ops/kv_cache.h"

#include <gtest/gtest.h>

#include "base/checked.h"
#include "base/float.h"
#include "base/try.h"
#include "kernels/registry.h"

namespace lowbit {
namespace {

TEST(KvCache, StoresRowsWhereReadersLook) {
  ThreadPool pool(2);
  const VectorOps& ops = vector_ops(Isa::kScalar);
  auto cache = KvCache::make(uniform_kv_groups(3, 2, 4), 200);
  ASSERT_TRUE(cache);
  ASSERT_TRUE(cache->reserve(130));
  EXPECT_EQ(cache->bytes(),
            3 * (3 * 2 * 2 * 64 * 4 * 2));  // pages x (layers, k and v, heads, positions, d, f16)
  for (int64_t layer = 0; layer < 3; ++layer) {
    std::vector<float> k(130 * 8), v(130 * 8);
    for (size_t i = 0; i < k.size(); ++i) {
      k[i] = float(layer * 2000 + int64_t(i));
      v[i] = -k[i];
    }
    cache->store(ops, layer, 0, 130, k.data(), v.data(), 8, pool);
  }
  cache->commit(130);
  EXPECT_EQ(cache->length(), 130);
  for (int64_t layer = 0; layer < 3; ++layer)
    for (int64_t head = 0; head < 2; ++head)
      for (int64_t p = 0; p < 130; ++p) {
        const uint16_t* const keys = cache->keys_f16(layer, head, p / 64);
        const uint16_t* const values = cache->values_f16(layer, head, p / 64);
        for (int64_t i = 0; i < 4; ++i) {
          const uint16_t want = f32_to_f16(float(layer * 2000 + p * 8 + head * 4 + i));
          ASSERT_EQ(keys[i * 64 + p % 64], want);
          ASSERT_EQ(values[p % 64 * 4 + i], want ^ 0x8000);
        }
      }
}

TEST(KvCache, LongHeadsAreStoredWhole) {
  const VectorOps& ops = vector_ops(Isa::kScalar);
  auto cache = KvCache::make(uniform_kv_groups(1, 2, 300), 64);
  ASSERT_TRUE(cache && cache->reserve(64));
  std::vector<float> k(300), v(300);
  for (size_t i = 0; i < k.size(); ++i) k[i] = float(i), v[i] = -float(i);
  cache->store_head(ops, 0, 1, 63, k.data(), v.data());
  for (int64_t i = 0; i < 300; ++i) {
    ASSERT_EQ(f16_to_f32(cache->keys_f16(0, 1, 0)[i * 64 + 63]), float(i));
    ASSERT_EQ(f16_to_f32(cache->values_f16(0, 1, 0)[63 * 300 + i]), -float(i));
    ASSERT_EQ(cache->keys_f16(0, 1, 0)[i * 64 + 62], 0);
    ASSERT_EQ(cache->keys_f16(0, 0, 0)[i * 64 + 63], 0);
  }
}

TEST(KvCache, CapacityIsAnErrorAndChangesNothing) {
  auto cache = KvCache::make(uniform_kv_groups(1, 1, 2), 100);
  ASSERT_TRUE(cache);
  ASSERT_TRUE(cache->reserve(60));
  cache->commit(60);
  const auto status = cache->reserve(41);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message().find("60 + 41"), std::string::npos) << status.error().message();
  EXPECT_EQ(cache->length(), 60);
  EXPECT_TRUE(cache->reserve(40));
  EXPECT_FALSE(cache->truncate(61).has_value());
  EXPECT_FALSE(cache->truncate(-1).has_value());
  EXPECT_TRUE(cache->truncate(0));
  EXPECT_EQ(cache->bytes(), 0);
}

TEST(KvPool, SequencesSharePages) {
  auto pool = KvPool::make(uniform_kv_groups(1, 1, 2), 3);
  ASSERT_TRUE(pool);
  {
    KvCache a(*pool, 1000), b(*pool, 1000);
    ASSERT_TRUE(a.reserve(65));
    ASSERT_TRUE(b.reserve(64));
    EXPECT_EQ((*pool)->pages_in_use(), 3);
    b.commit(64);
    const auto status = b.reserve(1);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
    a.commit(65);
    ASSERT_TRUE(a.truncate(64));
    EXPECT_TRUE(b.reserve(1));
  }
  EXPECT_EQ((*pool)->pages_in_use(), 0);
  EXPECT_EQ((*pool)->allocated_bytes(), 3 * (*pool)->page_bytes(0));
}

/// Exact in f16.
float number_at(int64_t position, int64_t column, float mark) { return mark + float((position + 37 * column) % 509); }

/// Fills position p of every layer with numbers that tell sequence and place.
void append(KvCache& cache, int64_t n, float mark) {
  ThreadPool pool(1);
  const int64_t start = cache.length();
  for (int64_t layer = 0; layer < cache.pool().layers(); ++layer) {
    const int64_t width = cache.group_of(layer).row_elems();
    std::vector<float> rows(size_t(n * width));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < width; ++c) rows[size_t(i * width + c)] = number_at(start + i, layer * width + c, mark);
    cache.store(vector_ops(Isa::kScalar), layer, start, n, rows.data(), rows.data(), width, pool);
  }
  cache.commit(n);
}

/// Every number of positions [first, last) is the one that append() wrote with `mark`.
bool holds(const KvCache& cache, int64_t first, int64_t last, float mark) {
  for (int64_t layer = 0; layer < cache.pool().layers(); ++layer) {
    const KvGroup& g = cache.group_of(layer);
    for (int64_t p = first; p < last; ++p)
      for (int64_t h = 0; h < g.kv_heads; ++h) {
        const uint16_t* const keys = cache.keys_f16(layer, h, p / kKvPage);
        const uint16_t* const values = cache.values_f16(layer, h, p / kKvPage);
        for (int64_t i = 0; i < g.head_dim; ++i) {
          const uint16_t want = f32_to_f16(number_at(p, layer * g.row_elems() + h * g.head_dim + i, mark));
          if (keys[i * kKvPage + p % kKvPage] != want || values[p % kKvPage * g.head_dim + i] != want) return false;
        }
      }
  }
  return true;
}

TEST(KvCache, ForksShareUntilTheyWrite) {
  // Two groups: layers 0 and 2 have one head of 4, layer 1 two of 2 and a window.
  auto pool = KvPool::make(
      {{.layers = {0, 2}, .kv_heads = 1, .head_dim = 4}, {.layers = {1}, .kv_heads = 2, .head_dim = 2, .window = 70}},
      16, 3);
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_EQ((*pool)->group_of(1).window, 70);
  EXPECT_EQ((*pool)->group_of(2).head_dim, 4);
  KvCache a(*pool, 1000);
  ASSERT_TRUE(a.reserve(100));
  append(a, 100, 0);
  KvCache b = a.fork();
  EXPECT_EQ(b.length(), 100);
  EXPECT_EQ((*pool)->pages_in_use(), 4);
  ASSERT_TRUE(b.reserve(60));
  EXPECT_EQ((*pool)->pages_in_use(), 8);  // its own copy of the second page, and a third, in both groups
  append(b, 60, 0.5f);
  ASSERT_TRUE(a.reserve(1));
  append(a, 1, 0);
  EXPECT_TRUE(holds(a, 0, 101, 0));
  EXPECT_TRUE(holds(b, 0, 100, 0));
  EXPECT_TRUE(holds(b, 100, 160, 0.5f));
  // Back into the page that is still shared, and on.
  ASSERT_TRUE(b.truncate(10));
  ASSERT_TRUE(b.reserve(20));
  append(b, 20, 0.25f);
  EXPECT_TRUE(holds(a, 0, 101, 0));
  EXPECT_TRUE(holds(b, 0, 10, 0));
  EXPECT_TRUE(holds(b, 10, 30, 0.25f));
  KvCache c = b.fork();
  b = KvCache(*pool, 10);
  EXPECT_TRUE(holds(c, 10, 30, 0.25f));
  c.clear();
  a.clear();
  EXPECT_EQ((*pool)->pages_in_use(), 0);
}

TEST(KvCache, NoPageLeftChangesNothing) {
  auto pool = KvPool::make(uniform_kv_groups(1, 1, 2), 3, 2);
  ASSERT_TRUE(pool);
  KvCache a(*pool, 1000);
  ASSERT_TRUE(a.reserve(100));
  append(a, 100, 0);
  KvCache b = a.fork();
  // Of the two pages it needs, a copy and a new one, there is one.
  const uint64_t since = (*pool)->times_freed();
  const auto status = b.reserve(40);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ((*pool)->pages_in_use(), 2);
  EXPECT_TRUE(holds(b, 0, 100, 0));
  // Who fails wakes nobody who waits, not even itself.
  EXPECT_FALSE((*pool)->wait_until_freed(since, std::chrono::milliseconds(1)));
  a.clear();  // no page is free, but one is the fork's alone and needs no copy
  const uint64_t alone = (*pool)->times_freed();
  EXPECT_TRUE((*pool)->wait_until_freed(since, std::chrono::milliseconds(1)));
  ASSERT_TRUE(b.reserve(40));
  append(b, 40, 0);
  EXPECT_TRUE(holds(b, 0, 140, 0));
  EXPECT_FALSE((*pool)->wait_until_freed(alone, std::chrono::milliseconds(1)));
  b.clear();
  EXPECT_TRUE((*pool)->wait_until_freed(alone, std::chrono::milliseconds(1)));
}

/// Memory of a device that has `left` bytes, 2 pages at a time; `taken`: how often it was asked and had them.
struct SmallDevice {
  int64_t left = 0, taken = 0;
  KvPageMemory memory(int64_t granule = 1) {
    const auto allocate = [this](int64_t bytes) -> Result<Buffer> {
      if (bytes > left) return fail(ErrorCode::kOutOfMemory, "test", std::to_string(bytes), std::to_string(left));
      LOWBIT_TRY_ASSIGN(Buffer buffer, Buffer::allocate(bytes, "test"));
      left -= bytes;
      ++taken;
      const auto owner = std::shared_ptr<void>(nullptr, [this, bytes, buffer](void*) { left += bytes; });
      return Buffer::borrow(buffer.span(), owner);
    };
    return {allocate, {}, 2, granule};
  }
};

TEST(KvPool, MemoryOfADeviceIsTakenAsItIsUsed) {
  SmallDevice device{.left = 1 << 20};
  auto pool = KvPool::make(uniform_kv_groups(1, 1, 2), 1000, 0, {device.memory()});
  ASSERT_TRUE(pool);
  EXPECT_EQ(device.taken, 1);
  KvCache a(*pool, 10000), b(*pool, 10000);
  ASSERT_TRUE(a.reserve(128));
  append(a, 128, 0);
  EXPECT_EQ(device.taken, 1);
  ASSERT_TRUE(b.reserve(300));
  append(b, 300, 0.5f);
  EXPECT_EQ(device.taken, 4);  // 2 + 5 pages
  EXPECT_EQ((1 << 20) - device.left, 8 * (*pool)->page_bytes(0));
  b.clear();
  ASSERT_TRUE(a.reserve(300));
  append(a, 300, 0);
  EXPECT_EQ(device.taken, 4);  // on the pages of b
  EXPECT_TRUE(holds(a, 0, 428, 0));
}

TEST(KvPool, SlabsFillGranules) {
  // A page has 1,536 bytes: 2 of them leave a third of 4,608 empty, 3 leave nothing.
  SmallDevice device{.left = 1 << 20};
  auto pool = KvPool::make(uniform_kv_groups(1, 1, 6), 1000, 0, {device.memory(4608)});
  ASSERT_TRUE(pool);
  EXPECT_EQ((1 << 20) - device.left, 3 * (*pool)->page_bytes(0));
}

TEST(KvPool, EmptySlabsGoBackWhereMemoryRunsOut) {
  // Two forms of pages, the second three times as large; room for 12 of the first.
  const std::vector<KvGroup> groups = {{.layers = {0}, .kv_heads = 1, .head_dim = 2},
                                       {.layers = {1}, .kv_heads = 1, .head_dim = 6}};
  SmallDevice device{.left = 12 * 512};
  auto pool = KvPool::make(groups, 1000, 0, {device.memory(), device.memory()});
  ASSERT_TRUE(pool);
  EXPECT_EQ((*pool)->page_bytes(0), 512);
  const auto take = [&](int64_t small, int64_t large, std::vector<std::vector<KvPool::Page>>& pages) {
    pages.resize(size_t((*pool)->stores()));
    std::vector<int64_t> counts(pages.size());
    counts[0] = small;
    counts[1] = large;
    return (*pool)->take(counts, pages);
  };
  std::vector<std::vector<KvPool::Page>> kept, gone, more;
  ASSERT_TRUE(take(1, 1, kept));  // of a slab of each form
  kept[0][0].data[7] = kept[1][0].data[7] = std::byte{42};
  ASSERT_TRUE(take(5, 0, gone));
  EXPECT_EQ(device.left, 0);
  EXPECT_EQ(take(0, 2, more).error().code, ErrorCode::kOutOfMemory);  // there is no slab without pages in use
  EXPECT_EQ((*pool)->pages_in_use(), 7);
  for (const KvPool::Page& page : gone[0]) (*pool)->give_back(0, page.id);
  // Room for 4 small ones went back; two large ones need 6.
  EXPECT_EQ(take(2, 4, more).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ((*pool)->pages_in_use(), 2);
  ASSERT_TRUE(take(5, 0, more));  // what went back is taken again
  EXPECT_EQ(device.left, 0);
  for (const KvPool::Page& page : more[0]) EXPECT_NE(page.data, kept[0][0].data);
  EXPECT_EQ(kept[0][0].data[7], std::byte{42});
  EXPECT_EQ(kept[1][0].data[7], std::byte{42});
  for (const KvPool::Page& page : more[0]) (*pool)->give_back(0, page.id);
  device.left += 2 * 512;  // with the room of 4 enough for two large pages
  ASSERT_TRUE(take(0, 2, gone));
  EXPECT_EQ(device.left, 0);
  EXPECT_EQ((*pool)->pages_in_use(), 4);
}

TEST(KvPool, QuantizedPagesOfALongContextTakeLittle) {
  // A layer of an 8B, and the part of a GPU's granules of 2 MiB that is one layer's of 32.
  constexpr int64_t kPositions = 65'480, kChunk = 512, kGranule = (int64_t{2} << 20) / 32;
  const auto taken = [&](const char* format) {
    int64_t bytes = 0;
    const auto allocate = [&](int64_t more) {
      bytes += round_up(more, kGranule);
      return Buffer::allocate(64, "test");  // nobody reads or writes rows here
    };
    auto groups = uniform_kv_groups(1, 8, 128);
    groups[0].format = *parse_kv_format(format, kDefaultResidual);
    const auto nothing = [](std::byte*, const std::byte*, int64_t) { return Status{}; };
    auto pool = KvPool::make(groups, 4096, 0, {KvPageMemory{allocate, nothing, 8, kGranule}});
    KvCache cache(*pool, kPositions);
    while (cache.length() < kPositions) {
      const int64_t n = std::min(kChunk, kPositions - cache.length());
      EXPECT_TRUE(cache.open(n));
      cache.commit(n);
    }
    return double(bytes) / kGranule * 2;  // MiB of 32 layers
  };
  const double f16 = taken("f16");
  EXPECT_EQ(f16, 8192);
  EXPECT_LE(taken("int8"), 0.54 * f16);
  EXPECT_LE(taken("int4"), 0.29 * f16);
  EXPECT_LE(taken("int2"), 0.17 * f16);
}

TEST(KvPool, RefusesNonsense) {
  EXPECT_FALSE(KvPool::make(
      {{.layers = {0, 1}, .kv_heads = 1, .head_dim = 2}, {.layers = {1}, .kv_heads = 1, .head_dim = 2}}, 3));
  EXPECT_FALSE(KvPool::make({}, 3));

  EXPECT_FALSE(KvPool::make(uniform_kv_groups(0, 1, 2), 3).has_value());
  EXPECT_FALSE(KvPool::make(uniform_kv_groups(1, 1, 2), 0).has_value());
  EXPECT_FALSE(KvPool::make(uniform_kv_groups(1, int64_t{1} << 40, int64_t{1} << 30), 3).has_value());
  EXPECT_FALSE(KvCache::make(uniform_kv_groups(1, 1, 2), 0).has_value());
  EXPECT_TRUE(KvPool::make(uniform_kv_groups(1, 1, 1), 1).has_value());  // the least that is one
}

}  // namespace
}  // namespace lowbit
