// Packed matrices of the KV cache: names of formats, what rows become and how they come back, products with them.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "base/float.h"
#include "base/rng.h"
#include "kernels/pack_rows.h"
#include "kernels/ref/packed_kv.h"
#include "kernels/registry.h"
#include "ops/kv_pool.h"

namespace lowbit {
namespace {

struct Packed {
  PackedShape shape;
  std::vector<uint8_t> codes, side;
  PackedMatrix matrix() const { return {codes.data(), side.data()}; }
  /// Real numbers, by the format's words.
  double at(int64_t r, int64_t c) const {
    float supers[2];
    std::memcpy(supers, side.data(), sizeof(supers));
    const int code = code_at(codes.data(), shape, r, c);
    return double(supers[1]) * int8_t(side[size_t(8 + shape.rows + r)]) +
           double(supers[0]) * side[size_t(8 + r)] * code;
  }
};

Packed pack(const std::vector<float>& rows, const PackedShape& shape) {
  std::vector<uint16_t> half;
  for (const float v : rows) half.push_back(f32_to_f16(v));
  Packed p{shape, std::vector<uint8_t>(size_t(shape.code_bytes())), std::vector<uint8_t>(size_t(shape.side_bytes()))};
  pack_rows(half.data(), shape.columns, shape, p.codes.data(), p.side.data());
  return p;
}

std::vector<float> random_rows(Rng& rng, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = f16_to_f32(f32_to_f16(float(rng.normal())));
  return x;
}

std::vector<PackedShape> shapes() {
  std::vector<PackedShape> all;
  for (const int bits : {2, 3, 4, 8})
    for (const int64_t rows : {16, 64, 80, 256})
      for (const int64_t columns : {16, 32, 48, 64})
        if (bits != 3 || rows * columns % 512 == 0) all.push_back({bits, rows, columns});
  return all;
}

TEST(PackedKv, EveryBitHoldsOneCode) {
  for (const PackedShape& s : shapes()) {
    if (s.rows * s.columns % 512 != 0 || s.bits == 3) continue;  // no matrix of a page; two of them
    std::set<std::pair<int64_t, int>> places;
    for (int64_t r = 0; r < s.rows; ++r)
      for (int64_t c = 0; c < s.columns; ++c) {
        const CodePosition at = code_position(s, r, c);
        ASSERT_TRUE(at.byte >= 0 && at.byte < s.code_bytes() && at.shift % s.bits == 0 && at.shift + s.bits <= 8);
        ASSERT_TRUE(places.emplace(at.byte, at.shift).second) << s.bits << " " << s.rows << " " << s.columns;
      }
  }
}

TEST(PackedKv, CodesAreNearestWithinTheRange) {
  Rng rng(1);
  for (const PackedShape& s : shapes()) {
    std::vector<float> rows = random_rows(rng, s.rows * s.columns);
    for (int64_t c = 0; c < s.columns; ++c) rows[size_t(c)] = 3.0f;  // no range at all
    for (int64_t c = 0; c < s.columns; ++c) rows[size_t(s.columns + c)] *= 100;
    const Packed p = pack(rows, s);
    double error = 0, total = 0;
    for (int64_t r = 0; r < s.rows; ++r) {
      const float* const row = rows.data() + r * s.columns;
      const auto [least, most] = std::minmax_element(row, row + s.columns);
      const double range = double(*most) - double(*least);
      for (int64_t c = 0; c < s.columns; ++c) {
        const double e = std::fabs(p.at(r, c) - row[c]);
        // Half a step, and for ranges that shrink what lies outside; least values and steps are rounded to 8 bits of
        // the largest.
        ASSERT_LE(e, range * (s.bits == 8 ? 0.5 / 255 : 0.5) + 6.0) << s.bits << " row " << r;
        if (r < 2) continue;
        error += e * e;
        total += double(row[c]) * row[c];
      }
    }
    EXPECT_GT(total, 0);
    EXPECT_GE(error, 0);
  }
}

TEST(PackedKv, ErrorOfNormalNumbers) {
  // Relative RMS errors of rows of 64 normal numbers; a format that got worse would show.
  Rng rng(2);
  for (const auto& [bits, most] : {std::pair{8, 0.006}, {4, 0.095}, {3, 0.19}, {2, 0.38}}) {
    const PackedShape s = {bits, 64, 64};
    const std::vector<float> rows = random_rows(rng, 64 * 64);
    const Packed p = pack(rows, s);
    double error = 0, total = 0;
    for (int64_t i = 0; i < 64 * 64; ++i) {
      const double e = p.at(i / 64, i % 64) - double(rows[size_t(i)]);
      error += e * e;
      total += double(rows[size_t(i)]) * double(rows[size_t(i)]);
    }
    EXPECT_LE(std::sqrt(error / total), most) << bits;
  }
}

TEST(PackedKv, BitsPerElement) {
  for (const auto& [name, most] : {std::pair{"int8", 8.3}, {"fp8", 8.2}, {"int4", 4.3}, {"int3", 3.3}, {"int2", 2.5}})
    for (const int64_t d : {64, 128}) {
      const PackedHeadBytes bytes = packed_head_bytes(*parse_kv_format(name, 128), d);
      EXPECT_LE(8.0 * double(bytes.codes() + bytes.sides()) / double(2 * d * kKvPage), most) << name << " " << d;
    }
}

TEST(PackedKv, ProductsAreThoseOfTheRealNumbers) {
  Rng rng(3);
  for (const PackedShape& s : shapes()) {
    const std::vector<float> rows = random_rows(rng, s.rows * s.columns), x = random_rows(rng, s.rows);
    const Packed p = pack(rows, s);
    float y[64];
    packed_product(x.data(), s, p.matrix(), y);
    for (int64_t c = 0; c < s.columns; ++c) {
      double want = 0, size = 0;
      for (int64_t r = 0; r < s.rows; ++r) {
        want += double(x[size_t(r)]) * p.at(r, c);
        size += std::fabs(double(x[size_t(r)]) * p.at(r, c));
      }
      // x is rounded to 1 / 32767 of its largest; the rest is f32.
      ASSERT_NEAR(y[c], want, 5e-4 * (size + 1)) << s.bits << " " << s.rows << " " << s.columns;
    }
  }
}

TEST(PackedKv, UnpackedRowsAreTheRealNumbers) {
  Rng rng(4);
  for (const PackedShape& s : shapes()) {
    Packed p = pack(random_rows(rng, s.rows * s.columns), s);
    std::vector<uint16_t> half(size_t(s.rows * (s.columns + 3)), 7);
    unpack_rows(p.matrix(), s, s.columns + 3, half.data());
    for (int64_t r = 0; r < s.rows; ++r)
      for (int64_t c = 0; c < s.columns + 3; ++c) {
        const uint16_t got = half[size_t(r * (s.columns + 3) + c)];
        const double want = c < s.columns ? p.at(r, c) : f16_to_f32(7);
        ASSERT_NEAR(f16_to_f32(got), want, c < s.columns ? 6e-4 * std::fabs(want) + 1e-6 : 0);
      }
    p = pack(std::vector<float>(size_t(s.rows * s.columns), -65504.0f), s);  // least values are rounded down
    unpack_rows(p.matrix(), s, s.columns, half.data());
    EXPECT_EQ(f16_to_f32(half[0]), -65504.0f);
    std::vector<float> bad(size_t(s.rows * s.columns), 1.0f);
    bad[5] = INFINITY;
    p = pack(bad, s);
    unpack_rows(p.matrix(), s, s.columns, half.data());
    EXPECT_TRUE(std::isnan(f16_to_f32(half[0])));
  }
}

TEST(PackedKv, NaNAndInfinityShow) {
  const PackedShape s = {4, 16, 16};
  for (const float bad : {float(NAN), float(INFINITY), -float(INFINITY)}) {
    std::vector<float> rows(256, 1.0f), x(16, 1.0f);
    rows[37] = bad;
    float y[16];
    packed_product(x.data(), s, pack(rows, s).matrix(), y);
    for (const float v : y) EXPECT_TRUE(std::isnan(v));
    rows[37] = 1;
    x[3] = bad;
    packed_product(x.data(), s, pack(rows, s).matrix(), y);
    for (const float v : y) EXPECT_TRUE(std::isnan(v));
  }
  std::vector<float> zeros(256), x(16, 1.0f);
  float y[16];
  packed_product(x.data(), s, pack(zeros, s).matrix(), y);
  for (const float v : y) EXPECT_EQ(v, 0);
}

TEST(KvFormat, Names) {
  for (const char* name : {"f16", "fp8", "int8", "int4", "int3", "int2", "k8v4", "k4v2", "k2v8", "k3v2"}) {
    const auto format = parse_kv_format(name, 100);
    ASSERT_TRUE(format) << name;
    EXPECT_EQ(kv_format_name(*format), name);
    EXPECT_EQ(format->residual, format->packed() ? 128 : 0);
  }
  for (const char* name : {"int5", "f8", "k4", "k4v5", "k16v4", "int44", "K4V2"})
    EXPECT_FALSE(parse_kv_format(name, 0));
  EXPECT_FALSE(parse_kv_format("int4", -1));
  KvFormat format = *parse_kv_format("int4", 64);
  EXPECT_TRUE(set_kv_upkeep(150, "300:int2", format));
  EXPECT_EQ(format.refresh, 192);
  EXPECT_EQ(kv_demote_name(format), "320:int2");
  for (const char* demote : {"300", ":int2", "300:", "x:int2", "300:f16", "300:fp8", "300:int8", "64:int2", "-1:int2",
                             "300:k2v8", "3e2:int2", "300 :int2", "99999999999999999999:int2"}) {
    KvFormat other = *parse_kv_format("int4", 64);
    EXPECT_FALSE(set_kv_upkeep(0, demote, other)) << demote;
  }
  KvFormat other = *parse_kv_format("int4", 64), f16;
  EXPECT_FALSE(set_kv_upkeep(128, "", other));  // no position would read another one of them packed
  EXPECT_FALSE(set_kv_upkeep(-1, "", other));
  EXPECT_FALSE(set_kv_upkeep(512, "500:int2", other));  // demoted before it is refreshed
  EXPECT_FALSE(set_kv_upkeep(128, "", f16));
  EXPECT_FALSE(set_kv_upkeep(0, "300:int2", f16));
  EXPECT_TRUE(set_kv_upkeep(0, "", f16));
  for (int64_t position = 0; position < 1000; ++position) {
    int64_t pages = 0;  // by the words of the definition
    for (int64_t g = 1; g < 20; ++g) pages += position / 64 >= g + 1 + 64 / 64;
    ASSERT_EQ(format.packed_pages(position), pages);
    int64_t demoted = 0;
    for (int64_t g = 1; g < 20; ++g) demoted += position / 64 >= g + 1 + 320 / 64;
    ASSERT_EQ(format.demoted_pages(position), demoted);
  }
}

TEST(KvPool, RefusesHeadsThatCannotBePacked) {
  for (const int64_t d : {8, 24, 272}) {
    auto groups = uniform_kv_groups(1, 1, d);
    groups[0].format = *parse_kv_format("int4", 0);
    const auto pool = KvPool::make(groups, 4);
    ASSERT_FALSE(pool);
    EXPECT_EQ(pool.error().code, ErrorCode::kUnsupported);
  }
}

}  // namespace
}  // namespace lowbit
