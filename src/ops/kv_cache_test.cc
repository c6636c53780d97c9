#include "ops/kv_cache.h"

#include <gtest/gtest.h>

#include "base/float.h"
#include "kernels/registry.h"

namespace lowbit {
namespace {

TEST(KvCache, StoresRowsWhereReadersLook) {
  ThreadPool pool(2);
  const VectorOps& ops = vector_ops(Isa::kScalar);
  const KvShape shape{3, 2, 4};
  auto cache = KvCache::make(shape, 200);
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
  auto cache = KvCache::make({1, 2, 300}, 64);
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
  auto cache = KvCache::make({1, 1, 2}, 100);
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
  auto pool = KvPool::make({1, 1, 2}, 3);
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
  EXPECT_EQ((*pool)->allocated_bytes(), 3 * (*pool)->page_bytes());
}

TEST(KvPool, RefusesNonsense) {
  EXPECT_FALSE(KvPool::make({0, 1, 2}, 3).has_value());
  EXPECT_FALSE(KvPool::make({1, 1, 2}, 0).has_value());
  EXPECT_FALSE(KvPool::make({int64_t{1} << 40, int64_t{1} << 30, 2}, 3).has_value());
  EXPECT_FALSE(KvCache::make({1, 1, 2}, 0).has_value());
  EXPECT_TRUE(KvPool::make({1, 1, 1}, 1).has_value());  // the least that is one
}

}  // namespace
}  // namespace lowbit
