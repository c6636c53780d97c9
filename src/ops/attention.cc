#include "ops/attention.h"

#include <algorithm>

#include "base/check.h"
#include "base/checked.h"
#include "base/try.h"
#include "kernels/fp8_rows.h"
#include "kernels/packed_span.h"

namespace lowbit {
namespace {

// Queries that share a kv head and are computed together: enough to make conversion of a page cheap beside the
// products, few enough that their scores of a span stay in a level-2 cache.
constexpr int64_t kBlockQueries = 48;
// Threads get so many tasks each, or spans are shared out where there is room for the results of so many rows.
constexpr int64_t kTasksPerThread = 4;
constexpr int64_t kSharedRows = 4;
// Below this many products a second thread costs more than it brings.
constexpr int64_t kSerialProducts = 16 * 1024;
constexpr int64_t kFirstReserve = 4096;  // positions

constexpr int64_t padded(int64_t floats) { return round_up(floats, 16); }  // to 64 bytes

}  // namespace

/// Computes blocks of rows for one kv head on one thread.
class Attention::Runner {
 public:
  Runner(Attention& a, const BatchAttention& call, int worker)
      : a_(a), call_(call), d_(a.shape_.head_dim), group_(a.shape_.group()), ld_(a.shape_.heads * d_) {
    float* at = a.scratch_.as<float>() + worker * a.worker_elems_;
    const auto take = [&](int64_t floats) {
      float* const from = at;
      at += padded(floats);
      return from;
    };
    args_.scratch = take(a.most_queries_ * kAttentionSpan + kKvPage * a.padded_dim_);
    result_ = take(a.most_queries_ * (a.padded_dim_ + 2));
    running_ = take(2 * a.most_queries_);
    copies_ = take(a.most_queries_ * d_);
    begin_ = reinterpret_cast<int32_t*>(take(a.most_queries_));
    end_ = reinterpret_cast<int32_t*>(take(a.most_queries_));
    expanded_ = reinterpret_cast<uint16_t*>(take(kSpanPages * kKvPage * d_));
  }
  static int64_t elems(const Attention& a) {
    return padded(a.most_queries_ * kAttentionSpan + kKvPage * a.padded_dim_) +
           padded(a.most_queries_ * (a.padded_dim_ + 2)) + padded(2 * a.most_queries_) +
           padded(a.most_queries_ * a.shape_.head_dim) + 2 * padded(a.most_queries_) +
           padded(kSpanPages * kKvPage * a.shape_.head_dim);
  }

  /// All spans of a block.
  void run(const Block& block, int64_t kv_head) {
    select(block, kv_head);
    gather();
    for (int64_t i = 0; i < block.spans; ++i) {
      attend(block.first_span + i, result_);
      merge(block.first_span + i, result_);
    }
    finish();
  }
  /// One span of a block, the i-th: its result alone.
  void run_span(const Block& block, int64_t kv_head, int64_t i, float* result) {
    select(block, kv_head);
    gather();
    attend(block.first_span + i, result);
  }
  /// The block's outcome from its spans' results, which lie one behind the other.
  void merge_spans(const Block& block, int64_t kv_head, const float* results) {
    select(block, kv_head);
    for (int64_t i = 0; i < block.spans; ++i) {
      see(block.first_span + i);
      merge(block.first_span + i, results + i * a_.result_elems(block.rows));
    }
    finish();
  }

 private:
  void select(const Block& block, int64_t kv_head) {
    block_ = &block;
    kv_head_ = kv_head;
    queries_ = block.rows * group_;
  }
  int64_t offset(int64_t row) const { return (block_->row + row) * ld_ + kv_head_ * group_ * d_; }  // in q and out

  void gather() {
    args_.q = call_.q + offset(0);
    args_.ldq = d_;
    if (block_->rows == 1) return;
    for (int64_t r = 0; r < block_->rows; ++r) std::copy_n(call_.q + offset(r), group_ * d_, copies_ + r * group_ * d_);
    args_.q = copies_;
  }

  int64_t first_seen(int64_t row) const {
    return call_.window == 0 ? 0 : std::max<int64_t>(0, block_->position + row + 1 - call_.window);
  }
  /// The positions of a span that each query sees.
  void see(int64_t span) {
    const int64_t first = span * kAttentionSpan;
    for (int64_t r = 0; r < block_->rows; ++r) {
      const auto begin = std::clamp<int64_t>(first_seen(r) - first, 0, kAttentionSpan);
      const auto end = std::clamp<int64_t>(block_->position + r + 1 - first, 0, kAttentionSpan);
      std::fill_n(begin_ + r * group_, group_, static_cast<int32_t>(begin));
      std::fill_n(end_ + r * group_, group_, static_cast<int32_t>(end));
    }
  }

  /// m, l and o of all queries.
  void attend(int64_t span, float* result) {
    see(span);
    const KvCache& cache = *block_->cache;
    const int64_t end = block_->position + block_->rows;
    for (int64_t p = 0, page = span * kSpanPages; p < kSpanPages && page * kKvPage < end; ++p, ++page) {
      const bool packed = cache.reads_packed(call_.layer, page, block_->position);
      // Nobody sees a page that has gone: any other stands in for it.
      const int64_t shown = packed || cache.holds_f16(call_.layer, page) ? page : block_->position / kKvPage;
      args_.keys[p] = packed ? nullptr : cache.keys_f16(call_.layer, kv_head_, shown);
      args_.values[p] = packed ? nullptr : cache.values_f16(call_.layer, kv_head_, shown);
      args_.packed_keys[p] = args_.packed_values[p] = {};
      if (!packed) continue;
      const bool demoted = cache.reads_demoted(call_.layer, page, block_->position);
      const KvFormat& format = cache.group_of(call_.layer).format;
      if (format.fp8 && !demoted) expand(cache, page, p);
      args_.key_bits[p] = demoted ? format.old_key_bits : format.key_bits;
      args_.value_bits[p] = demoted ? format.old_value_bits : format.value_bits;
      args_.packed_keys[p] = cache.packed_keys(call_.layer, kv_head_, page, demoted);
      args_.packed_values[p] = cache.packed_values(call_.layer, kv_head_, page, demoted);
    }
    fetch_ahead((span + 1) * kSpanPages);
    args_.d = d_;
    args_.scale = a_.shape_.scale;
    args_.queries = queries_;
    args_.begin = begin_;
    args_.end = end_;
    args_.m = result;
    args_.l = result + queries_;
    args_.o = result + 2 * queries_;
    args_.ldo = a_.padded_dim_;
    a_.ops_->attend_span(args_);
  }

  /// The keys of pages from `next` on are what is read behind this span.
  void fetch_ahead(int64_t next) {
    const KvCache& cache = *block_->cache;
    const auto packed = [&](int64_t page) { return cache.reads_packed(call_.layer, page, block_->position); };
    const bool reads_f16 = next * kKvPage < block_->position + block_->rows && !packed(next);
    args_.next = reads_f16 ? cache.keys_f16(call_.layer, kv_head_, next) : nullptr;
    for (int64_t page = next; page < next + kPagesAhead; ++page) {
      const bool demoted = cache.reads_demoted(call_.layer, page, block_->position);
      args_.next_keys[page - next] =
          packed(page) ? cache.packed_keys(call_.layer, kv_head_, page, demoted) : PackedMatrix{};
    }
  }

  /// An fp8 page in the place of page p of the span, as f16.
  void expand(const KvCache& cache, int64_t page, int64_t p) {
    const PackedMatrix keys = cache.packed_keys(call_.layer, kv_head_, page);
    const PackedMatrix values = cache.packed_values(call_.layer, kv_head_, page);
    uint16_t* const to = expanded_ + 2 * p * kKvPage * d_;
    expand_fp8_rows(keys.codes, reinterpret_cast<const int8_t*>(keys.side), d_, kKvPage, to);
    expand_fp8_rows(values.codes, reinterpret_cast<const int8_t*>(values.side), kKvPage, d_, to + kKvPage * d_);
    args_.keys[p] = to;
    args_.values[p] = to + kKvPage * d_;
  }

  /// see() was last called for this span.
  void merge(int64_t span, const float* result) {
    const float *m = result, *l = m + queries_, *o = l + queries_;
    for (int64_t j = 0; j < queries_; ++j) {
      if (begin_[j] >= end_[j]) continue;
      float *const y = out(j), *const running = running_ + 2 * j;
      if (first_seen(j / group_) >= span * kAttentionSpan) {  // the query's first span
        running[0] = m[j];
        running[1] = l[j];
        std::copy_n(o + j * a_.padded_dim_, d_, y);
      } else {
        a_.ops_->merge_span(m[j], l[j], o + j * a_.padded_dim_, d_, running, y);
      }
    }
  }
  void finish() {
    for (int64_t j = 0; j < queries_; ++j) a_.ops_->scale(out(j), 1.0f / running_[2 * j + 1], d_);
  }
  float* out(int64_t query) const { return call_.out + offset(query / group_) + query % group_ * d_; }

  const Attention& a_;
  const BatchAttention& call_;
  const int64_t d_, group_, ld_;
  const Block* block_ = nullptr;
  int64_t kv_head_ = 0, queries_ = 0;
  PackedSpan args_;
  float *result_, *running_, *copies_;
  int32_t *begin_, *end_;
  uint16_t* expanded_;  // fp8 pages of a span: keys, values
};

Result<Attention> Attention::make(const VectorOps& ops, const AttentionShape& shape, ThreadPool& pool) {
  Attention a;
  a.ops_ = &ops;
  a.shape_ = shape;
  a.pool_ = &pool;
  a.most_queries_ = std::max(kBlockQueries, shape.group());
  a.padded_dim_ = padded(shape.head_dim);
  a.worker_elems_ = Runner::elems(a);
  LOWBIT_TRY_ASSIGN(a.scratch_,
                    Buffer::allocate(pool.size() * a.worker_elems_ * int64_t(sizeof(float)), "attention scratch"));
  a.left_ = std::make_unique<std::atomic<int64_t>[]>(size_t(kTasksPerThread * pool.size()));
  a.blocks_.reserve(64);
  LOWBIT_TRY(a.reserve(kFirstReserve));
  return a;
}

Status Attention::reserve(int64_t positions) {
  if (pool_->size() == 1) return {};  // nobody to share with
  const int64_t needed = ceil_div(positions, kAttentionSpan) * shape_.kv_heads * result_elems(kSharedRows) * 4;
  if (needed <= results_.size()) return {};
  LOWBIT_TRY_ASSIGN(results_, Buffer::allocate(std::max(needed, 2 * results_.size()), "attention spans"));
  return {};
}

/// Blocks of rows; those of a sequence with the longest rows first.
void Attention::cut(const BatchAttention& call) {
  int64_t all = 0;
  for (const SequenceRows& s : call.sequences) all += s.rows;
  const int64_t most = std::max<int64_t>(1, kBlockQueries / shape_.group());
  const int64_t shared = ceil_div(all * shape_.kv_heads, kTasksPerThread * pool_->size());
  const int64_t rows = pool_->size() == 1 ? most : std::clamp<int64_t>(shared, 1, most);
  blocks_.clear();
  int64_t task = 0, result = 0;
  for (const SequenceRows& s : call.sequences) {
    const bool packed = s.cache->group_of(call.layer).format.packed();
    for (int64_t row_end = s.rows, row = 0; row_end > 0; row_end = row) {
      row = (row_end - 1) / rows * rows;
      // All rows of a block read the same pages packed.
      if (packed) row = std::max(row, (s.position + row_end - 1) / kKvPage * kKvPage - s.position);
      const int64_t count = row_end - row, position = s.position + row;
      const int64_t seen = call.window == 0 ? 0 : std::max<int64_t>(0, position + 1 - call.window);
      const int64_t first = seen / kAttentionSpan, spans = ceil_div(position + count, kAttentionSpan) - first;
      blocks_.push_back({s.cache, s.row + row, count, position, first, spans, task, result});
      task += spans * shape_.kv_heads;
      result += spans * shape_.kv_heads * result_elems(count);
    }
  }
}

/// Whether the blocks alone would leave threads without work, and results have room.
bool Attention::share_spans() {
  if (blocks_.empty() || int64_t(blocks_.size()) * shape_.kv_heads >= kTasksPerThread * pool_->size()) return false;
  const Block& last = blocks_.back();
  const int64_t tasks = last.task + last.spans * shape_.kv_heads;
  const int64_t floats = last.result + last.spans * shape_.kv_heads * result_elems(last.rows);
  return tasks > int64_t(blocks_.size()) * shape_.kv_heads && floats * int64_t(sizeof(float)) <= results_.size();
}

void Attention::run(const BatchAttention& call, const ReadAhead& next) {
  cut(call);
  int64_t products = 0;
  for (const Block& b : blocks_)
    products += b.rows * (b.position + b.rows - b.first_span * kAttentionSpan) * shape_.heads * shape_.head_dim;
  const int64_t kv_heads = shape_.kv_heads, tasks = int64_t(blocks_.size()) * kv_heads;
  const bool serial = products < kSerialProducts;
  if (serial || !share_spans())
    return pool_->parallel_for(
        tasks, serial ? tasks : 1,
        [&](int64_t begin, int64_t end, int worker) {
          Runner runner(*this, call, worker);
          for (int64_t t = begin; t < end; ++t) runner.run(blocks_[size_t(t / kv_heads)], t % kv_heads);
        },
        next);
  for (int64_t i = 0; i < tasks; ++i)
    left_[size_t(i)].store(blocks_[size_t(i / kv_heads)].spans, std::memory_order_relaxed);
  const Block& last = blocks_.back();
  pool_->parallel_for(
      last.task + last.spans * kv_heads, 1,
      [&](int64_t begin, int64_t end, int worker) {
        Runner runner(*this, call, worker);
        for (int64_t t = begin; t < end; ++t) {
          const auto behind = std::upper_bound(blocks_.begin(), blocks_.end(), t,
                                               [](int64_t task, const Block& b) { return task < b.task; });
          const Block& b = *(behind - 1);
          const int64_t kv_head = (t - b.task) / b.spans, elems = result_elems(b.rows);
          float* const results = results_.as<float>() + b.result + kv_head * b.spans * elems;
          runner.run_span(b, kv_head, (t - b.task) % b.spans, results + (t - b.task) % b.spans * elems);
          // Who does the last span puts all of them together.
          const int64_t i = (behind - 1 - blocks_.begin()) * kv_heads + kv_head;
          if (left_[size_t(i)].fetch_sub(1, std::memory_order_acq_rel) == 1) runner.merge_spans(b, kv_head, results);
        }
      },
      next);
}

void Attention::run(const AttentionCall& call, KvCache& cache, const ReadAhead& next) {
  const SequenceRows rows{&cache, call.position, 0, call.m};
  run({call.layer, {&rows, 1}, call.q, call.out, call.window}, next);
}

}  // namespace lowbit
