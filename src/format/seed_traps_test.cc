// The mistakes of the five design documents, each pinned. ARCHITECTURE.md, "Traps in the seeds".
#include <gtest/gtest.h>

#include "base/float.h"
#include "base/rng.h"
#include "format/formats.h"
#include "format/qtensor.h"
#include "format/registry.h"

namespace lowbit {
namespace {

// Decoders of the documents, written down as they stand there.
int seed_000_decode(int bits, uint8_t packed, int index) {
  if (bits == 8) return int8_t(packed);
  if (bits == 4) {
    const uint8_t nibble = (index & 1) ? (packed >> 4) : (packed & 0x0f);
    return int8_t((nibble & 0x08) ? (nibble | 0xf0) : nibble);
  }
  if (bits == 2) return int((packed >> ((index & 3) * 2)) & 0x03) - 2;
  return ((packed >> (index & 7)) & 0x01) != 0 ? 1 : -1;
}
int seed_003_decode2(uint32_t word, int idx) {
  constexpr int kMap[4] = {-2, -1, 0, 1};
  return kMap[(word >> (2 * idx)) & 0x3u];
}

TEST(seed_000, one_two_four_eight_bits_decode_alike) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    uint8_t pack[4] = {uint8_t(byte), 0, 0, 0};
    EXPECT_EQ(Int8::decode(pack, 0), seed_000_decode(8, uint8_t(byte), 0));
    for (int e = 0; e < 2; ++e) EXPECT_EQ(Int4::decode(pack, e), seed_000_decode(4, uint8_t(byte), e));
    for (int e = 0; e < 4; ++e) EXPECT_EQ(Int2::decode(pack, e), seed_000_decode(2, uint8_t(byte), e));
    for (int e = 0; e < 8; ++e) EXPECT_EQ(Binary::decode(pack, e), seed_000_decode(1, uint8_t(byte), e));
  }
}

TEST(seed_000, binary_is_plus_minus_one_not_the_generic_range) {
  // The generic MIN/MAX of the document gives {-1, 0} for one bit; its decode gives {-1, +1}. The
  // decode wins.
  EXPECT_EQ(format_info(FormatId::kBinary).min_value, -1);
  EXPECT_EQ(format_info(FormatId::kBinary).max_value, 1);
}

TEST(seed_002, codes_are_one_to_three_and_lie_transposed) {
  // The prose says {0,1,2}; the code subtracts 2, so ternary weights are stored as 1, 2, 3.
  EXPECT_EQ(Int2Transposed::Codec::code(-1), 1u);
  EXPECT_EQ(Int2Transposed::Codec::code(1), 3u);
  const int order[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  for (int slot = 0; slot < 16; ++slot) {
    uint8_t pack[4] = {};
    Int2Transposed::put(pack, order[slot], 3);
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= uint32_t(pack[i]) << (8 * i);
    EXPECT_EQ(word, 3u << (2 * slot));
  }
}

TEST(seed_002, scales_belong_to_row_ranges_not_equal_sections) {
  // qkv of the 2B model is 2560 + 640 + 640 rows; cutting N by ws_num gives 1280 each, which is
  // wrong. 4 + 1 + 1 here.
  ValueTensor v;
  v.format = FormatId::kTernary;
  v.n = 6;
  v.k = 4;
  v.scaling = {Scaling::kRowRanges, Scaling::kAll, ScaleKind::kF32, ZeroKind::kNone};
  v.row_ends = {4, 5, 6};
  v.scales = {1.0f, 2.0f, 4.0f};
  v.codes.assign(24, 2);
  const auto w = pack(v);
  ASSERT_TRUE(w);
  float real[24];
  dequantize_rows(*w, 0, 6, real);
  const float want[6] = {1, 1, 1, 1, 2, 4};
  for (int r = 0; r < 6; ++r) EXPECT_EQ(real[4 * r], want[r]);
}

TEST(seed_003, masking_signed_values_is_not_an_encoding) {
  // pack16_2bit masks v & 3; its own decode2 then reads 16 of 16 wrong. The codec's code() is v
  // + 2.
  int wrong = 0;
  for (int i = 0; i < 16; ++i) {
    const int v = i % 4 - 2;
    wrong += seed_003_decode2(uint32_t(v & 3), 0) != v;
    EXPECT_EQ(seed_003_decode2(Int2::Codec::code(v), 0), v);
  }
  EXPECT_EQ(wrong, 16);
}

TEST(seed_003, ternary_masks_decode_alike) {
  Rng rng(5);
  for (int trial = 0; trial < 1000; ++trial) {
    uint8_t pack[8];
    for (auto& b : pack) b = uint8_t(rng.next());
    for (int e = 0; e < 32; ++e) {
      const bool nz = pack[e / 8] >> (e % 8) & 1, sign = pack[4 + e / 8] >> (e % 8) & 1;
      EXPECT_EQ(TernaryPlanes::decode(pack, e), nz ? (sign ? 1 : -1) : 0);
    }
  }
}

TEST(seed_003, no_format_is_named_w2_or_w3) {
  for (const FormatInfo& info : formats()) EXPECT_NE(std::string(info.name).substr(0, 1), "w");
}

TEST(seed_004, an_all_zero_block_has_no_nan) {
  // s = 0 and 0 / 0 in the document. Here a zero scale means zero, and E4M3 has a code for it.
  ValueTensor v;
  v.format = FormatId::kFp8;
  v.n = 3;
  v.k = 5;
  v.scaling = {2, 4, ScaleKind::kF32, ZeroKind::kNone};  // and the last block of both directions is partial
  v.codes.assign(15, f32_to_e4m3(0.0f));
  v.scales.assign(4, 0.0f);
  const auto w = pack(v);
  ASSERT_TRUE(w) << w.error().message();
  float real[15];
  dequantize_rows(*w, 0, 3, real);
  for (float r : real) EXPECT_EQ(r, 0.0f);
}

}  // namespace
}  // namespace lowbit
