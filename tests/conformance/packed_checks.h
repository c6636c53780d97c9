// Checks that packing of pages on a device gives the bytes of the CPU. Included behind block_checks.h, by the tests
// that include that. No include guard: each has its own.

#include "kernels/cuda_packed_api.h"
#include "ops/kv_cache.h"

namespace lowbit {
namespace {

/// Packed pages of one layer of `heads` heads, as kernels get them.
cuda::PackedPages packed_form(const KvFormat& format, int64_t head_dim, int64_t heads, const uint64_t* tables) {
  const PackedHeadBytes head = packed_head_bytes(format, head_dim);
  return {tables,       format.key_bits, format.value_bits, format.fp8,    format.residual / kKvPage,
          head.codes(), head.key_codes,  head.sides(),      head.key_side, heads * head.codes()};
}

/// A store's pages 1 to `count` on a device; their addresses, and a table of `most` at least.
struct PagesOnDevice {
  std::vector<OnDevice<uint8_t>> pages;
  std::vector<uint64_t> addresses;
};
PagesOnDevice blank_pages(int64_t count, int64_t bytes, size_t most) {
  PagesOnDevice all;
  for (int64_t p = 0; p < count; ++p) all.pages.emplace_back(std::vector<uint8_t>(size_t(bytes), 0xa5));
  for (const auto& page : all.pages) all.addresses.push_back(reinterpret_cast<uint64_t>(page.data()));
  all.addresses.resize(most);
  return all;
}

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
  const int64_t packed = c.format.packed_pages(kRows - 1), old = c.format.demoted_pages(kRows - 1);
  ASSERT_GT(packed, 0);
  std::vector<OnDevice<uint16_t>> f16;
  std::vector<uint64_t> f16_table;
  for (int64_t p = 0; p < kRows / kKvPage; ++p) {
    const auto* const from = reinterpret_cast<const uint16_t*>(cache.pages_of(0)[size_t(p)].data);
    f16.emplace_back(std::vector<uint16_t>(from, from + pool.page_bytes(0) / 2));
  }
  for (const auto& page : f16) f16_table.push_back(reinterpret_cast<uint64_t>(page.data()));
  const int stores[] = {pool.packed_store(0), pool.demoted_store(0)};
  const PagesOnDevice pages[] = {blank_pages(packed, pool.page_bytes(stores[0]), f16_table.size()),
                                 blank_pages(old, pool.page_bytes(stores[1]), f16_table.size())};
  const OnDevice<uint64_t> f16_d(f16_table), table_d(pages[0].addresses), old_d(pages[1].addresses);
  std::vector<cuda::PackTask> tasks;
  for (int64_t p = 0; p < packed; ++p) tasks.push_back({0, int32_t(p + 1)});
  const OnDevice<cuda::PackTask> tasks_d(tasks);
  cuda::PackedKv kv;
  kv.pages = {f16_d.data(), int64_t(f16_table.size()), kLayer, c.kv_heads, c.head_dim};
  kv.packed = packed_form(c.format, c.head_dim, 2 * c.kv_heads, table_d.data());
  if (old > 0) kv.old = packed_form(c.format.demoted(), c.head_dim, 2 * c.kv_heads, old_d.data());
  ASSERT_TRUE(cuda::pack_pages({kv, tasks_d.data(), packed, nullptr}));
  ASSERT_TRUE(cuda::pack_pages({kv, tasks_d.data(), old, nullptr, true}));
  for (const int which : {0, 1}) {
    const PackedHeadBytes head = packed_head_bytes(which == 0 ? c.format : c.format.demoted(), c.head_dim);
    for (size_t p = 0; p < pages[which].pages.size(); ++p) {
      const std::vector<uint8_t> got = pages[which].pages[p].back();
      const auto* const wanted = reinterpret_cast<const uint8_t*>(cache.pages_in(stores[which])[p].data);
      const auto same = [&](int64_t from, int64_t count) {
        return std::equal(wanted + from, wanted + from + count, got.begin() + from);
      };
      const int64_t codes = c.kv_heads * head.codes(), sides = c.kv_heads * head.sides();
      EXPECT_TRUE(same(codes, codes)) << "codes of page " << p + 1 << " of " << kv_format_name(c.format) << ", "
                                      << which;
      EXPECT_TRUE(same(2 * codes + sides, sides)) << "sides of page " << p + 1 << " of " << kv_format_name(c.format);
      EXPECT_EQ(got[0], 0xa5) << "another layer's";
    }
  }
}

struct PackedAttentionCase {
  KvFormat format;
  int64_t heads = 1, kv_heads = 1, head_dim = 64;
  std::vector<std::pair<int64_t, int64_t>> sequences;  // position of the first row, rows
  int64_t window = 0;
  double deviation = 1.0;
  bool odd = false;
};

/// A sequence of a case: its cache, and copies of its pages on a device.
struct PackedSequence {
  KvCache cache;
  std::vector<OnDevice<uint8_t>> stores[3];  // f16, packed, demoted
  std::vector<float> keys;                   // [positions, kv_heads, head_dim]
};
constexpr float kPackedScale = 0.3f;
PackedSequence packed_sequence(const PackedAttentionCase& c, int64_t positions, Rng& rng) {
  std::vector<KvGroup> groups = uniform_kv_groups(1, c.kv_heads, c.head_dim);
  groups[0].format = c.format;
  PackedSequence s{*KvCache::make(groups, positions), {}, {}};
  const VectorOps& ops = *ref_table().vector;
  const int64_t width = c.kv_heads * c.head_dim;
  std::vector<float> k = random_floats(rng, positions * width, c.deviation),
                     v = random_floats(rng, positions * width, c.deviation);
  if (c.odd) make_odd(v, width);
  for (int64_t at = 0; at < positions; at += kKvPage) {  // old f16 pages go
    const int64_t n = std::min<int64_t>(kKvPage, positions - at);
    EXPECT_TRUE(s.cache.reserve(n));
    s.cache.store(ops, 0, at, n, &k[size_t(at * width)], &v[size_t(at * width)], width, one_thread());
    s.cache.pack(0, n, one_thread());
    s.cache.commit(n);
  }
  const KvPool& pool = s.cache.pool();
  const auto copy = [](const KvPool::Page& page, int64_t bytes) {
    const auto* const from = reinterpret_cast<const uint8_t*>(page.data);
    return OnDevice<uint8_t>(from == nullptr ? std::vector<uint8_t>(16) : std::vector<uint8_t>(from, from + bytes));
  };
  for (const int store : {0, 1, 2})
    for (const KvPool::Page& page : s.cache.pages_in(store))
      s.stores[store].push_back(copy(page, pool.page_bytes(store)));
  s.keys = std::move(k);
  return s;
}

/// For each row of a head the largest sum of magnitudes that a score is a sum of.
std::vector<double> score_terms(const PackedAttentionCase& c, const std::vector<cuda::BatchSequence>& batch,
                                const std::vector<PackedSequence>& sequences, const std::vector<float>& q) {
  std::vector<double> all;
  const int64_t d = c.head_dim, group = c.heads / c.kv_heads;
  for (size_t s = 0; s < batch.size(); ++s)
    for (int64_t r = 0; r < batch[s].rows; ++r)
      for (int64_t h = 0; h < c.heads; ++h) {
        const float* const own = &q[size_t(((batch[s].row + r) * c.heads + h) * d)];
        double most = 0;
        for (int64_t t = 0; t <= batch[s].position + r; ++t) {
          double sum = 0;
          for (int64_t e = 0; e < d; ++e)
            sum += std::fabs(double(own[e]) * sequences[s].keys[size_t((t * c.kv_heads + h / group) * d + e)]);
          most = std::max(most, sum * double(kPackedScale));
        }
        all.push_back(most);
      }
  return all;
}

/// Arguments of the kernel without the CPU's bits.
struct FastBatch {
  std::vector<cuda::BatchSequence> batch;
  std::vector<uint64_t> (&tables)[3];
  const std::vector<float>& q;
  cuda::PackedKv kv;
  int64_t last = 0;  // positions of the longest context

  /// Tiles of so many queries, of these sequences or each row by itself; room for so many tiles at a time.
  std::vector<float> attend(const PackedAttentionCase& c, int queries, bool by_rows, int64_t tiles_at_once) const {
    const int64_t group = c.heads / c.kv_heads, most_pages = kv.pages.stride;
    std::vector<cuda::BatchSequence> cut;
    std::vector<uint64_t> of_cut[2];
    for (size_t s = 0; s < batch.size(); ++s)
      for (int64_t r = 0; r < (by_rows ? batch[s].rows : 1); ++r) {
        const int32_t first = int32_t(r);
        cut.push_back(by_rows ? cuda::BatchSequence{batch[s].row + first, 1, batch[s].position + first} : batch[s]);
        for (const int store : {0, 1}) {
          const auto from = tables[store].begin() + int64_t(s) * most_pages;
          of_cut[store].insert(of_cut[store].end(), from, from + most_pages);
        }
      }
    std::vector<cuda::QueryTile> tiles;
    for (size_t s = 0; s < cut.size(); ++s)
      for (int64_t first = 0; first < cut[s].rows * group;) {
        tiles.push_back({int32_t(s), int32_t(first)});
        first += cuda::queries_of_packed_tile(cut[s].position, cut[s].rows, group, first, queries);
      }
    const OnDevice<uint64_t> f16_d(of_cut[0]), packed_d(of_cut[1]);
    const OnDevice<cuda::BatchSequence> batch_d(cut);
    const OnDevice<cuda::QueryTile> tiles_d(tiles);
    const OnDevice<float> qd(q);
    cuda::AttendPacked call;
    call.kv = kv;
    call.kv.pages.tables = f16_d.data();
    call.kv.packed.tables = packed_d.data();
    OnDevice<float> out(std::vector<float>(q.size(), NAN));
    const int64_t floats = tiles_at_once * cuda::fast_packed_floats(256, c.kv_heads, c.head_dim);
    const OnDevice<float> room(std::vector<float>(size_t(floats), NAN));
    const OnDevice<uint32_t> arrived(std::vector<uint32_t>(tiles.size() * size_t(c.kv_heads)));
    const int64_t spans = (last + kAttentionSpan - 1) / kAttentionSpan;
    call.attend = {qd.data(), out.data(),    batch_d.data(), tiles_d.data(), int64_t(tiles.size()),
                   queries,   call.kv.pages, c.heads,        kPackedScale,   c.window,
                   nullptr,   spans,         nullptr,        false};
    call.arrived = const_cast<uint32_t*>(arrived.data());
    call.room = const_cast<float*>(room.data());
    call.room_floats = floats;
    EXPECT_TRUE(cuda::attend_packed(call));
    EXPECT_EQ(arrived.back(), std::vector<uint32_t>(tiles.size() * size_t(c.kv_heads)));
    return out.back();
  }
};

/// Equal bits however rows are cut and tiles are formed; within docs/numerics.md's bound of the CPU's.
void check_fast_attention(const PackedAttentionCase& c, const FastBatch& batch, const std::vector<float>& wanted,
                          const std::vector<double>& terms) {
  const std::vector<float> got = batch.attend(c, 8, false, 64);
  const std::string name = "heads of " + std::to_string(c.head_dim) + ", " + std::to_string(c.heads / c.kv_heads) +
                           " to a group, " + kv_format_name(c.format) + ", window " + std::to_string(c.window);
  expect_same(batch.attend(c, 4, false, 1), got, name + ", tiles of 4");
  expect_same(batch.attend(c, 8, true, 3), got, name + ", a row of each sequence");
  expect_same(batch.attend(c, 4, false, 64), got, name + ", tiles that share thread blocks");
  const size_t d = size_t(c.head_dim);
  for (size_t row = 0; row < terms.size(); ++row) {
    double apart = 0, length = 0;
    for (size_t i = row * d; i < (row + 1) * d; ++i) {
      ASSERT_EQ(std::isfinite(got[i]), std::isfinite(wanted[i])) << name << ", row " << row << ", element " << i % d;
      if (!std::isfinite(wanted[i])) continue;
      apart += (got[i] - wanted[i]) * (got[i] - wanted[i]);
      length += wanted[i] * wanted[i];
    }
    ASSERT_LE(std::sqrt(apart), (5e-4 + 1.5e-4 * terms[row]) * std::sqrt(length)) << name << ", row " << row;
  }
}

/// Attention of some rows at the end of each sequence, spans apart and together: the bits of the CPU.
void check_packed_attention(const PackedAttentionCase& c) {
  Rng rng(static_cast<uint64_t>(c.head_dim * 7 + c.window + c.format.key_bits * 3 + c.format.value_bits));
  const VectorOps& ops = *ref_table().vector;
  const int64_t d = c.head_dim, width = c.heads * d, group = c.heads / c.kv_heads;
  std::vector<PackedSequence> sequences;
  std::vector<SequenceRows> rows;
  std::vector<cuda::BatchSequence> batch;
  int64_t m = 0, last = 0, together = 0;
  for (const auto& [position, count] : c.sequences) {
    sequences.push_back(packed_sequence(c, position + count, rng));
    batch.push_back({int32_t(m), int32_t(count), int32_t(position)});
    m += count;
    last = std::max(last, position + count);
    together = std::max(together, count * group);
  }
  for (size_t s = 0; s < batch.size(); ++s)
    rows.push_back({&sequences[s].cache, batch[s].position, batch[s].row, batch[s].rows});
  const int64_t most_pages = (last + kKvPage - 1) / kKvPage;
  std::vector<uint64_t> tables[3];  // of each store
  for (std::vector<uint64_t>& table : tables) table.resize(size_t(most_pages) * sequences.size());
  for (size_t s = 0; s < sequences.size(); ++s)
    for (const int store : {0, 1, 2})
      for (size_t p = 0; p < sequences[s].stores[store].size(); ++p)
        tables[store][s * size_t(most_pages) + p] = reinterpret_cast<uint64_t>(sequences[s].stores[store][p].data());
  const std::vector<float> q = random_floats(rng, m * width);
  std::vector<float> wanted(q.size());
  auto attention = Attention::make(ops, {c.heads, c.kv_heads, d, kPackedScale}, one_thread());
  ASSERT_TRUE(attention && attention->reserve(last));
  attention->run({0, rows, q.data(), wanted.data(), c.window});

  const int queries =
      cuda::packed_tile_queries(together, !c.format.fp8 && c.format.demote_after == 0 &&
                                              cuda::has_packed_form(c.format.key_bits, c.format.value_bits, d));
  std::vector<cuda::QueryTile> tiles;
  for (size_t s = 0; s < batch.size(); ++s)
    for (int64_t first = 0; first < batch[s].rows * group;) {
      tiles.push_back({int32_t(s), int32_t(first)});
      first += cuda::queries_of_packed_tile(batch[s].position, batch[s].rows, group, first, queries);
    }
  const OnDevice<uint64_t> f16_d(tables[0]), packed_d(tables[1]), old_d(tables[2]);
  const OnDevice<cuda::BatchSequence> batch_d(batch);
  const OnDevice<cuda::QueryTile> tiles_d(tiles);
  OnDevice<float> qd(q);
  const cuda::PagedKv pages{f16_d.data(), most_pages, 0, c.kv_heads, d};
  cuda::PackedKv kv{pages, packed_form(c.format, d, c.kv_heads, packed_d.data()), {}};
  if (c.format.demote_after > 0) kv.old = packed_form(c.format.demoted(), d, c.kv_heads, old_d.data());
  const int64_t spans = (last + kAttentionSpan - 1) / kAttentionSpan;
  const auto floats = cuda::attend_results_floats(int64_t(tiles.size()), queries, spans, c.kv_heads, d);
  OnDevice<float> results(std::vector<float>(size_t(floats), NAN));
  OnDevice<uint32_t> arrived(std::vector<uint32_t>(tiles.size() * size_t(c.kv_heads)));
  // Together, apart, apart and put together by the last block, and apart in turns of so many tiles as the room holds.
  for (const int way : {0, 1, 2, 3}) {
    const int64_t turns = std::min<int64_t>(2, int64_t(tiles.size()));
    OnDevice<float> out(std::vector<float>(q.size(), NAN));
    ASSERT_TRUE(cuda::attend_packed(
        {{qd.data(), out.data(), batch_d.data(), tiles_d.data(), int64_t(tiles.size()), queries, pages, c.heads,
          kPackedScale, c.window, way % 3 == 0 ? nullptr : results.data(), spans, nullptr},
         kv,
         0,
         way == 2 ? arrived.data() : nullptr,
         way == 3 ? results.data() : nullptr,
         floats / turns}));
    expect_same(out.back(), wanted,
                "heads of " + std::to_string(d) + ", " + std::to_string(group) + " to a group, " +
                    kv_format_name(c.format) + " " + kv_demote_name(c.format) + ", window " + std::to_string(c.window) +
                    ", way " + std::to_string(way));
  }
  EXPECT_EQ(arrived.back(), std::vector<uint32_t>(tiles.size() * size_t(c.kv_heads)));
  if (c.format.fp8 || c.format.demote_after > 0 || !cuda::has_fast_packed(c.format.key_bits, c.format.value_bits, d))
    return;
  const auto terms = score_terms(c, batch, sequences, q);
  check_fast_attention(c, FastBatch{batch, tables, q, kv, last}, wanted, terms);
}

/// Heads and widths of codes that kernels know, and others; spans that are packed as a whole, in part, and not.
/// `longest`: positions of the longest context.
void check_all_packed_attention(int64_t longest) {
  const int64_t some = std::min<int64_t>(longest, 1100);
  for (const auto& [key_bits, value_bits] : {std::pair{4, 4}, {2, 2}, {8, 8}, {4, 2}, {8, 2}, {3, 3}})
    for (const int64_t d : {64, 128})
      for (const int64_t group : {3, 7})
        check_packed_attention({{key_bits, value_bits, 64}, group, 1, d, {{some, 1}, {270, 1}, {63, 1}}});
  const KvFormat fp8 = *parse_kv_format("fp8", 64);
  KvFormat aging = *parse_kv_format("int4", 64), aging_fp8 = fp8;
  ASSERT_TRUE(set_kv_upkeep(0, "384:int2", aging) && set_kv_upkeep(0, "192:k3v2", aging_fp8));
  for (const int64_t d : {64, 128, 80})
    for (const KvFormat& format : {KvFormat{3, 4, 64}, fp8, aging, aging_fp8})
      check_packed_attention({format, 3, 1, d, {{some, 1}, {270, 1}, {63, 1}}});
  check_packed_attention({aging, 2, 1, 64, {{some + 15, 2}, {some - 1, 3}}, 500});
  check_packed_attention({fp8, 2, 1, 64, {{some, 1}}, 0, 1.0, true});
  for (const int64_t group : {8, 16}) check_packed_attention({{4, 4, 64}, group, 1, 128, {{some, 1}, {300, 2}}});
  for (const int64_t d : {64, 128}) check_packed_attention({{4, 4, 0}, 4, 1, d, {{200, 1}, {130, 2}}});  // one span
  check_packed_attention({{4, 4, 64}, 4, 2, 128, {{some, 40}, {300, 3}}});  // turns fill a device
  check_packed_attention({{4, 4, 0}, 8, 1, 64, {{longest, 1}}});
  check_packed_attention({{4, 4, 128}, 8, 2, 128, {{longest, 1}}});
  check_packed_attention({{4, 4, 128}, 9, 3, 64, {{4032, 1}}});
  check_packed_attention({{2, 2, 0}, 4, 1, 64, {{longest, 1}, {longest - 256, 1}}});
  check_packed_attention({{4, 4, 0}, 5, 1, 64, {{some, 3}}});
  check_packed_attention({{4, 4, 64}, 2, 1, 64, {{some + 15, 2}, {some - 1, 3}}, 700});
  check_packed_attention({{2, 2, 0}, 4, 2, 128, {{some, 1}}, 300});
  check_packed_attention({{4, 4, 0}, 2, 1, 64, {{some, 1}}, 0, 300.0});  // weights that are nothing beside the largest
  check_packed_attention({{4, 4, 0}, 2, 1, 64, {{some, 1}}, 0, 1.0, true});
}

void check_all_packing() {
  for (const int key_bits : {8, 4, 3, 2})
    for (const int value_bits : {8, 4, 3, 2})
      for (const auto& [kv_heads, head_dim] : {std::pair<int64_t, int64_t>{2, 64}, {1, 80}, {1, 16}, {1, 128}})
        check_packing({{key_bits, value_bits, 64}, kv_heads, head_dim});
  check_packing({{4, 2, 0}, 1, 256});
  for (const char* const format : {"fp8", "int8", "k4v3"}) {
    KvFormat aging = *parse_kv_format(format, 0);
    for (const char* const old : {"64:int2", "64:k3v2"}) {
      ASSERT_TRUE(set_kv_upkeep(0, old, aging));
      for (const int64_t head_dim : {16, 48, 128}) check_packing({aging, 2, head_dim});
      check_packing({aging, 1, 64, 1.0, true});
      check_packing({aging, 1, 64, 30000.0, false});
      check_packing({aging, 1, 64, 1e-6, false});
    }
  }
  for (const int bits : {8, 4, 3, 2}) {
    check_packing({{bits, bits, 0}, 1, 32, 1.0, true});
    check_packing({{bits, bits, 0}, 1, 48, 1e-6, false});
    check_packing({{bits, bits, 0}, 1, 48, 9000.0, false});
  }
}

}  // namespace
}  // namespace lowbit
