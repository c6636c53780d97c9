// Checks that rotation, the cache's new rows and attention over pages give the bits of the CPU. Included behind
// block_checks.h, by the tests that include it.

#include <memory>
#include <optional>

#include "kernels/cuda_block_api.h"
#include "kernels/cuda_step_api.h"
#include "ops/attention.h"
#include "ops/kv_cache.h"
#include "ops/rope.h"

namespace lowbit {
namespace {

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

/// pages_of(s): those of sequence s on the device.
template <class PagesOf>
void expect_pages_of(const std::vector<std::unique_ptr<PagedSequence>>& sequences, PagesOf pages_of) {
  for (size_t s = 0; s < sequences.size(); ++s)
    for (size_t p = 0; p < pages_of(s).size(); ++p) {
      const std::vector<uint16_t> got = pages_of(s)[p].back();
      EXPECT_EQ(std::memcmp(got.data(), host_page(sequences[s]->cache, int64_t(p)), got.size() * sizeof(uint16_t)), 0)
          << "page " << p;
    }
}

/// Rotation, the cache's new rows and attention of a batch, with spans together and apart, and of single rows in one
/// launch.
class PagesCheck {
 public:
  explicit PagesCheck(const PagesCase& of) : c_(of), rng_(static_cast<uint64_t>(of.head_dim + of.window)) {
    make_sequences();
    make_rows();
  }
  void run() {
    PageTables step = copy_pages(sequences_, most_pages_);
    check_rotation();
    if (::testing::Test::HasFatalFailure()) return;
    auto attention = Attention::make(ops_, {c_.heads, c_.kv_heads, d_, 0.3f}, one_thread());
    ASSERT_TRUE(attention && attention->reserve(last_));
    wanted_.resize(q_.size());
    attention->run({kLayer, rows_, q_.data(), wanted_.data(), c_.window});
    for (const int queries : {cuda::attention_tile_queries(together_), 16, cuda::kPromptQueries}) check_tiles(queries);
    const int queries = cuda::attention_tile_queries(group_);
    cuda::AttendPages asked;
    asked.tile_queries = queries;
    asked.kv.head_dim = d_;
    if (m_ == int64_t(batch_.size()) && cuda::has_attend_step(asked) && group_ <= queries) check_step(step, queries);
  }

 private:
  static constexpr int64_t kLayer = 1;

  void make_sequences() {
    for (const auto& [position, count] : c_.sequences) {
      sequences_.push_back(paged_sequence(c_, position, count, rng_));
      rows_.push_back({&sequences_.back()->cache, position, m_, count});
      for (int64_t r = 0; r < count; ++r) batch_rows_.push_back({int32_t(batch_.size()), int32_t(position + r)});
      batch_.push_back({int32_t(m_), int32_t(count), int32_t(position)});
      m_ += count;
      last_ = std::max(last_, position + count);
      most_pages_ = std::max(most_pages_, int64_t(sequences_.back()->pages.size()));
      together_ = std::max(together_, count * group_);
    }
    spans_ = (last_ + kAttentionSpan - 1) / kAttentionSpan;
    std::vector<uint64_t> tables(size_t(most_pages_) * sequences_.size());
    for (size_t s = 0; s < sequences_.size(); ++s)
      for (size_t p = 0; p < sequences_[s]->pages.size(); ++p)
        tables[s * size_t(most_pages_) + p] = reinterpret_cast<uint64_t>(sequences_[s]->pages[p].data());
    tables_d_.emplace(tables);
    sequences_d_.emplace(batch_);
  }
  void make_rows() {
    q_ = random_floats(rng_, m_ * width_), k_ = random_floats(rng_, m_ * kv_), v_ = random_floats(rng_, m_ * kv_);
    for (size_t i = 0; i < q_.size(); i += size_t(d_)) q_[i] = std::fabs(q_[i]);
    cos_.resize(size_t(last_ * half_)), sin_.resize(cos_.size());
    rope_table(rope_frequencies({.dims = d_, .theta = 10000.0, .scaling = {}}), 0, last_, cos_.data(), sin_.data(),
               one_thread());
    unrotated_d_.emplace(q_), q_d_.emplace(q_), k_d_.emplace(k_), v_d_.emplace(v_), cos_d_.emplace(cos_),
        sin_d_.emplace(sin_);
  }
  cuda::PagedKv pages_at(const OnDevice<uint64_t>& tables) const {
    return {tables.data(), most_pages_, kLayer, c_.kv_heads, d_};
  }

  /// Both sides rotate, and store keys and values.
  void check_rotation() {
    const OnDevice<cuda::BatchRow> rows(batch_rows_);
    ASSERT_TRUE(cuda::rotate_and_store({q_d_->data(), k_d_->data(), v_d_->data(), cos_d_->data(), sin_d_->data(),
                                        rows.data(), pages_at(*tables_d_), m_, c_.heads, nullptr}));
    for (const SequenceRows& s : rows_)
      for (int64_t r = s.row; r < s.row + s.rows; ++r) {
        const size_t at = size_t((s.position + r - s.row) * half_);
        float *const q = &q_[size_t(r * width_)], *const k = &k_[size_t(r * kv_)];
        rope_rows(ops_, q, width_, 1, c_.heads, half_, &cos_[at], &sin_[at], one_thread());
        rope_rows(ops_, k, kv_, 1, c_.kv_heads, half_, &cos_[at], &sin_[at], one_thread());
        s.cache->store(ops_, kLayer, s.position + r - s.row, 1, k, &v_[size_t(r * kv_)], kv_, one_thread());
      }
    expect_same(q_d_->back(), q_, "rotation");
    expect_pages_of(
        sequences_, [&](size_t i) -> auto& { return sequences_[i]->pages; });
  }

  /// Tiles of so many queries, and room for the results of spans.
  struct Tiles {
    OnDevice<cuda::QueryTile> at;
    int64_t count;
    OnDevice<float> results;
  };
  static OnDevice<float> nans(size_t count) { return OnDevice<float>(std::vector<float>(count, NAN)); }
  Tiles tiles_of(int queries) const {
    std::vector<cuda::QueryTile> tiles;
    for (size_t s = 0; s < batch_.size(); ++s)
      for (int64_t first = 0; first < batch_[s].rows * group_; first += queries)
        tiles.push_back({int32_t(s), int32_t(first)});
    const auto count = int64_t(tiles.size()),
               floats = cuda::attend_results_floats(count, queries, spans_, c_.kv_heads, d_);
    return {OnDevice<cuda::QueryTile>(tiles), count, nans(size_t(floats))};
  }

  void check_tiles(int queries) {
    Tiles tiles = tiles_of(queries);
    for (float* const apart : {static_cast<float*>(nullptr), tiles.results.data()}) {
      OnDevice<float> out = nans(q_.size());
      ASSERT_TRUE(
          cuda::attend_pages({q_d_->data(), out.data(), sequences_d_->data(), tiles.at.data(), tiles.count, queries,
                              pages_at(*tables_d_), c_.heads, 0.3f, c_.window, apart, spans_, nullptr}));
      expect_same(out.back(), wanted_,
                  "heads of " + std::to_string(d_) + ", window " + std::to_string(c_.window) + ", " +
                      std::to_string(queries) + " queries" + (apart == nullptr ? "" : ", spans apart"));
    }
  }

  /// One row of each sequence: rotation, pages and attention in one launch, on pages of its own.
  void check_step(PageTables& step, int queries) {
    const OnDevice<uint64_t> tables(step.addresses);
    const OnDevice<uint32_t> arrived(std::vector<uint32_t>(batch_.size() * size_t(c_.kv_heads)));
    Tiles tiles = tiles_of(queries);  // one of each sequence
    OnDevice<float> out = nans(q_.size());
    for (int time = 0; time < 2; ++time) {  // what has arrived must be zero again
      const cuda::AttendPages attention{unrotated_d_->data(),
                                        out.data(),
                                        sequences_d_->data(),
                                        tiles.at.data(),
                                        tiles.count,
                                        queries,
                                        pages_at(tables),
                                        c_.heads,
                                        0.3f,
                                        c_.window,
                                        spans_ > 1 ? tiles.results.data() : nullptr,
                                        spans_,
                                        nullptr};
      ASSERT_TRUE(cuda::attend_step({attention, k_d_->data(), v_d_->data(), cos_d_->data(), sin_d_->data(), true,
                                     const_cast<uint32_t*>(arrived.data())}));
      expect_same(out.back(), wanted_, "a row of each, heads of " + std::to_string(d_));
    }
    expect_pages_of(
        sequences_, [&](size_t i) -> auto& { return step.pages[i]; });
  }

  const PagesCase& c_;
  Rng rng_;
  const VectorOps& ops_ = *ref_table().vector;
  const int64_t d_ = c_.head_dim, width_ = c_.heads * d_, kv_ = c_.kv_heads * d_, half_ = d_ / 2,
                group_ = c_.heads / c_.kv_heads;
  std::vector<std::unique_ptr<PagedSequence>> sequences_;
  std::vector<SequenceRows> rows_;
  std::vector<cuda::BatchSequence> batch_;
  std::vector<cuda::BatchRow> batch_rows_;
  int64_t m_ = 0, last_ = 0, most_pages_ = 0, together_ = 0, spans_ = 0;
  std::vector<float> q_, k_, v_, cos_, sin_, wanted_;  // on the host, rotated there
  std::optional<OnDevice<uint64_t>> tables_d_;
  std::optional<OnDevice<cuda::BatchSequence>> sequences_d_;
  std::optional<OnDevice<float>> unrotated_d_, q_d_, k_d_, v_d_, cos_d_, sin_d_;
};
void check_pages(const PagesCase& c) { PagesCheck(c).run(); }

}  // namespace
}  // namespace lowbit
