// Checks that kernels of steps and of Gram matrices give the bits of the CPU. Included by a test that has an
// OnDevice<T>: a copy of a vector where the kernels of lowbit::cuda find it, with data() and back(). No include guard:
// each such test has its own.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cuda/weight_parts.h"
#include "base/float.h"
#include "base/rng.h"
#include "kernels/cuda_block_api.h"
#include "kernels/cuda_step_api.h"
#include "kernels/registry.h"
#include "kernels/vector_math.h"
#include "ops/activation_rounding.h"
#include "ops/attention.h"
#include "ops/matmul.h"
#include "ops/rope.h"
#include "tests/conformance/matmul_cases.h"

namespace lowbit {
namespace {

using conformance::Case;

ThreadPool& one_thread() {
  static ThreadPool pool(1);
  return pool;
}

std::vector<float> random_floats(Rng& rng, int64_t count, double deviation = 1.5) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = static_cast<float>(deviation * rng.normal());
  return values;
}

/// Bits, but for the sign of a zero and what a NaN carries.
void expect_same(const std::vector<float>& got, const std::vector<float>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const bool same = std::memcmp(&got[i], &wanted[i], sizeof(float)) == 0 || (got[i] == 0 && wanted[i] == 0) ||
                      (std::isnan(got[i]) && std::isnan(wanted[i]));
    ASSERT_TRUE(same) << what << ": element " << i << " is " << got[i] << ", not " << wanted[i];
  }
}

void check_matmul(const Case& c) {
  const QTensor w = conformance::random_weights(c);
  const auto parts = split_weight(w, one_thread());
  ASSERT_TRUE(parts.has_value());
  Rng rng(c.seed, 5);
  const std::vector<float> x = random_floats(rng, c.m * c.k), bias = random_floats(rng, c.n);
  const float* const wanted_bias = c.bias ? bias.data() : nullptr;
  MatmulOptions options;
  options.activation = Activation::kF32;
  options.reference = true;
  const auto plan = MatmulPlan::make(w, options, one_thread());
  ASSERT_TRUE(plan.has_value());
  ActivationRows rows;
  std::vector<float> wanted(static_cast<size_t>(c.m * c.n));
  ASSERT_TRUE(rows.prepare(Activation::kF32, x.data(), c.m, c.k, c.k, Isa::kScalar, one_thread()));
  ASSERT_TRUE(plan->run(rows, wanted_bias, wanted.data(), c.n, one_thread()));

  const OnDevice<float> values(parts->values), scales(parts->scales), offsets(parts->offsets), b(bias), on_device(x);
  OnDevice<float> y(std::vector<float>(wanted.size(), -7.0f));
  cuda::F32Matmul call;
  call.values = values.data();
  call.scales = parts->scales.empty() ? nullptr : scales.data();
  call.offsets = parts->offsets.empty() ? nullptr : offsets.data();
  call.bias = c.bias ? b.data() : nullptr;
  call.n = c.n;
  call.k = c.k;
  call.group = parts->group;
  call.x = on_device.data();
  call.y = y.data();
  call.m = c.m;
  const auto status = cuda::f32_matmul(call);
  ASSERT_TRUE(status.has_value()) << status.error().message();
  expect_same(y.back(), wanted, c.name());
}

/// Random formats, scalings and shapes, then whole tiles of a model's shapes.
void check_matmuls(uint64_t cases, int64_t rows) {
  for (uint64_t seed = 0; seed < cases && !testing::Test::HasFatalFailure(); ++seed) {
    Case c = conformance::random_case(seed);
    if (c.m > 0 && c.n > 0) check_matmul(c);
  }
  for (const FormatId format :
       {FormatId::kF32, FormatId::kBf16, FormatId::kInt4, FormatId::kInt2Odd, FormatId::kInt3}) {
    Case c;
    c.format = format;
    c.scaling.k_block = 64;
    c.m = rows;
    c.n = 192;
    c.k = 576;
    if (!testing::Test::HasFatalFailure()) check_matmul(c);
  }
}

/// A plain double loop. `crossed`: of y and x, else of x alone.
void check_gram(int64_t rows, int64_t k, int64_t chunk, bool crossed) {
  Rng rng(static_cast<uint64_t>(rows * 1000 + k));
  const std::vector<float> x = random_floats(rng, rows * k), y = crossed ? random_floats(rng, rows * k) : x;
  std::vector<double> sum(static_cast<size_t>(k * k), 0.25);
  std::vector<float> wanted(sum.size());
  const double scale = 1.0 / static_cast<double>(rows);
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = 0; j < k; ++j) {
      double total = 0.25;
      for (int64_t first = 0; first < rows; first += chunk) {
        float s = 0;
        for (int64_t r = first; r < std::min(rows, first + chunk); ++r)
          s = std::fma(y[static_cast<size_t>(r * k + i)], x[static_cast<size_t>(r * k + j)], s);
        total += static_cast<double>(s);
      }
      wanted[static_cast<size_t>(i * k + j)] = static_cast<float>(total * scale);
    }
  const OnDevice<float> on_device(x), others(y);
  const auto workspace_bytes = cuda::gram_workspace_bytes(rows, k, chunk);
  OnDevice<float> workspace(std::vector<float>(static_cast<size_t>(workspace_bytes) / sizeof(float))), h(wanted);
  OnDevice<double> sums(sum);
  ASSERT_TRUE(cuda::add_gram(
      {on_device.data(), rows, k, chunk, sums.data(), workspace.data(), nullptr, crossed ? others.data() : nullptr}));
  ASSERT_TRUE(cuda::finish_gram(sums.data(), k, scale, !crossed, h.data(), nullptr));
  expect_same(h.back(), wanted, std::to_string(rows) + " rows of " + std::to_string(k));
}

void check_rows() {
  const VectorOps& ops = *ref_table().vector;
  Rng rng(7);
  constexpr int64_t kRows = 13, kWidth = 120;
  const std::vector<float> x = random_floats(rng, kRows * kWidth), weight = random_floats(rng, kWidth);
  const OnDevice<float> wd(weight), source(x);
  OnDevice<float> xd(x);

  std::vector<float> wanted(x.size());
  for (int64_t r = 0; r < kRows; ++r)
    ops.rms_norm(&x[size_t(r * kWidth)], weight.data(), kWidth, 1e-5f, &wanted[size_t(r * kWidth)]);
  ASSERT_TRUE(cuda::norm_rows(source.data(), wd.data(), kRows, kWidth, 1e-5f, xd.data(), nullptr));
  expect_same(xd.back(), wanted, "norm");

  ops.add(x.data(), kRows * kWidth, wanted.data());
  ASSERT_TRUE(cuda::add_rows(source.data(), kRows * kWidth, xd.data(), nullptr));
  expect_same(xd.back(), wanted, "residual");

  for (const auto& [n, block] : {std::pair<int64_t, int64_t>{1536, 512}, {96, 32}, {48, 2}, {4096, 4096}}) {
    std::vector<float> rows = random_floats(rng, 3 * n);
    OnDevice<float> rows_d(rows);
    ops.hadamard(rows.data(), 3 * n, block);
    ASSERT_TRUE(cuda::hadamard_rows(rows_d.data(), 3, n, block, hadamard_scale(block), nullptr));
    expect_same(rows_d.back(), rows, "Hadamard transform");
  }

  wanted[0] = -120.0f, wanted[1] = 95.0f, wanted[2] = 1e-20f, wanted[3] = -87.3f;
  OnDevice<float> gate(wanted);
  ops.silu_mul(wanted.data(), x.data(), kRows * kWidth, wanted.data());
  ASSERT_TRUE(cuda::gate_rows(gate.data(), source.data(), kRows * kWidth, nullptr));
  expect_same(gate.back(), wanted, "gate");

  wanted[0] = -3.0f, wanted[1] = NAN, wanted[2] = -0.0f, wanted[3] = 1e25f;
  OnDevice<float> relu(wanted);
  ops.squared_relu_mul(wanted.data(), x.data(), kRows * kWidth, wanted.data());
  ASSERT_TRUE(cuda::squared_relu_rows(relu.data(), source.data(), kRows * kWidth, nullptr));
  expect_same(relu.back(), wanted, "gate by squared ReLU");

  OnDevice<uint64_t> first(std::vector<uint64_t>{~uint64_t{0}});
  ASSERT_TRUE(cuda::find_non_finite(source.data(), kRows * kWidth, 100, first.data(), nullptr));
  EXPECT_EQ(first.back()[0], ~uint64_t{0});
  std::vector<float> bad = x;
  bad[500] = NAN;
  bad[700] = INFINITY;
  const OnDevice<float> bad_rows(bad);
  ASSERT_TRUE(cuda::find_non_finite(bad_rows.data(), kRows * kWidth, 100, first.data(), nullptr));
  EXPECT_EQ(first.back()[0], 600u);
}

/// Sequences that have some positions in their caches and get more rows: {position, rows}.
struct PagesCase {
  int64_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  std::vector<std::pair<int64_t, int64_t>> sequences;
};

/// One sequence on the host, its pages once more on the device. What nobody has written is NaN in both.
struct PagedSequence {
  KvCache cache;
  std::vector<OnDevice<uint16_t>> pages;
};

uint16_t* host_page(const KvCache& cache, int64_t page) { return const_cast<uint16_t*>(cache.keys_f16(0, 0, page)); }

std::unique_ptr<PagedSequence> paged_sequence(const PagesCase& c, int64_t position, int64_t rows, Rng& rng) {
  const VectorOps& ops = *ref_table().vector;
  const int64_t kv = c.kv_heads * c.head_dim, pages = (position + rows + kKvPage - 1) / kKvPage;
  auto cache = KvCache::make(uniform_kv_groups(2, c.kv_heads, c.head_dim, c.window), pages * kKvPage);
  EXPECT_TRUE(cache && cache->reserve(position + rows) && cache->open(position + rows));
  const int64_t halves = cache->pool().page_bytes(0) / int64_t(sizeof(uint16_t));
  for (int64_t p = 0; p < pages; ++p) std::fill_n(host_page(*cache, p), halves, uint16_t{0x7e00});
  std::vector<float> k = random_floats(rng, position * kv), v = random_floats(rng, position * kv);
  if (position > kAttentionSpan)  // a span of -inf, and a value that a window may leave out
    for (int64_t t = 0; t < kAttentionSpan; ++t) k[size_t(t * kv)] = -INFINITY;
  if (position > 0) v[0] = INFINITY;
  cache->store(ops, 1, 0, position, k.data(), v.data(), kv, one_thread());
  auto sequence = std::make_unique<PagedSequence>(PagedSequence{std::move(*cache), {}});
  for (int64_t p = 0; p < pages; ++p) {
    const uint16_t* const from = host_page(sequence->cache, p);
    sequence->pages.emplace_back(std::vector<uint16_t>(from, from + halves));
  }
  return sequence;
}

/// Pages of sequences on the device, and where they are.
struct PageTables {
  std::vector<std::vector<OnDevice<uint16_t>>> pages;  // of each sequence
  std::vector<uint64_t> addresses;                     // [sequences, stride]
};
PageTables copy_pages(const std::vector<std::unique_ptr<PagedSequence>>& sequences, int64_t stride) {
  PageTables copy;
  copy.addresses.resize(sequences.size() * size_t(stride));
  for (size_t s = 0; s < sequences.size(); ++s) {
    auto& pages = copy.pages.emplace_back();
    for (const auto& page : sequences[s]->pages) pages.emplace_back(page.back());
    for (size_t p = 0; p < pages.size(); ++p)
      copy.addresses[s * size_t(stride) + p] = reinterpret_cast<uint64_t>(pages[p].data());
  }
  return copy;
}

void expect_pages_of(const std::vector<std::unique_ptr<PagedSequence>>& sequences,
                     const std::vector<std::vector<OnDevice<uint16_t>>*>& pages) {
  for (size_t s = 0; s < sequences.size(); ++s)
    for (size_t p = 0; p < pages[s]->size(); ++p) {
      const std::vector<uint16_t> got = (*pages[s])[p].back();
      EXPECT_EQ(std::memcmp(got.data(), host_page(sequences[s]->cache, int64_t(p)), got.size() * sizeof(uint16_t)), 0)
          << "page " << p;
    }
}

/// Rotation, the cache's new rows and attention of a batch, with spans together and apart, and of single rows in one
/// launch.
void check_pages(const PagesCase& c) {
  constexpr int64_t kLayer = 1;
  Rng rng(static_cast<uint64_t>(c.head_dim + c.window));
  const VectorOps& ops = *ref_table().vector;
  const int64_t d = c.head_dim, width = c.heads * d, kv = c.kv_heads * d, half = d / 2, group = c.heads / c.kv_heads;
  std::vector<std::unique_ptr<PagedSequence>> sequences;
  std::vector<SequenceRows> rows;
  std::vector<cuda::BatchSequence> batch;
  std::vector<cuda::BatchRow> batch_rows;
  int64_t m = 0, last = 0, most_pages = 0, together = 0;
  for (const auto& [position, count] : c.sequences) {
    sequences.push_back(paged_sequence(c, position, count, rng));
    rows.push_back({&sequences.back()->cache, position, m, count});
    for (int64_t r = 0; r < count; ++r) batch_rows.push_back({int32_t(batch.size()), int32_t(position + r)});
    batch.push_back({int32_t(m), int32_t(count), int32_t(position)});
    m += count;
    last = std::max(last, position + count);
    most_pages = std::max(most_pages, int64_t(sequences.back()->pages.size()));
    together = std::max(together, count * group);
  }
  std::vector<uint64_t> tables(size_t(most_pages) * sequences.size());
  for (size_t s = 0; s < sequences.size(); ++s)
    for (size_t p = 0; p < sequences[s]->pages.size(); ++p)
      tables[s * size_t(most_pages) + p] = reinterpret_cast<uint64_t>(sequences[s]->pages[p].data());
  std::vector<float> q = random_floats(rng, m * width), k = random_floats(rng, m * kv), v = random_floats(rng, m * kv);
  for (size_t i = 0; i < q.size(); i += size_t(d)) q[i] = std::fabs(q[i]);
  std::vector<float> cos(size_t(last * half)), sin(cos.size());
  rope_table(rope_frequencies({.dims = d, .theta = 10000.0, .scaling = {}}), 0, last, cos.data(), sin.data(),
             one_thread());

  const OnDevice<float> kd(k), vd(v), cd(cos), sd(sin);
  const OnDevice<cuda::BatchSequence> sequences_d(batch);
  const OnDevice<cuda::BatchRow> rows_d(batch_rows);
  const OnDevice<uint64_t> tables_d(tables);
  cuda::AttendPages asked;
  asked.tile_queries = cuda::attention_tile_queries(group);
  asked.kv.head_dim = d;
  const bool single = m == int64_t(batch.size()) && cuda::has_attend_step(asked);
  PageTables step = copy_pages(sequences, most_pages);
  const OnDevice<float> unrotated(q);
  OnDevice<float> qd(q);
  const cuda::PagedKv pages{tables_d.data(), most_pages, kLayer, c.kv_heads, d};
  ASSERT_TRUE(cuda::rotate_and_store(
      {qd.data(), kd.data(), vd.data(), cd.data(), sd.data(), rows_d.data(), pages, m, c.heads, nullptr}));

  auto attention = Attention::make(ops, {c.heads, c.kv_heads, d, 0.3f}, one_thread());
  ASSERT_TRUE(attention && attention->reserve(last));
  for (const SequenceRows& s : rows)
    for (int64_t r = s.row; r < s.row + s.rows; ++r) {
      const size_t at = size_t((s.position + r - s.row) * half);
      rope_rows(ops, &q[size_t(r * width)], width, 1, c.heads, half, &cos[at], &sin[at], one_thread());
      rope_rows(ops, &k[size_t(r * kv)], kv, 1, c.kv_heads, half, &cos[at], &sin[at], one_thread());
      s.cache->store(ops, kLayer, s.position + r - s.row, 1, &k[size_t(r * kv)], &v[size_t(r * kv)], kv, one_thread());
    }
  expect_same(qd.back(), q, "rotation");
  std::vector<std::vector<OnDevice<uint16_t>>*> of_rows, of_step;
  for (const auto& sequence : sequences) of_rows.push_back(&sequence->pages);
  for (auto& of : step.pages) of_step.push_back(&of);
  expect_pages_of(sequences, of_rows);
  std::vector<float> wanted(q.size());
  attention->run({kLayer, rows, q.data(), wanted.data(), c.window});

  for (const int queries : {cuda::attention_tile_queries(together), 16, cuda::kPromptQueries}) {
    std::vector<cuda::QueryTile> tiles;
    for (size_t s = 0; s < batch.size(); ++s)
      for (int64_t first = 0; first < batch[s].rows * group; first += queries)
        tiles.push_back({int32_t(s), int32_t(first)});
    const OnDevice<cuda::QueryTile> tiles_d(tiles);
    const int64_t spans = (last + kAttentionSpan - 1) / kAttentionSpan;
    const auto floats = cuda::attend_results_floats(int64_t(tiles.size()), queries, spans, c.kv_heads, d);
    OnDevice<float> results(std::vector<float>(size_t(floats), NAN));
    for (float* const apart : {static_cast<float*>(nullptr), results.data()}) {
      OnDevice<float> out(std::vector<float>(q.size(), NAN));
      ASSERT_TRUE(cuda::attend_pages({qd.data(), out.data(), sequences_d.data(), tiles_d.data(), int64_t(tiles.size()),
                                      queries, pages, c.heads, 0.3f, c.window, apart, spans, nullptr}));
      expect_same(out.back(), wanted,
                  "heads of " + std::to_string(d) + ", window " + std::to_string(c.window) + ", " +
                      std::to_string(queries) + " queries" + (apart == nullptr ? "" : ", spans apart"));
    }
  }
  if (!single) return;
  const int queries = cuda::attention_tile_queries(group);
  if (group > queries) return;
  const OnDevice<uint64_t> step_tables(step.addresses);
  const OnDevice<uint32_t> arrived(std::vector<uint32_t>(batch.size() * size_t(c.kv_heads)));
  std::vector<cuda::QueryTile> tiles;
  for (size_t s = 0; s < batch.size(); ++s) tiles.push_back({int32_t(s), 0});
  const OnDevice<cuda::QueryTile> tiles_d(tiles);
  const int64_t spans = (last + kAttentionSpan - 1) / kAttentionSpan;
  OnDevice<float> results(std::vector<float>(
      size_t(cuda::attend_results_floats(int64_t(tiles.size()), queries, spans, c.kv_heads, d)), NAN));
  OnDevice<float> out(std::vector<float>(q.size(), NAN));
  const cuda::PagedKv own{step_tables.data(), most_pages, kLayer, c.kv_heads, d};
  for (int time = 0; time < 2; ++time) {  // what has arrived must be zero again
    ASSERT_TRUE(cuda::attend_step(
        {{unrotated.data(), out.data(), sequences_d.data(), tiles_d.data(), int64_t(tiles.size()), queries, own,
          c.heads, 0.3f, c.window, spans > 1 ? results.data() : nullptr, spans, nullptr},
         kd.data(),
         vd.data(),
         cd.data(),
         sd.data(),
         true,
         const_cast<uint32_t*>(arrived.data())}));
    expect_same(out.back(), wanted, "a row of each, heads of " + std::to_string(d));
  }
  expect_pages_of(sequences, of_step);
}

/// Codes of random rows with all kinds of groups and largest codes; clipped rows.
void check_codes() {
  Rng rng(5);
  for (const int largest : {127, 7})
    for (const auto& [k, group] :
         {std::pair<int64_t, int64_t>{64, 32}, {70, 32}, {300, 40}, {33, 0}, {600, 0}, {1, 0}}) {
      constexpr int64_t kRows = 5;
      const int64_t ld = (k + 63) / 64 * 64, width = group > 0 ? group : k, groups = (k + width - 1) / width;
      std::vector<float> x = random_floats(rng, kRows * k);
      x[size_t(k)] = NAN;
      for (int64_t i = 0; i < k; ++i) x[size_t(2 * k + i)] = 1e-38f;
      x[size_t(4 * k - 1)] = INFINITY;
      std::vector<int8_t> wanted(size_t(kRows * ld), 3);
      std::vector<float> scales(size_t(kRows * groups));
      std::vector<int32_t> sums(scales.size());
      for (int64_t r = 0; r < kRows; ++r)
        round_groups(&x[size_t(r * k)], k, width, ld, largest, &wanted[size_t(r * ld)], &scales[size_t(r * groups)],
                     &sums[size_t(r * groups)]);
      const OnDevice<float> xd(x);
      OnDevice<int8_t> codes(std::vector<int8_t>(wanted.size(), 5));
      OnDevice<float> factors(std::vector<float>(scales.size()));
      ASSERT_TRUE(cuda::round_rows({xd.data(), kRows, k, group, largest, codes.data(), ld, factors.data(), nullptr}));
      EXPECT_EQ(codes.back(), wanted) << k << " by " << group;
      expect_same(factors.back(), scales, "scales of x");
      const auto out = std::clamp<int64_t>(int64_t(std::ceil(0.01 * double(k))), 1, std::max<int64_t>(k - 1, 1));
      if (k < 2) continue;
      OnDevice<float> clipped(x);
      ASSERT_TRUE(cuda::clip_rows(xd.data(), kRows, k, out, clipped.data(), nullptr));
      for (int64_t r = 0; r < kRows; ++r) clip_row(&x[size_t(r * k)], k, 0.01);
      expect_same(clipped.back(), x, "clipped rows");
    }
}

/// Norm and codes in one launch against one after the other.
void check_norm_codes() {
  Rng rng(8);
  for (const auto& [k, group] :
       {std::pair<int64_t, int64_t>{64, 32}, {70, 32}, {300, 40}, {33, 0}, {600, 0}, {1, 0}, {1700, 64}}) {
    constexpr int64_t kRows = 5;
    const int64_t ld = (k + 63) / 64 * 64, width = group > 0 ? group : k, groups = (k + width - 1) / width;
    std::vector<float> x = random_floats(rng, kRows * k);
    x[size_t(k)] = NAN;
    for (int64_t i = 0; i < k; ++i) x[size_t(2 * k + i)] = 0;
    x[size_t(4 * k - 1)] = INFINITY;
    const OnDevice<float> xd(x), by(random_floats(rng, k));
    OnDevice<float> normed(std::vector<float>(x.size()));
    ASSERT_TRUE(cuda::norm_rows(xd.data(), by.data(), kRows, k, 1e-5f, normed.data(), nullptr));
    const std::vector<float> rows = normed.back();
    std::vector<int8_t> wanted(size_t(kRows * ld), 3);
    std::vector<float> scales(size_t(kRows * groups));
    std::vector<int32_t> sums(scales.size());
    for (int64_t r = 0; r < kRows; ++r)
      round_groups(&rows[size_t(r * k)], k, width, ld, 127, &wanted[size_t(r * ld)], &scales[size_t(r * groups)],
                   &sums[size_t(r * groups)]);
    OnDevice<int8_t> codes(std::vector<int8_t>(wanted.size(), 5));
    OnDevice<float> factors(std::vector<float>(scales.size()));
    ASSERT_TRUE(
        cuda::norm_codes({xd.data(), by.data(), 1e-5f, kRows, k, group, codes.data(), ld, factors.data(), nullptr}));
    EXPECT_EQ(codes.back(), wanted) << k << " by " << group;
    expect_same(factors.back(), scales, "scales of normed x");
  }
}

void check_gather() {
  Rng rng(6);
  const std::vector<float> table = random_floats(rng, 40 * 33);
  const std::vector<int32_t> index = {39, 0, 7, 7, 12};
  std::vector<float> wanted;
  for (const int32_t i : index) wanted.insert(wanted.end(), table.begin() + i * 33, table.begin() + (i + 1) * 33);
  const OnDevice<float> from(table);
  const OnDevice<int32_t> at(index);
  OnDevice<float> to(std::vector<float>(wanted.size()));
  ASSERT_TRUE(cuda::gather_rows(from.data(), at.data(), int64_t(index.size()), 33, to.data(), nullptr));
  expect_same(to.back(), wanted, "rows of a table");
}

}  // namespace
}  // namespace lowbit
