#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "base/checked.h"
#include "base/cpu.h"
#include "base/float.h"
#include "base/rng.h"
#include "base/rounding.h"
#include "base/sha256.h"
#include "base/sha256_blocks.h"
#include "lowbit/error.h"

namespace lowbit {
namespace {

TEST(error, message_has_where_got_wanted_hint_on_one_line) {
  const Error e{ErrorCode::kShapeMismatch, "matmul w.k", "2560", "2048", "another\nmodel?"};
  EXPECT_EQ(e.message(), "matmul w.k: got 2560, wanted 2048. hint: another model?");
}

TEST(float16, every_code_round_trips) {
  for (uint32_t c = 0; c < 65536; ++c) {
    const float f = f16_to_f32(uint16_t(c));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f))));
    } else {
      EXPECT_EQ(f32_to_f16(f), c);
    }
    const float b = bf16_to_f32(uint16_t(c));
    if (!std::isnan(b)) {
      EXPECT_EQ(f32_to_bf16(b), c);
    }
  }
}

TEST(float16, rounds_to_nearest_even_like_the_compiler) {
  Rng rng(1);
  for (int i = 0; i < 2000000; ++i) {
    const float f = std::bit_cast<float>(uint32_t(rng.next()));
    if (std::isnan(f)) continue;
    const _Float16 h = static_cast<_Float16>(f);
    uint16_t want = 0;
    std::memcpy(&want, &h, 2);
    ASSERT_EQ(f32_to_f16(f), want) << f;
  }
}

TEST(e4m3, every_code_round_trips_and_rounding_is_nearest_even) {
  for (int c = 0; c < 256; ++c) {
    const float f = e4m3_to_f32(uint8_t(c));
    if (!std::isnan(f)) {
      EXPECT_EQ(f32_to_e4m3(f), c);
    }
  }
  EXPECT_EQ(e4m3_to_f32(f32_to_e4m3(1e9f)), 448.0f);
  EXPECT_EQ(e4m3_to_f32(f32_to_e4m3(-INFINITY)), -448.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(NAN))));
  for (int c = 0; c < 126; ++c) {  // midpoints go to the even neighbour, anything nearer goes to the near one
    const float lo = e4m3_to_f32(uint8_t(c)), hi = e4m3_to_f32(uint8_t(c + 1)), mid = lo + (hi - lo) / 2;
    EXPECT_EQ(f32_to_e4m3(mid), c % 2 == 0 ? c : c + 1);
    EXPECT_EQ(f32_to_e4m3(std::nextafter(mid, 0.0f)), c);
    EXPECT_EQ(f32_to_e4m3(std::nextafter(mid, 1e9f)), c + 1);
  }
}

TEST(rounding, shift_equals_rint) {
  Rng rng(2);
  for (int i = 0; i < 200000; ++i) {
    const int k = 1 + int(rng.below(19));
    const int64_t x = int64_t(rng.next() >> 24) - (int64_t{1} << 39);
    EXPECT_EQ(rounding_shift(x, k), int64_t(std::rint(std::ldexp(double(x), -k))));
  }
  EXPECT_EQ(rounding_shift(3, -2), 12);
  EXPECT_EQ(rounding_shift(INT64_MAX, 63), 0);
  EXPECT_EQ(round_half_even(2.5f), 2.0f);
  EXPECT_EQ(round_half_even(-3.5f), -4.0f);
}

TEST(checked, overflow_is_seen) {
  EXPECT_FALSE(checked_mul(uint64_t{1} << 42, uint64_t{1} << 22));
  EXPECT_EQ(*checked_add(1, 2), 3u);
  EXPECT_FALSE(checked_add(~uint64_t{0}, 1));
}

TEST(cpu, refuses_an_isa_that_is_unknown_or_missing) {
  EXPECT_FALSE(choose_isa("mmx"));
  EXPECT_TRUE(choose_isa("scalar"));
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx})
    EXPECT_EQ(choose_isa(isa_name(isa)).has_value(), isa_available(isa));
  EXPECT_FALSE(choose_threads(-1));
  EXPECT_GE(cpu_info().physical_cores, 1);
}

TEST(Sha256, PublishedVectorsInAnyPieces) {
  const auto digest = [](const std::string& text, size_t piece) {
    Sha256 hash;
    for (size_t i = 0; i < text.size(); i += piece)
      hash.update(std::as_bytes(std::span(text).subspan(i, std::min(piece, text.size() - i))));
    return hash.finish();
  };
  for (const size_t piece : {1u, 7u, 63u, 64u, 65u, 1000u}) {
    EXPECT_EQ(digest("", piece), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(digest("abc", piece), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", piece),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(digest(std::string(1'000'000, 'a'), piece),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

TEST(Sha256, TheProcessorsInstructionsGiveWhatThePlainLoopGives) {
  const Sha256Blocks fast = sha256_blocks_x86();
  if (fast == nullptr) GTEST_SKIP() << "no SHA instructions";
  Rng rng(3);
  std::vector<std::byte> bytes(9 * kSha256Block + 1);
  for (int round = 0; round < 200; ++round) {
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.below(256));
    Sha256State expected, state;
    for (uint32_t& word : expected) word = static_cast<uint32_t>(rng.below(uint64_t{1} << 32));
    state = expected;
    const size_t count = rng.below(10);
    sha256_blocks_ref(expected, bytes.data() + round % 2, count);
    fast(state, bytes.data() + round % 2, count);
    EXPECT_EQ(state, expected) << count << " blocks";
  }
}

}  // namespace
}  // namespace lowbit
