#include "ops/attention.h"

#include <algorithm>

#include "base/check.h"
#include "base/checked.h"
#include "base/try.h"

namespace lowbit {
namespace {

constexpr int64_t kScoreBudget = 64 * 1024;  // floats per worker: stays in a level-2 cache
constexpr int64_t kMaxQueryBlock = 32;
// Converting a page to f32 pays when more query rows than this read it; up to here the kernels read it once.
constexpr int64_t kDirectRows = 4;
constexpr int64_t kQueryTile = 4;  // queries that VectorOps' attention rows take at a time

/// A block of query rows times a few heads that share one kv head.
struct Block {
  int64_t head, heads, kv_head;  // heads [head, head + heads)
  int64_t row, rows;             // rows [row, row + rows) of q
  int64_t position;              // of the first row
  int64_t end() const { return position + rows; }
};

class BlockRunner {
 public:
  BlockRunner(const VectorOps& ops, const AttentionShape& shape, const AttentionCall& call, const KvCache& cache,
              const Block& b, float* scores, float* page_rows)
      : ops_(ops),
        cache_(cache),
        layer_(call.layer),
        b_(b),
        d_(shape.head_dim),
        scale_(shape.scale),
        ld_(shape.heads * d_),
        q_(call.q + b.row * ld_ + b.head * d_),
        out_(call.out + b.row * ld_ + b.head * d_),
        score_row_(b.end() + 1),
        scores_(scores),
        page_rows_(page_rows),
        direct_(b.rows * b.heads <= kDirectRows) {}

  void run() {
    for (int64_t page = 0; page * kKvPage < b_.end(); ++page) score_page(page);
    each_row([&](int64_t count, float* s, float* y) {
      const float sum = ops_.exp_sum(s, ops_.max(s, count), count);
      s[count] = 1.0f / sum;  // the slot after a row's last score
      std::fill(y, y + d_, 0.0f);
    });
    for (int64_t page = 0; page * kKvPage < b_.end(); ++page) weigh_page(page);
    each_row([&](int64_t count, const float* s, float* y) { ops_.scale(y, s[count], d_); });
  }

 private:
  /// f(positions that the row sees, its scores, its result) for every row and head.
  template <class F>
  void each_row(const F& f) {
    for (int64_t r = 0; r < b_.rows; ++r)
      for (int64_t h = 0; h < b_.heads; ++h)
        f(b_.position + r + 1, scores_ + (r * b_.heads + h) * score_row_, out_ + r * ld_ + h * d_);
  }

  /// How many positions of the page row r may see.
  int64_t visible(int64_t r, int64_t page) const {
    return std::clamp<int64_t>(b_.position + r + 1 - page * kKvPage, 0, kKvPage);
  }

  bool read_direct() const { return direct_ && cache_.page_format(layer_) == KvFormat::kF16; }

  void score_page(int64_t page) {
    const int64_t count = visible(b_.rows - 1, page);
    const bool direct = read_direct();
    if (!direct) cache_.keys_f32(ops_, layer_, b_.kv_head, page, count, page_rows_);
    // Scores that a query must not see are overwritten or never read: a row's sums end at its own position.
    const auto score = [&](const float* queries, int64_t ld, int64_t n, float* s, int64_t lds) {
      s += page * kKvPage;
      if (direct) {
        ops_.dot_f16_rows(queries, ld, n, cache_.keys_f16(layer_, b_.kv_head, page), d_, count, d_, scale_, s, lds);
      } else {
        ops_.dot_f32_rows(queries, ld, n, page_rows_, d_, count, d_, scale_, s, lds);
      }
    };
    if (b_.rows == 1) return score(q_, d_, b_.heads, scores_, score_row_);  // heads are the queries
    for (int64_t h = 0; h < b_.heads; ++h)
      score(q_ + h * d_, ld_, b_.rows, scores_ + h * score_row_, b_.heads * score_row_);
  }

  void weigh_page(int64_t page) {
    const bool direct = read_direct();
    if (!direct) cache_.values_f32(ops_, layer_, b_.kv_head, page, visible(b_.rows - 1, page), page_rows_);
    const auto weigh = [&](const float* s, int64_t lds, int64_t n, int64_t first, int64_t last, float* y, int64_t ldy) {
      if (last <= first) return;
      const int64_t count = last - first;
      s += page * kKvPage + first;
      if (direct) {
        const auto* values = cache_.values_f16(layer_, b_.kv_head, page) + first * d_;
        ops_.axpy_f16_rows(s, lds, n, values, d_, count, d_, y, ldy);
      } else {
        ops_.axpy_f32_rows(s, lds, n, page_rows_ + first * d_, d_, count, d_, y, ldy);
      }
    };
    if (b_.rows == 1) return weigh(scores_, score_row_, b_.heads, 0, visible(0, page), out_, d_);
    const int64_t lds = b_.heads * score_row_;
    for (int64_t h = 0; h < b_.heads; ++h)
      for (int64_t r = 0; r < b_.rows; r += kQueryTile) {
        const int64_t n = std::min(kQueryTile, b_.rows - r), shared = visible(r, page);
        const float* s = scores_ + (r * b_.heads + h) * score_row_;
        float* y = out_ + r * ld_ + h * d_;
        weigh(s, lds, n, 0, shared, y, ld_);  // what all of them see, then the rest of each
        for (int64_t j = 1; j < n; ++j) weigh(s + j * lds, lds, 1, shared, visible(r + j, page), y + j * ld_, ld_);
      }
  }

  const VectorOps& ops_;
  const KvCache& cache_;
  const int64_t layer_;
  const Block& b_;
  const int64_t d_;  // of a head
  const float scale_;
  const int64_t ld_;      // elements of a row of q and out
  const float* const q_;  // the block's first row and head
  float* const out_;
  const int64_t score_row_;  // positions of a row of scores, and one slot behind them
  float* const scores_;
  float* const page_rows_;
  const bool direct_;
};

}  // namespace

Result<Attention> Attention::make(const VectorOps& ops, const AttentionShape& shape, ThreadPool& pool) {
  Attention a;
  a.ops_ = &ops;
  a.shape_ = shape;
  a.pool_ = &pool;
  a.page_elems_ = round_up(kKvPage * shape.head_dim, 16);
  LOWBIT_TRY(a.reserve(0));
  return a;
}

Status Attention::reserve(int64_t positions) {
  const int64_t needed = std::max(kScoreBudget, round_up(shape_.group() * (positions + 1), 16));
  if (needed <= scores_elems_) return {};
  const int64_t scores = std::max(needed, 2 * scores_elems_), worker = scores + page_elems_;
  LOWBIT_TRY_ASSIGN(buffer_, Buffer::allocate(pool_->size() * worker * int64_t(sizeof(float)), "attention scores"));
  scores_elems_ = scores;
  worker_elems_ = worker;
  return {};
}

void Attention::run(const AttentionCall& call, const KvCache& cache, const ReadAhead& next) {
  const int64_t m = call.m, end = call.position + m, group = shape_.group(), threads = pool_->size();
  LOWBIT_DCHECK(group * (end + 1) <= scores_elems_);
  // Below this much work a second thread costs more than it brings.
  const bool serial = m * shape_.heads * end * shape_.head_dim < 16 * 1024;
  // Heads of one kv head read its pages together, but for one query when that would leave threads without work.
  const int64_t turns = ceil_div(shape_.kv_heads, threads) * threads;
  const int64_t heads = m == 1 && !serial && 4 * turns > 5 * shape_.kv_heads ? 1 : group;
  const int64_t rows = std::clamp<int64_t>(scores_elems_ / (heads * (end + 1)), 1, kMaxQueryBlock);
  const int64_t head_blocks = shape_.heads / heads, row_blocks = ceil_div(m, rows), tasks = head_blocks * row_blocks;
  pool_->parallel_for(
      tasks, serial ? tasks : 1,
      [&](int64_t begin, int64_t stop, int worker) {
        float* scores = buffer_.as<float>() + worker * worker_elems_;
        for (int64_t t = begin; t < stop; ++t) {
          const int64_t row = (row_blocks - 1 - t / head_blocks) * rows;  // the longest rows first
          const int64_t head = t % head_blocks * heads;
          const Block block{head, heads, head / group, row, std::min(rows, m - row), call.position + row};
          BlockRunner(*ops_, shape_, call, cache, block, scores, scores + scores_elems_).run();
        }
      },
      next);
}

}  // namespace lowbit
