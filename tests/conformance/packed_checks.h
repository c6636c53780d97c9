// What packing of pages must give on a device: the bytes of the CPU. Included behind block_checks.h, by the tests that
// include that. No include guard: each has its own.

#include "kernels/cuda_packed_api.h"
#include "ops/kv_cache.h"

namespace lowbit {
namespace {

struct PackingCase {
  KvFormat format;
  int64_t kv_heads = 1, head_dim = 64;
  double deviation = 1.0;
  bool odd = false;  // rows of one value, of zeros, subnormal, with an infinity or a NaN
};

/// Values of a page that find the corners of packing.
void make_odd(std::vector<float>& rows, int64_t width) {
  const auto fill = [&](int64_t row, float v) { std::fill_n(rows.begin() + row * width, width, v); };
  fill(70, 0.0f);
  fill(71, -3.25f);
  fill(72, 1e-7f);
  rows[size_t(73 * width + 1)] = 60000.0f;
  rows[size_t(140 * width)] = INFINITY;
  rows[size_t(200 * width + 3)] = NAN;
  for (int64_t t = 256; t < 320; ++t) rows[size_t(t * width + 2)] = 0.0f;  // a key's element, over a page
}

/// Pages of the second of two layers, all of a prompt at once.
void check_packing(const PackingCase& c) {
  constexpr int64_t kLayer = 1, kRows = 6 * kKvPage;
  Rng rng(static_cast<uint64_t>(c.head_dim * 10 + c.format.key_bits + c.format.value_bits));
  const VectorOps& ops = *ref_table().vector;
  const int64_t width = c.kv_heads * c.head_dim;
  std::vector<KvGroup> groups = uniform_kv_groups(2, c.kv_heads, c.head_dim);
  groups[0].format = c.format;
  KvCache cache = *KvCache::make(groups, kRows);
  std::vector<float> k = random_floats(rng, kRows * width, c.deviation),
                     v = random_floats(rng, kRows * width, c.deviation);
  if (c.odd) {
    make_odd(k, width);
    make_odd(v, width);
  }
  ASSERT_TRUE(cache.reserve(kRows));
  for (const int64_t layer : {int64_t{0}, kLayer}) {
    cache.store(ops, layer, 0, kRows, k.data(), v.data(), width, one_thread());
    cache.pack(layer, kRows, one_thread());
  }
  const KvPool& pool = cache.pool();
  const PackedHeadBytes head = packed_head_bytes(c.format, c.head_dim);
  const int64_t packed = c.format.packed_pages(kRows - 1), bytes = pool.page_bytes(pool.packed_store(0));
  ASSERT_GT(packed, 0);
  std::vector<OnDevice<uint16_t>> f16;
  std::vector<OnDevice<uint8_t>> pages;
  std::vector<uint64_t> f16_table, table;
  std::vector<cuda::PackTask> tasks;
  for (int64_t p = 0; p < kRows / kKvPage; ++p) {
    const auto* const from = reinterpret_cast<const uint16_t*>(cache.pages_of(0)[size_t(p)].data);
    f16.emplace_back(std::vector<uint16_t>(from, from + pool.page_bytes(0) / 2));
    if (p < packed) pages.emplace_back(std::vector<uint8_t>(size_t(bytes), 0xa5));
    if (p < packed) tasks.push_back({0, int32_t(p + 1)});
  }
  for (const auto& page : f16) f16_table.push_back(reinterpret_cast<uint64_t>(page.data()));
  for (const auto& page : pages) table.push_back(reinterpret_cast<uint64_t>(page.data()));
  table.resize(f16_table.size());
  const OnDevice<uint64_t> f16_d(f16_table), table_d(table);
  const OnDevice<cuda::PackTask> tasks_d(tasks);
  cuda::PackedKv kv;
  kv.pages = {f16_d.data(), int64_t(f16_table.size()), kLayer, c.kv_heads, c.head_dim};
  kv.tables = table_d.data();
  kv.key_bits = c.format.key_bits;
  kv.value_bits = c.format.value_bits;
  kv.residual_pages = c.format.residual / kKvPage;
  kv.codes = head.codes();
  kv.key_codes = head.key_codes;
  kv.sides = head.sides();
  kv.key_side = head.key_side;
  kv.sides_at = 2 * c.kv_heads * head.codes();
  ASSERT_TRUE(cuda::pack_pages({kv, tasks_d.data(), int64_t(tasks.size()), nullptr}));
  for (int64_t p = 0; p < packed; ++p) {
    const std::vector<uint8_t> got = pages[size_t(p)].back();
    const auto* const wanted = reinterpret_cast<const uint8_t*>(cache.packed_pages_of(0)[size_t(p)].data);
    const auto same = [&](int64_t from, int64_t count) {
      return std::equal(wanted + from, wanted + from + count, got.begin() + from);
    };
    EXPECT_TRUE(same(c.kv_heads * head.codes(), c.kv_heads * head.codes())) << "codes of page " << p + 1;
    EXPECT_TRUE(same(kv.sides_at + c.kv_heads * head.sides(), c.kv_heads * head.sides())) << "sides of page " << p + 1;
    EXPECT_EQ(got[0], 0xa5) << "another layer's";
  }
}

void check_all_packing() {
  for (const int key_bits : {8, 4, 2})
    for (const int value_bits : {8, 4, 2})
      for (const auto& [kv_heads, head_dim] : {std::pair<int64_t, int64_t>{2, 64}, {1, 80}, {1, 16}, {1, 128}})
        check_packing({{key_bits, value_bits, 64}, kv_heads, head_dim});
  check_packing({{4, 2, 0}, 1, 256});
  for (const int bits : {8, 4, 2}) {
    check_packing({{bits, bits, 0}, 1, 32, 1.0, true});
    check_packing({{bits, bits, 0}, 1, 48, 1e-6, false});
    check_packing({{bits, bits, 0}, 1, 48, 9000.0, false});
  }
}

}  // namespace
}  // namespace lowbit
