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
        float k[64 * 4], v[64 * 4];
        const int64_t count = std::min<int64_t>(64, 130 - p / 64 * 64);
        cache->keys_f32(ops, layer, head, p / 64, count, k);
        cache->values_f32(ops, layer, head, p / 64, count, v);
        for (int64_t i = 0; i < 4; ++i) {
          const float want = f16_to_f32(f32_to_f16(float(layer * 2000 + p * 8 + head * 4 + i)));
          ASSERT_EQ(k[p % 64 * 4 + i], want);
          ASSERT_EQ(v[p % 64 * 4 + i], -want);
          ASSERT_EQ(cache->keys_f16(layer, head, p / 64)[p % 64 * 4 + i], f32_to_f16(want));
        }
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
