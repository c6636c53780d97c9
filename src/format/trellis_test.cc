#include "format/trellis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "base/rng.h"
#include "format/qtensor.h"
#include "format/registry.h"

namespace lowbit {
namespace {

constexpr FormatId kTrellisFormats[] = {FormatId::kTrellis2, FormatId::kTrellis3};

std::vector<uint8_t> random_bytes(Rng& rng, int64_t n) {
  std::vector<uint8_t> bytes(static_cast<size_t>(n), 0);
  for (auto& b : bytes) b = uint8_t(rng.below(256));
  return bytes;
}

/// Decodes a file's bytes as docs/formats.md describes.
std::vector<uint8_t> codes_by_definition(FormatId id, const std::vector<uint8_t>& row, int64_t n) {
  const bool two = id == FormatId::kTrellis2;
  const int bits = two ? 2 : 3, memory = two ? 3 : 2;
  const auto stored = [&](int64_t i) {
    unsigned c = 0;
    for (int b = 0; i >= 0 && b < bits; ++b) {
      const int64_t at = i * bits + b;
      c |= (row[size_t(at / 8)] >> (at % 8) & 1u) << b;
    }
    return c;
  };
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < n; ++i) {
    unsigned window = 0, code = 0;
    for (int back = 0; back <= memory; ++back) window |= stored(i - back) << (bits * back);
    for (int a = 0; a < 4; ++a) {
      const unsigned mask = two ? Trellis<2>::mask(a) : Trellis<3>::mask(a);
      code |= unsigned(std::popcount(window & mask) & 1) << a;
    }
    codes.push_back(uint8_t(code));
  }
  return codes;
}

TEST(trellis, any_bytes_are_a_row_and_mean_what_the_definition_says) {
  Rng rng(1);
  for (const FormatId id : kTrellisFormats)
    for (const int64_t n : {1, 2, 3, 4, 5, 8, 31, 64, 577}) {
      const std::vector<uint8_t> row = random_bytes(rng, row_bytes(id, n));
      std::vector<uint8_t> codes(static_cast<size_t>(n), 0), packed(row.size(), 0xa5);
      format_ops(id).unpack(row.data(), 0, n, codes.data());
      EXPECT_EQ(codes, codes_by_definition(id, row, n)) << format_info(id).name << " " << n;
      EXPECT_EQ(format_ops(id).pack(codes.data(), n, packed.data()), n);
      std::vector<uint8_t> again(codes.size(), 0);
      format_ops(id).unpack(packed.data(), 0, n, again.data());
      EXPECT_EQ(codes, again);
      const int64_t whole = n * (id == FormatId::kTrellis2 ? 2 : 3) / 8;  // unused bits are zero when packed
      EXPECT_TRUE(std::equal(row.begin(), row.begin() + whole, packed.begin()));
    }
}

TEST(trellis, a_row_takes_the_bytes_of_what_is_stored) {
  EXPECT_EQ(row_bytes(FormatId::kTrellis2, 576), 144);
  EXPECT_EQ(row_bytes(FormatId::kTrellis2, 577), 145);
  EXPECT_EQ(row_bytes(FormatId::kTrellis3, 9), 4);
  EXPECT_EQ(format_info(FormatId::kTrellis2).bits_per_code(), 2);
  EXPECT_EQ(format_info(FormatId::kTrellis3).bits_per_code(), 3);
  for (const FormatId id : kTrellisFormats) EXPECT_EQ(format_info(id).expanded, FormatId::kCodebook4);
  EXPECT_EQ(format_info(FormatId::kInt3).expanded, FormatId::kInt3);
  EXPECT_EQ(trellis_of(FormatId::kCodebook4), nullptr);
  EXPECT_EQ(trellis_of(FormatId::kF16), nullptr);
}

/// Of codes that are changed one at a time, pack() takes those after which the rest is still a path: none but the
/// last.
TEST(trellis, codes_off_the_trellis_are_refused_with_their_place) {
  Rng rng(2);
  for (const FormatId id : kTrellisFormats) {
    ValueTensor v;
    v.format = id;
    v.n = 2;
    v.k = 40;
    v.scales = {1, 1};
    v.codebook.resize(16);
    v.codes.assign(80, 0);
    for (auto& c : v.codes) c = uint8_t(rng.below(16));
    for (int64_t r = 0; r < 2; ++r) make_storable(id, v.codes.data() + r * 40, 40);
    ASSERT_TRUE(pack(v));
    int refused = 0;
    for (int64_t i = 0; i < 80; ++i)
      for (uint8_t code = 0; code < 16; ++code) {
        ValueTensor changed = v;
        changed.codes[size_t(i)] = code;
        const auto packed = pack(changed);
        if (packed) {
          EXPECT_EQ(unpack(*packed)->codes, changed.codes);
        } else {
          ++refused;
          EXPECT_EQ(packed.error().code, ErrorCode::kInvalidArgument);
          EXPECT_NE(packed.error().message().find("at row " + std::to_string(i / 40) + ", column "), std::string::npos)
              << packed.error().message();
          EXPECT_NE(packed.error().message().find("trellis offers"), std::string::npos);
        }
      }
    EXPECT_GT(refused, 80 * 15 * 2 / 3);
    v.codes[7] = 16;
    EXPECT_NE(pack(v).error().message().find("a code below 16"), std::string::npos);
  }
}

TEST(trellis, make_storable_keeps_rows_that_are) {
  Rng rng(3);
  for (const FormatId id : kTrellisFormats) {
    std::vector<uint8_t> codes(100, 0);
    const auto row = random_bytes(rng, row_bytes(id, 100));
    format_ops(id).unpack(row.data(), 0, 100, codes.data());
    std::vector<uint8_t> kept = codes;
    make_storable(id, kept.data(), 100);
    EXPECT_EQ(kept, codes);
  }
  std::vector<uint8_t> any = {15, 3, 9};
  make_storable(FormatId::kCodebook4, any.data(), 3);
  EXPECT_EQ(any, (std::vector<uint8_t>{15, 3, 9}));
}

TEST(trellis, the_drawing_names_the_parities) {
  EXPECT_EQ(draw_layout(FormatId::kTrellis2),
            "trellis2: 16 table entries, 4 behind each, 2 bits per code, 16 in 4 bytes\n"
            "stored: 2 bits for a code, as codebook2 stores them; c[i] for column i, 0 in front of the row\n"
            "code -> table entry: bit by bit the parity of\n"
            "  bit 0: c[i-1].0 c[i-2].1\n"
            "  bit 1: c[i-1].1 c[i-2].1\n"
            "  bit 2: c[i].0 c[i].1 c[i-2].1 c[i-3].0\n"
            "  bit 3: c[i].1 c[i-1].0 c[i-3].1\n");
}

}  // namespace
}  // namespace lowbit
