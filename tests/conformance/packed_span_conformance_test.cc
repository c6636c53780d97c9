// Attention of spans with packed pages: every instruction set against the reference, on random matrices.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/cpu.h"
#include "base/float.h"
#include "base/rng.h"
#include "kernels/packed_span.h"
#include "kernels/registry.h"

namespace lowbit {
namespace {

/// A span whose pages are packed with any bits, or f16, and what queries see of it.
struct Problem {
  Rng rng;
  int64_t d, queries;
  PackedSpan a;
  std::vector<std::vector<uint8_t>> bytes;  // of codes and sides
  std::vector<uint16_t> f16;                // of a page
  std::vector<float> q;
  std::vector<int32_t> begin, end;

  Problem(uint64_t seed, int64_t head, int64_t count) : rng(seed), d(head), queries(count) {
    for (int64_t i = 0; i < kKvPage * d; ++i) f16.push_back(f32_to_f16(float(rng.normal())));
    for (int64_t p = 0; p < kSpanPages; ++p) {
      a.keys[p] = a.values[p] = rng.below(4) == 0 ? f16.data() : nullptr;
      a.key_bits[p] = bits(), a.value_bits[p] = bits();
      a.packed_keys[p] = matrices({{a.key_bits[p], d, kKvPage}});
      std::vector<PackedShape> blocks;
      for (int64_t i = 0, width = value_columns(a.value_bits[p]); i < d; i += width)
        blocks.push_back({a.value_bits[p], kKvPage, std::min(width, d - i)});
      a.packed_values[p] = matrices(blocks);
    }
    for (int64_t i = 0; i < queries * d; ++i) q.push_back(float(rng.normal()));
    if (rng.below(4) == 0 && queries > 0) q[size_t(below(queries * d))] = odd();
    const int32_t first = below(kAttentionSpan), same = below(3);
    for (int64_t j = 0; j < queries; ++j) {  // all of it, from one place on, or any range
      begin.push_back(same == 0 ? 0 : same == 1 ? first : below(kAttentionSpan));
      end.push_back(same < 2 ? int32_t(kAttentionSpan) : begin.back() + below(kAttentionSpan + 1 - begin.back()));
    }
  }
  int32_t below(int64_t n) { return int32_t(rng.below(uint32_t(n))); }
  int bits() { return std::array{2, 3, 4, 8}[rng.below(4)]; }
  float odd() { return std::array{NAN, INFINITY, -INFINITY, 1e38f, 1e-38f, 0x1p-101f}[rng.below(6)]; }
  /// One behind the other: any codes, and sides with units that are sometimes odd.
  PackedMatrix matrices(const std::vector<PackedShape>& shapes) {
    std::vector<uint8_t> codes, side;
    for (const PackedShape& s : shapes) {
      for (int64_t i = 0; i < s.code_bytes(); ++i) codes.push_back(uint8_t(rng.below(256)));
      float units[2] = {float(rng.uniform()) / 1000, float(rng.uniform()) / 100};
      if (rng.below(40) == 0) units[rng.below(2)] = odd();
      for (int64_t i = 0; i < s.side_bytes(); ++i) side.push_back(uint8_t(rng.below(256)));
      std::memcpy(side.data() + side.size() - s.side_bytes(), units, sizeof(units));
    }
    bytes.insert(bytes.end(), {codes, side});
    return {(bytes.end() - 2)->data(), bytes.back().data()};
  }

  /// m, l and o of all queries; what is not written stays 7.
  std::vector<float> run(const VectorOps& ops) {
    std::vector<float> result(size_t(queries * (2 + d)), 7);
    std::vector<float> scratch(size_t(queries * kAttentionSpan + kKvPage * d + 16), NAN);
    a.d = a.ldq = a.ldo = d, a.scale = 0.125f, a.queries = queries, a.q = q.data();
    a.begin = begin.data(), a.end = end.data(), a.m = result.data(), a.l = a.m + queries, a.o = a.l + queries;
    a.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / sizeof(float);
    ops.attend_span(a);
    return result;
  }
};

/// All instruction sets against the reference.
void expect_equal(Problem& span, uint64_t seed) {
  const auto want = span.run(vector_ops(Isa::kScalar));
  for (const Isa isa : {Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx}) {
    if (!isa_available(isa)) continue;
    const auto got = span.run(vector_ops(isa));
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_TRUE(std::memcmp(&got[i], &want[i], sizeof(float)) == 0 || (std::isnan(got[i]) && std::isnan(want[i])) ||
                  (got[i] == 0 && want[i] == 0 && i < size_t(span.queries)))  // either zero is a maximum
          << isa_name(isa) << ", seed " << seed << ", element " << i << ": " << got[i] << ", not " << want[i];
  }
}

TEST(PackedSpans, EqualTheReference) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Problem span(seed, 16 * (1 + int64_t(seed * 7 % 16)), int64_t(seed % 31));
    expect_equal(span, seed);
  }
}

TEST(PackedSpans, LargestSumsFit) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Problem span(seed, kMostPackedRows, 1 + int64_t(seed % 7));
    std::ranges::fill(span.q, seed % 2 == 0 ? 1.0f : -1.0f);
    for (int64_t p = 0; p < kSpanPages; ++p) {  // of each page: codes and side of keys, then of values
      std::ranges::fill(span.bytes[size_t(4 * p)], uint8_t(255));
      std::fill_n(span.bytes[size_t(4 * p + 1)].begin() + 2 * sizeof(float), span.d, uint8_t(255));
    }
    expect_equal(span, seed);
  }
}

}  // namespace
}  // namespace lowbit
