#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace lowbit {
namespace {

TEST(Arena, BuffersAreZeroedAlignedAndApart) {
  Arena arena;
  std::vector<Buffer> all;
  for (int64_t i = 0; i < 400; ++i) {
    const int64_t bytes = 1 + i * 7919 % 100'000 * (i % 10 == 0 ? 30 : 1);  // some are larger than a large page
    auto buffer = arena.allocate(bytes, "test");
    ASSERT_TRUE(buffer);
    ASSERT_EQ(buffer->size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0U);
    EXPECT_TRUE(std::ranges::all_of(buffer->span(), [](std::byte b) { return b == std::byte{0}; }));
    std::memset(buffer->data(), static_cast<int>(i % 255 + 1), static_cast<size_t>(bytes));
    all.push_back(std::move(*buffer));
  }
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_TRUE(std::ranges::all_of(all[i].span(), [&](std::byte b) { return b == std::byte(i % 255 + 1); })) << i;
}

TEST(Arena, ABufferOutlivesItsArena) {
  std::optional<Arena> arena(std::in_place);
  Buffer kept = *arena->allocate(1000, "test");
  std::memset(kept.data(), 7, 1000);
  arena.reset();
  EXPECT_EQ(kept.data()[999], std::byte{7});
}

// A source that counts what of it is alive.
int alive = 0, asked = 0;
int64_t most = INT64_MAX;
Result<Buffer> counted(int64_t bytes, const char* what) {
  ++asked;
  if (bytes > most) return Buffer::allocate(-1, what);
  auto memory = std::make_shared<Buffer>(*Buffer::allocate(bytes, what));
  ++alive;
  std::shared_ptr<void> owner(memory.get(), [memory](void*) { --alive; });
  return Buffer::borrow(memory->span(), std::move(owner));
}

TEST(Arena, SlabsAreFilledAndFreedWithTheirBuffers) {
  alive = asked = 0;
  Arena arena(counted, 1000, 500, 256);
  std::vector<Buffer> all;
  for (const int64_t bytes : {300, 400, 200, 100, 450, 500}) all.push_back(*arena.allocate(bytes, "test"));
  EXPECT_EQ(asked, 3);  // 300 and 400 fill a slab, 200, 100 and 450 another; 500 is alone
  EXPECT_EQ(alive, 3);
  EXPECT_EQ(all[1].data(), all[0].data() + 512);
  EXPECT_EQ(all[3].data(), all[2].data() + 256);
  EXPECT_EQ(all[4].data(), all[2].data() + 512);
  all.erase(all.begin() + 2, all.end());
  EXPECT_EQ(alive, 1);
  all.erase(all.begin());
  EXPECT_EQ(alive, 1);
  all.clear();
  EXPECT_EQ(alive, 0);
  EXPECT_TRUE(arena.allocate(300, "test"));  // of a slab that is new
  EXPECT_EQ(asked, 4);
}

TEST(Arena, WithoutRoomForASlabABufferIsAlone) {
  alive = asked = 0;
  most = 600;
  Arena arena(counted, 1000, 500, 256);
  const auto buffer = arena.allocate(300, "test");
  most = INT64_MAX;
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer->size(), 300);
  EXPECT_EQ(asked, 2);
}

TEST(Arena, SizesThatAreNone) {
  Arena arena;
  EXPECT_TRUE(arena.allocate(0, "test")->empty());
  EXPECT_EQ(arena.allocate(-1, "test").error().code, ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace lowbit
