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
  BlockRunner(const VectorOps& ops, const AttentionShape& shape, const KvCache& cache, int64_t layer, const Block& b,
              float* scores, float* page_rows)
      : ops_(ops),
        shape_(shape),
        cache_(cache),
        layer_(layer),
        b_(b),
        ld_(b.end()),
        scores_(scores),
        page_rows_(page_rows),
        direct_(b.rows * b.heads <= kDirectRows) {}

  void run(const float* q, int64_t ldq, float* out, int64_t ldo) {
    const int64_t d = shape_.head_dim;
    for (int64_t page = 0; page * kKvPage < b_.end(); ++page) score_page(page, q, ldq);
    each_row([&](int64_t r, int64_t h, float* s) {
      const int64_t count = b_.position + r + 1;
      const float sum = ops_.exp_sum(s, ops_.max(s, count), count);
      s[count] = 1.0f / sum;  // the slot after a row's last score
      float* y = out + (b_.row + r) * ldo + (b_.head + h) * d;
      std::fill(y, y + d, 0.0f);
    });
    for (int64_t page = 0; page * kKvPage < b_.end(); ++page) weigh_page(page, out, ldo);
    each_row([&](int64_t r, int64_t h, float* s) {
      ops_.scale(out + (b_.row + r) * ldo + (b_.head + h) * d, s[b_.position + r + 1], d);
    });
  }

 private:
  template <class F>
  void each_row(const F& f) {
    for (int64_t r = 0; r < b_.rows; ++r)
      for (int64_t h = 0; h < b_.heads; ++h) f(r, h, scores_ + (r * b_.heads + h) * (ld_ + 1));
  }

  /// How many positions of the page row r may see.
  int64_t visible(int64_t r, int64_t page) const {
    return std::clamp<int64_t>(b_.position + r + 1 - page * kKvPage, 0, kKvPage);
  }

  bool read_direct(int64_t page) const { return direct_ && cache_.page_format(page) == KvFormat::kF16; }

  void score_page(int64_t page, const float* q, int64_t ldq) {
    const int64_t d = shape_.head_dim, count = visible(b_.rows - 1, page);
    const bool direct = read_direct(page);
    if (!direct) cache_.keys_f32(ops_, layer_, b_.kv_head, page, count, page_rows_);
    // Scores that a query must not see are overwritten or never read: a row's sums end at its own position.
    const auto score = [&](const float* queries, int64_t ld, int64_t n, float* s, int64_t lds) {
      if (direct) {
        ops_.dot_f16_rows(queries, ld, n, cache_.keys_f16(layer_, b_.kv_head, page), d, count, d, shape_.scale,
                          s + page * kKvPage, lds);
      } else {
        ops_.dot_f32_rows(queries, ld, n, page_rows_, d, count, d, shape_.scale, s + page * kKvPage, lds);
      }
    };
    if (b_.rows == 1)
      return score(q + b_.row * ldq + b_.head * d, d, b_.heads, scores_, ld_ + 1);  // heads are the queries
    for (int64_t h = 0; h < b_.heads; ++h)
      score(q + b_.row * ldq + (b_.head + h) * d, ldq, b_.rows, scores_ + h * (ld_ + 1), b_.heads * (ld_ + 1));
  }

  void weigh_page(int64_t page, float* out, int64_t ldo) {
    const int64_t d = shape_.head_dim;
    const bool direct = read_direct(page);
    if (!direct) cache_.values_f32(ops_, layer_, b_.kv_head, page, visible(b_.rows - 1, page), page_rows_);
    const auto weigh = [&](const float* s, int64_t lds, int64_t n, int64_t first, int64_t last, float* y, int64_t ldy) {
      if (last <= first) return;
      const float* p = s + page * kKvPage + first;
      if (direct) {
        ops_.axpy_f16_rows(p, lds, n, cache_.values_f16(layer_, b_.kv_head, page) + first * d, d, last - first, d, y,
                           ldy);
      } else {
        ops_.axpy_f32_rows(p, lds, n, page_rows_ + first * d, d, last - first, d, y, ldy);
      }
    };
    float* y = out + b_.row * ldo + b_.head * d;
    if (b_.rows == 1) return weigh(scores_, ld_ + 1, b_.heads, 0, visible(0, page), y, d);
    const int64_t lds = b_.heads * (ld_ + 1);
    for (int64_t h = 0; h < b_.heads; ++h)
      for (int64_t r = 0; r < b_.rows; r += kQueryTile) {
        const int64_t n = std::min(kQueryTile, b_.rows - r), shared = visible(r, page);
        const float* s = scores_ + (r * b_.heads + h) * (ld_ + 1);
        float* yr = y + r * ldo + h * d;
        weigh(s, lds, n, 0, shared, yr, ldo);  // what all of them see, then the rest of each
        for (int64_t j = 1; j < n; ++j) weigh(s + j * lds, lds, 1, shared, visible(r + j, page), yr + j * ldo, ldo);
      }
  }

  const VectorOps& ops_;
  const AttentionShape& shape_;
  const KvCache& cache_;
  const int64_t layer_;
  const Block& b_;
  const int64_t ld_;  // positions of a score row; one more slot follows
  float* const scores_;
  float* const page_rows_;
  const bool direct_;
};

}  // namespace

Result<AttentionWorkspace> AttentionWorkspace::make(const AttentionShape& shape, int threads) {
  AttentionWorkspace w;
  w.threads_ = threads;
  w.group_ = shape.heads / shape.kv_heads;
  w.page_elems_ = round_up(kKvPage * shape.head_dim, 16);
  LOWBIT_TRY(w.reserve(0));
  return w;
}

Status AttentionWorkspace::reserve(int64_t positions) {
  const int64_t needed = std::max(kScoreBudget, round_up(group_ * (positions + 1), 16));
  if (needed <= scores_elems_) return {};
  const int64_t scores = std::max(needed, 2 * scores_elems_), worker = scores + page_elems_;
  LOWBIT_TRY_ASSIGN(buffer_, Buffer::allocate(threads_ * worker * int64_t(sizeof(float)), "attention scores"));
  scores_elems_ = scores;
  worker_elems_ = worker;
  return {};
}

void attend(const VectorOps& ops, const AttentionShape& shape, const KvCache& cache, int64_t layer,
            int64_t first_position, int64_t m, const float* q, int64_t ldq, float* out, int64_t ldo,
            AttentionWorkspace& workspace, ThreadPool& pool, const ReadAhead& next) {
  LOWBIT_DCHECK(workspace.group_ * (first_position + m + 1) <= workspace.scores_elems_);
  const int64_t group = shape.heads / shape.kv_heads, end = first_position + m;
  // Below this much work a second thread costs more than it brings.
  const bool serial = m * shape.heads * end * shape.head_dim < 16 * 1024;
  // Heads of one kv head read its pages together, but for one query when that would leave threads without work.
  const int64_t turns = ceil_div(shape.kv_heads, int64_t{pool.size()}) * pool.size();
  const int64_t heads = m == 1 && !serial && 4 * turns > 5 * shape.kv_heads ? 1 : group;
  const int64_t rows = std::clamp<int64_t>(workspace.scores_elems_ / (heads * (end + 1)), 1, kMaxQueryBlock);
  const int64_t head_blocks = shape.heads / heads, row_blocks = ceil_div(m, rows), tasks = head_blocks * row_blocks;
  pool.parallel_for(
      tasks, serial ? tasks : 1,
      [&](int64_t begin, int64_t stop, int worker) {
        float* scores = workspace.buffer_.as<float>() + worker * workspace.worker_elems_;
        for (int64_t t = begin; t < stop; ++t) {
          const int64_t row = (row_blocks - 1 - t / head_blocks) * rows;  // the longest rows first
          const int64_t head = t % head_blocks * heads;
          const Block block{head, heads, head / group, row, std::min(rows, m - row), first_position + row};
          BlockRunner(ops, shape, cache, layer, block, scores, scores + workspace.scores_elems_).run(q, ldq, out, ldo);
        }
      },
      next);
}

}  // namespace lowbit
