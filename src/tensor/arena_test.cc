#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
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

TEST(Arena, SizesThatAreNone) {
  Arena arena;
  EXPECT_TRUE(arena.allocate(0, "test")->empty());
  EXPECT_EQ(arena.allocate(-1, "test").error().code, ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace lowbit
