// Checks of attention on tensor cores: within a bound of a plain loop, and the same bits however rows are cut into
// tiles, chunks, spans and batches. Included behind block_checks.h, by the same tests. No include guard.

namespace lowbit {
namespace {

struct TensorCase {
  int64_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  int64_t position = 0, rows = 0;  // rows behind so many positions
  int64_t group() const { return heads / kv_heads; }
  int64_t positions() const { return position + rows; }
  std::string name() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " + std::to_string(head_dim) +
           ", window " + std::to_string(window) + ", " + std::to_string(rows) + " rows behind " +
           std::to_string(position);
  }
};

constexpr float kTensorScale = 0.3f;

/// One sequence whose keys and values are all there: pages of one layer, on the device, NaN behind the last position.
struct TensorSequence {
  TensorCase of;
  std::vector<float> q, k, v;  // [rows, heads, head_dim]; [positions, kv_heads, head_dim], numbers of f16
  std::vector<OnDevice<uint16_t>> pages;
  std::vector<uint64_t> table;

  explicit TensorSequence(const TensorCase& c, uint64_t seed = 3) : of(c) {
    Rng rng(seed);
    q = random_floats(rng, c.rows * c.heads * c.head_dim);
    const int64_t kv = c.kv_heads * c.head_dim;
    k = random_floats(rng, c.positions() * kv);
    v = random_floats(rng, c.positions() * kv);
    for (std::vector<float>* of_all : {&k, &v})
      for (float& x : *of_all) x = f16_to_f32(f32_to_f16(x));
    put_pages();
  }
  float& value(int64_t t, int64_t kv_head, int64_t e) {
    return v[size_t((t * of.kv_heads + kv_head) * of.head_dim + e)];
  }
  void put_pages() {
    const int64_t d = of.head_dim, half = of.kv_heads * kKvPage * d;
    pages.clear();
    table.clear();
    for (int64_t first = 0; first < of.positions(); first += kKvPage) {
      std::vector<uint16_t> page(size_t(2 * half), uint16_t{0x7e00});
      for (int64_t t = 0; t < std::min<int64_t>(kKvPage, of.positions() - first); ++t)
        for (int64_t h = 0; h < of.kv_heads; ++h)
          for (int64_t e = 0; e < d; ++e) {
            const size_t from = size_t(((first + t) * of.kv_heads + h) * d + e);
            page[size_t((h * d + e) * kKvPage + t)] = f32_to_f16(k[from]);
            page[size_t(half + (h * kKvPage + t) * d + e)] = f32_to_f16(v[from]);
          }
      pages.emplace_back(std::move(page));
    }
    for (auto& page : pages) table.push_back(reinterpret_cast<uint64_t>(page.data()));
  }

  /// The sequence's rows as sequences of a batch: cut behind these rows. Tiles of so many queries.
  std::vector<float> attend(const std::vector<int64_t>& cuts, int queries, bool apart) const {
    std::vector<cuda::BatchSequence> batch;
    std::vector<uint64_t> tables;
    std::vector<cuda::QueryTile> tiles;
    for (size_t i = 0; i <= cuts.size(); ++i) {
      const int64_t from = i == 0 ? 0 : cuts[i - 1], to = i < cuts.size() ? cuts[i] : of.rows;
      batch.push_back({int32_t(from), int32_t(to - from), int32_t(of.position + from)});
      tables.insert(tables.end(), table.begin(), table.end());
      for (int64_t first = 0; first < (to - from) * of.group(); first += queries)
        tiles.push_back({int32_t(i), int32_t(first)});
    }
    const OnDevice<float> qd(q);
    const OnDevice<cuda::BatchSequence> sequences(batch);
    const OnDevice<cuda::QueryTile> tiles_d(tiles);
    const OnDevice<uint64_t> tables_d(tables);
    const int64_t spans = (of.positions() + kAttentionSpan - 1) / kAttentionSpan;
    const int64_t floats = cuda::attend_results_floats(int64_t(tiles.size()), queries, spans, of.kv_heads, of.head_dim);
    OnDevice<float> out(std::vector<float>(q.size(), NAN)), results(std::vector<float>(size_t(floats), NAN));
    EXPECT_TRUE(cuda::attend_pages({qd.data(),
                                    out.data(),
                                    sequences.data(),
                                    tiles_d.data(),
                                    int64_t(tiles.size()),
                                    queries,
                                    {tables_d.data(), int64_t(table.size()), 0, of.kv_heads, of.head_dim},
                                    of.heads,
                                    kTensorScale,
                                    of.window,
                                    apart ? results.data() : nullptr,
                                    spans,
                                    nullptr,
                                    false}));
    return out.back();
  }

  /// The rows, each a sequence of its own, with rotations by nothing and their keys and values once more.
  std::vector<float> attend_step() const {
    const int64_t kv = of.kv_heads * of.head_dim, half = of.head_dim / 2;
    const int queries = cuda::attention_tile_queries(of.group());
    std::vector<cuda::BatchSequence> batch;
    std::vector<cuda::QueryTile> tiles;
    std::vector<uint64_t> tables;
    for (int64_t r = 0; r < of.rows; ++r) {
      batch.push_back({int32_t(r), 1, int32_t(of.position + r)});
      tiles.push_back({int32_t(r), 0});
      tables.insert(tables.end(), table.begin(), table.end());
    }
    const OnDevice<float> qd(q), kd({k.begin() + of.position * kv, k.end()}),
        vd({v.begin() + of.position * kv, v.end()});
    const OnDevice<float> cos(std::vector<float>(size_t(of.positions() * half), 1.0f));
    const OnDevice<float> sin(std::vector<float>(size_t(of.positions() * half), 0.0f));
    const OnDevice<cuda::BatchSequence> sequences(batch);
    const OnDevice<cuda::QueryTile> tiles_d(tiles);
    const OnDevice<uint64_t> tables_d(tables);
    const OnDevice<uint32_t> arrived(std::vector<uint32_t>(size_t(of.rows * of.kv_heads)));
    const int64_t spans = (of.positions() + kAttentionSpan - 1) / kAttentionSpan;
    const int64_t floats = cuda::attend_results_floats(of.rows, queries, spans, of.kv_heads, of.head_dim);
    OnDevice<float> out(std::vector<float>(q.size(), NAN)), results(std::vector<float>(size_t(floats), NAN));
    const cuda::AttendPages call = {qd.data(),
                                    out.data(),
                                    sequences.data(),
                                    tiles_d.data(),
                                    of.rows,
                                    queries,
                                    {tables_d.data(), int64_t(table.size()), 0, of.kv_heads, of.head_dim},
                                    of.heads,
                                    kTensorScale,
                                    of.window,
                                    spans > 1 ? results.data() : nullptr,
                                    spans,
                                    nullptr,
                                    false};
    if (!cuda::has_attend_step(call)) return {};
    EXPECT_TRUE(cuda::attend_step(
        {call, kd.data(), vd.data(), cos.data(), sin.data(), false, const_cast<uint32_t*>(arrived.data())}));
    return out.back();
  }

  /// softmax(scale q k) v by its definition, in f64. `terms`: of each row of a head, the largest sum of magnitudes that
  /// a score is a sum of.
  std::vector<double> reference(std::vector<double>& terms) const {
    const int64_t d = of.head_dim;
    std::vector<double> out(q.size()), weights(size_t(of.positions()));
    for (int64_t r = 0; r < of.rows; ++r)
      for (int64_t h = 0; h < of.heads; ++h) {
        const int64_t last = of.position + r, kv_head = h / of.group();
        const int64_t begin = of.window == 0 ? 0 : std::max<int64_t>(last + 1 - of.window, 0);
        const float* const own = &q[size_t((r * of.heads + h) * d)];
        double most = -INFINITY, total = 0;
        terms.push_back(0);
        for (int64_t t = begin; t <= last; ++t) {
          double s = 0, magnitudes = 0;
          for (int64_t e = 0; e < d; ++e) {
            const double term = double(own[e]) * k[size_t((t * of.kv_heads + kv_head) * d + e)];
            s += term;
            magnitudes += std::fabs(term);
          }
          terms.back() = std::max(terms.back(), magnitudes * double(kTensorScale));
          weights[size_t(t)] = s * double(kTensorScale);
          most = std::max(most, weights[size_t(t)]);
        }
        for (int64_t t = begin; t <= last; ++t) total += weights[size_t(t)] = std::exp(weights[size_t(t)] - most);
        for (int64_t t = begin; t <= last; ++t)
          for (int64_t e = 0; e < d; ++e)
            out[size_t((r * of.heads + h) * d + e)] +=
                weights[size_t(t)] / total * v[size_t((t * of.kv_heads + kv_head) * d + e)];
      }
    return out;
  }
};

/// Rows of heads within docs/numerics.md's bound: a score is off by as much as sums in f32 of its terms are, and then
/// so are the weights.
void expect_close(const TensorSequence& s, const std::vector<float>& got) {
  std::vector<double> terms;
  const std::vector<double> wanted = s.reference(terms);
  const size_t d = size_t(s.of.head_dim);
  for (size_t row = 0; row < terms.size(); ++row) {
    double apart = 0, length = 0;
    for (size_t i = row * d; i < (row + 1) * d; ++i) {
      apart += (got[i] - wanted[i]) * (got[i] - wanted[i]);
      length += wanted[i] * wanted[i];
    }
    ASSERT_LE(std::sqrt(apart / length), 5e-6 + 2e-7 * terms[row]) << s.of.name() << ", row " << row;
  }
}

std::vector<int64_t> random_cuts(int64_t rows, Rng& rng) {
  std::vector<int64_t> cuts;
  for (int64_t row = 1; row < rows; ++row)
    if (rng.next() % 7 == 0) cuts.push_back(row);
  return cuts;
}

void check_tensor_attention(const TensorCase& c) {
  const TensorSequence s(c);
  const std::vector<float> wanted = s.attend({}, cuda::kPromptQueries, false);
  expect_close(s, wanted);
  Rng rng(11);
  for (const int queries : {4, 8, 16, cuda::kPromptQueries})
    for (const bool apart : {false, true}) {
      expect_same(s.attend({}, queries, apart), wanted, c.name() + ", tiles of " + std::to_string(queries));
      expect_same(s.attend(random_cuts(c.rows, rng), queries, apart), wanted, c.name() + ", in chunks");
    }
  if (c.group() > 16) return;
  const std::vector<float> alone = s.attend_step();
  if (!alone.empty()) expect_same(alone, wanted, c.name() + ", a row of each sequence");
}

/// A value, key or query that is no number reaches the rows that see it and no others.
void check_tensor_attention_of_no_numbers() {
  TensorSequence s({.heads = 4, .kv_heads = 2, .head_dim = 64, .position = 70, .rows = 20});
  const std::vector<float> wanted = s.attend({}, cuda::kPromptQueries, false);
  const int64_t width = s.of.heads * s.of.head_dim;
  for (const float bad : {NAN, INFINITY}) {
    s.value(77, 1, 5) = bad;  // row 7 is the first to see it
    s.put_pages();
    std::vector<float> changed = s.attend({}, cuda::kPromptQueries, false);
    expect_same(s.attend({}, 16, true), changed, "tiles of 16");
    expect_same(s.attend_step(), changed, "a row of each sequence");
    for (int64_t row = 7; row < s.of.rows; ++row)
      for (int64_t h = 2; h < 4; ++h) {
        float& x = changed[size_t(row * width + h * s.of.head_dim + 5)];
        EXPECT_FALSE(std::isfinite(x));
        x = wanted[size_t(row * width + h * s.of.head_dim + 5)];
      }
    expect_same(changed, wanted, "who does not see it");
  }
  s = TensorSequence(s.of);
  s.q[size_t(3 * width + s.of.head_dim + 1)] = NAN;  // row 3, head 1
  std::vector<float> changed = s.attend({}, cuda::kPromptQueries, false);
  for (int64_t e = 0; e < s.of.head_dim; ++e) {
    const size_t at = size_t(3 * width + s.of.head_dim + e);
    EXPECT_TRUE(std::isnan(changed[at]));
    changed[at] = wanted[at];
  }
  expect_same(changed, wanted, "other rows than that with a NaN");
}

}  // namespace
}  // namespace lowbit
