#include <gtest/gtest.h>

#include <cstring>

#include "lowbit/tensor.h"
#include "tensor/buffer.h"

namespace lowbit {
namespace {

TEST(tensor, element_count_refuses_overflow_and_negative_extents) {
  EXPECT_EQ(*element_count({2, 3, 4}), 24);
  EXPECT_EQ(*element_count({}), 1);
  EXPECT_EQ(*element_count({0, 7}), 0);
  EXPECT_FALSE(element_count({-1}));
  EXPECT_FALSE(element_count({int64_t{1} << 42, int64_t{1} << 42}));
}

TEST(tensor, dtype_names_round_trip) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto d = static_cast<DType>(i);
    EXPECT_EQ(*parse_dtype(dtype_name(d)), d);
  }
  EXPECT_FALSE(parse_dtype("F12"));
}

TEST(tensor, converts_unaligned_elements) {
  std::byte raw[9];
  const uint16_t half[4] = {0x3c00, 0xc000, 0x0001, 0x7bff};
  std::memcpy(raw + 1, half, 8);
  const TensorView view{DType::kF16, {4}, {raw + 1, 8}};
  float out[4];
  convert_to_f32(view, 0, 4, out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -2.0f);
  EXPECT_EQ(out[2], 0x1p-24f);
  EXPECT_EQ(out[3], 65504.0f);
}

TEST(buffer, large_pages_are_a_wish_that_changes_nothing_but_the_place) {
  constexpr int64_t kPage = int64_t{2} << 20;
  for (const int64_t bytes : {int64_t{64}, kPage - 1, kPage, 3 * kPage + 12345}) {
    auto buffer = Buffer::allocate(bytes, "test", Pages::kLarge);
    ASSERT_TRUE(buffer);
    ASSERT_EQ(buffer->size(), bytes);
    if (bytes >= kPage) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kPage, 0u);
    }
    for (int64_t i = 0; i < bytes; i += 4001) EXPECT_EQ(buffer->as<uint8_t>()[i], 0);
    buffer->as<uint8_t>()[bytes - 1] = 7;
  }
  EXPECT_FALSE(Buffer::allocate(int64_t{1} << 60, "test", Pages::kLarge));
}

TEST(buffer, is_zeroed_aligned_and_shared) {
  for (int64_t bytes : {1, 100, 1 << 21}) {
    auto b = Buffer::allocate(bytes, "test");
    ASSERT_TRUE(b);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 64, 0u);
    for (int64_t i = 0; i < bytes; i += 61) EXPECT_EQ(b->as<uint8_t>()[i], 0);
    Buffer copy = *b;
    copy.as<uint8_t>()[0] = 7;
    EXPECT_EQ(b->as<uint8_t>()[0], 7);
  }
  const auto refused = Buffer::allocate(int64_t{1} << 60, "test");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace lowbit
