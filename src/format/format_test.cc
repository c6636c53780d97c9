#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "format/formats.h"
#include "format/registry.h"
#include "format/tile.h"

namespace lowbit {
namespace {

TEST(registry, names_round_trip_and_are_unique) {
  std::set<std::string> names;
  for (const FormatInfo& info : formats()) {
    EXPECT_EQ(*parse_format(info.name), info.id);
    EXPECT_TRUE(names.insert(info.name).second);
  }
  EXPECT_FALSE(parse_format("w3"));
}

TEST(registry, row_bytes_are_the_bits_rounded_up) {
  EXPECT_EQ(row_bytes(FormatId::kInt3, 8), 3);
  EXPECT_EQ(row_bytes(FormatId::kInt3, 9), 4);
  EXPECT_EQ(row_bytes(FormatId::kInt2, 5), 2);
  EXPECT_EQ(row_bytes(FormatId::kBinary, 9), 2);
  EXPECT_EQ(row_bytes(FormatId::kTernaryPacked, 6), 2);
  EXPECT_EQ(row_bytes(FormatId::kInt2Planes, 33), 16);
  EXPECT_EQ(row_bytes(FormatId::kBf16, 3), 6);
  EXPECT_EQ(row_bytes(FormatId::kInt8, 0), 0);
}

TEST(registry, any_row_length_packs_and_any_slice_unpacks) {
  Rng rng(7);
  for (const FormatInfo& info : formats()) {
    if (info.kind == ValueKind::kDense) continue;
    const FormatOps& ops = format_ops(info.id);
    for (int64_t k : {1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 63, 64, 65, 257}) {
      std::vector<uint8_t> codes(size_t(k), 0);
      for (auto& c : codes) c = uint8_t(rng.below(ops.codes));
      make_storable(info.id, codes.data(), k);
      std::vector<uint8_t> row(size_t(row_bytes(info.id, k)) + 1, 0xa5), back(codes.size());
      ops.pack(codes.data(), k, row.data());
      EXPECT_EQ(row.back(), 0xa5) << info.name << " wrote past the row";
      ops.unpack(row.data(), 0, k, back.data());
      EXPECT_EQ(codes, back) << info.name << " k=" << k;
      for (int slice = 0; slice < 8; ++slice) {
        const auto first = int64_t(rng.below(uint64_t(k))), n = 1 + int64_t(rng.below(uint64_t(k - first)));
        std::vector<uint8_t> part(size_t(n), 0);
        ops.unpack(row.data(), first, n, part.data());
        EXPECT_TRUE(std::equal(part.begin(), part.end(), codes.begin() + first)) << info.name;
      }
    }
  }
}

TEST(registry, values_and_codes_invert) {
  for (const FormatInfo& info : formats()) {
    if (info.kind != ValueKind::kInteger) continue;
    for (unsigned c = 0; c < format_ops(info.id).codes; ++c) {
      const float v = format_ops(info.id).values[c];
      EXPECT_LE(v, float(info.max_value)) << info.name << " code " << c;
      EXPECT_EQ(format_ops(info.id).values[code_of(info.id, int(v))], v) << info.name << " code " << c;
    }
  }
}

TEST(registry, ternary_alone_leaves_a_code_unused) {
  for (const FormatInfo& info : formats()) {
    if (info.kind == ValueKind::kDense) continue;
    const bool ternary = info.id == FormatId::kTernary || info.id == FormatId::kTernaryPacked;
    EXPECT_EQ(format_ops(info.id).codes, ternary ? 3u : 1u << info.code_bits) << info.name;
  }
}

TEST(affine, value_is_mul_times_flipped_code_plus_add) {
  const auto check = [](auto codec) {
    using C = decltype(codec);
    for (unsigned c = 0; c < unsigned(C::kCodes); ++c) EXPECT_EQ(C::value(c), C::kMul * int(c ^ C::kFlip) + C::kAdd);
  };
  check(TwosComplement<8>{});
  check(TwosComplement<4>{});
  check(OffsetBinary<3>{});
  check(OffsetBinary<2>{});
  check(OddSymmetric<3>{});
  check(OddSymmetric<1>{});
  check(Ternary{});
}

TEST(bitplanes, bit_serial_identity_of_seed_003) {
  Rng rng(3);
  for (int trial = 0; trial < 1000; ++trial) {
    const uint32_t w0 = uint32_t(rng.next()), w1 = uint32_t(rng.next());
    uint8_t pack[8];
    for (int i = 0; i < 4; ++i) pack[i] = uint8_t(w0 >> (8 * i)), pack[4 + i] = uint8_t(w1 >> (8 * i));
    int direct = 0, serial = 0;
    for (int e = 0; e < 32; ++e) {
      const int a = int(rng.below(255)) - 127;
      direct += a * Int2Planes::decode(pack, e);
      serial += a * (int(w0 >> e & 1u) + 2 * int(w1 >> e & 1u) - 2);
    }
    EXPECT_EQ(direct, serial);
  }
}

TEST(ternary_packed, all_243_bytes_hold_their_five_digits) {
  for (int number = 0; number < 243; ++number) {
    int digits[5], rest = number;
    for (int i = 4; i >= 0; --i) digits[i] = rest % 3, rest /= 3;
    uint8_t pack[1] = {0};
    for (int e = 0; e < 5; ++e) TernaryPacked::put(pack, e, unsigned(digits[e]));
    for (int e = 0; e < 5; ++e) EXPECT_EQ(TernaryPacked::code_at(pack, e), unsigned(digits[e]));
    EXPECT_EQ(pack[0], (number * 256 + 242) / 243);
  }
}

TEST(tile, seed_002_block_uses_each_word_sixteen_times) {
  int uses[32] = {};
  for (int n = 0; n < 16; ++n)
    for (int k = 0; k < 32; ++k) ++uses[Tile16x32::word(n, k)];
  for (int u : uses) EXPECT_EQ(u, 16);
  EXPECT_EQ(Tile16x32::word_of(16, 32, 64), 3 * 32);
}

TEST(tile, panel_is_a_permutation) {
  using P = Panel<8, 4>;
  std::set<int64_t> seen;
  for (int r = 0; r < 8; ++r)
    for (int b = 0; b < 20; ++b) EXPECT_TRUE(seen.insert(P::byte_of(r, b)).second);
  EXPECT_EQ(*seen.rbegin(), 159);
}

TEST(draw, shows_every_element_of_the_pack) {
  const std::string text = draw_layout(FormatId::kInt3);
  for (int e = 0; e < 32; ++e) EXPECT_NE(text.find(" " + std::to_string(e) + ".2"), std::string::npos) << text;
  EXPECT_EQ(draw_layout(FormatId::kInt2),
            "int2: -2..1, 2 bits per code, 16 in 4 bytes\n"
            "code -> value: 0 -> -2, 1 -> -1, 2 -> 0, 3 -> 1\n"
            "byte  bit 7 ... bit 0   (element.bit of its code)\n"
            "   0     3.1   3.0   2.1   2.0   1.1   1.0   0.1   0.0\n"
            "   1     7.1   7.0   6.1   6.0   5.1   5.0   4.1   4.0\n"
            "   2    11.1  11.0  10.1  10.0   9.1   9.0   8.1   8.0\n"
            "   3    15.1  15.0  14.1  14.0  13.1  13.0  12.1  12.0\n");
  EXPECT_NE(draw_layout(FormatId::kTernaryPacked).find("base-3"), std::string::npos);
}

}  // namespace
}  // namespace lowbit
