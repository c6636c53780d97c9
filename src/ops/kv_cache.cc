#include "ops/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "base/try.h"

namespace lowbit {

Result<std::shared_ptr<KvPool>> KvPool::make(const KvShape& shape, int64_t max_pages) {
  const auto invalid = [&] {
    return fail(
        ErrorCode::kInvalidArgument, "kv cache",
        fmt::format("{} layers, {} heads of {}, {} pages", shape.layers, shape.kv_heads, shape.head_dim, max_pages),
        "at least 1 of each, and sizes that fit in memory");
  };
  if (shape.layers < 1 || shape.kv_heads < 1 || shape.head_dim < 1 || max_pages < 1) return invalid();
  uint64_t bytes = 2 * sizeof(uint16_t) * kKvPage;
  for (int64_t factor : {shape.layers, shape.kv_heads, shape.head_dim}) {
    const auto product = checked_mul(bytes, uint64_t(factor));
    if (!product) return invalid();
    bytes = *product;
  }
  const auto total = checked_mul(bytes, uint64_t(max_pages));
  if (!total || *total > uint64_t{1} << 62) return invalid();
  LOWBIT_TRY_ASSIGN(Buffer all, Buffer::allocate(int64_t(*total), "kv cache"));
  std::shared_ptr<KvPool> pool(new KvPool(shape, max_pages, int64_t(bytes)));
  const auto owner = std::make_shared<Buffer>(all);
  pool->spare_.reserve(size_t(max_pages));
  for (int64_t i = max_pages - 1; i >= 0; --i) {  // the last of the list is taken first
    auto page = std::make_unique<KvPage>();
    page->data = Buffer::borrow(all.span().subspan(size_t(i) * bytes, bytes), owner);
    pool->spare_.push_back(std::move(page));
  }
  return pool;
}

int64_t KvPool::pages_in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}

int64_t KvPool::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return most_in_use_ * page_bytes_;
}

Result<std::unique_ptr<KvPage>> KvPool::take() {
  std::lock_guard lock(mutex_);
  if (in_use_ >= max_pages_)
    return fail(ErrorCode::kOutOfMemory, "kv cache", fmt::format("{} pages in use", in_use_),
                fmt::format("at most {} pages of {} positions", max_pages_, kKvPage),
                "shorten the text or ask for a larger context");
  std::unique_ptr<KvPage> page = std::move(spare_.back());
  spare_.pop_back();
  ++in_use_;
  most_in_use_ = std::max(most_in_use_, in_use_);
  return page;
}

void KvPool::give_back(std::unique_ptr<KvPage> page) {
  std::lock_guard lock(mutex_);
  spare_.push_back(std::move(page));
  --in_use_;
}

KvCache::KvCache(std::shared_ptr<KvPool> pool, int64_t capacity) : pool_(std::move(pool)), capacity_(capacity) {
  pages_.reserve(size_t(std::min(ceil_div(capacity, kKvPage), pool_->max_pages())));
}

KvCache::~KvCache() {
  if (pool_) clear();
}

Result<KvCache> KvCache::make(const KvShape& shape, int64_t capacity) {
  LOWBIT_TRY_ASSIGN(auto pool, KvPool::make(shape, ceil_div(capacity, kKvPage)));
  return KvCache(std::move(pool), capacity);
}

Status KvCache::reserve(int64_t n) {
  if (n < 0 || n > capacity_ - length_)
    return fail(ErrorCode::kInvalidArgument, "kv cache", fmt::format("{} + {} positions", length_, n),
                fmt::format("at most {}", capacity_), "shorten the text or ask for a larger context (-c)");
  const size_t before = pages_.size();
  while (int64_t(pages_.size()) * kKvPage < length_ + n) {
    auto page = pool_->take();
    if (!page) {
      while (pages_.size() > before) {
        pool_->give_back(std::move(pages_.back()));
        pages_.pop_back();
      }
      return tl::unexpected<Error>(std::move(page.error()));
    }
    pages_.push_back(std::move(*page));
  }
  return {};
}

uint16_t* KvCache::rows(int64_t layer, int64_t which, int64_t head, int64_t page) const {
  const KvShape& s = pool_->shape();
  KvPage& p = *pages_[static_cast<size_t>(page)];
  LOWBIT_DCHECK(p.format == KvFormat::kF16);
  return p.data.as<uint16_t>() + ((layer * 2 + which) * s.kv_heads + head) * kKvPage * s.head_dim;
}

void KvCache::store(const VectorOps& ops, int64_t layer, int64_t position, int64_t n, const float* k, const float* v,
                    int64_t ld, ThreadPool& pool) {
  LOWBIT_DCHECK(position >= length_ && position + n <= int64_t(pages_.size()) * kKvPage);
  const int64_t heads = shape().kv_heads, d = shape().head_dim;
  const int64_t grain = std::max<int64_t>(1, 16384 / (2 * heads * d));
  pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t h = 0; h < heads; ++h) {
        store_head(ops, layer, h, position + i, k + i * ld + h * d, v + i * ld + h * d);
      }
    }
  });
}

void KvCache::store_head(const VectorOps& ops, int64_t layer, int64_t head, int64_t position, const float* k,
                         const float* v) {
  constexpr int64_t kChunk = 128;
  const int64_t d = shape().head_dim, page = position / kKvPage, at = position % kKvPage;
  ops.f32_to_f16(v, d, rows(layer, 1, head, page) + at * d);
  uint16_t* const column = rows(layer, 0, head, page) + at;
  for (int64_t i = 0; i < d; i += kChunk) {
    uint16_t half[kChunk];
    const int64_t n = std::min(kChunk, d - i);
    ops.f32_to_f16(k + i, n, half);
    for (int64_t e = 0; e < n; ++e) column[(i + e) * kKvPage] = half[e];
  }
}

Status KvCache::truncate(int64_t length) {
  if (length < 0 || length > length_)
    return fail(ErrorCode::kInvalidArgument, "kv cache truncate", fmt::format("{}", length),
                fmt::format("0..{}", length_));
  length_ = length;
  while (int64_t(pages_.size()) > ceil_div(length, kKvPage)) {
    pool_->give_back(std::move(pages_.back()));
    pages_.pop_back();
  }
  return {};
}

void KvCache::clear() { (void)truncate(0); }

}  // namespace lowbit
