#include "ops/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "base/try.h"

namespace lowbit {

KvCache::KvCache(std::shared_ptr<KvPool> pool, int64_t capacity) : pool_(std::move(pool)), capacity_(capacity) {
  tables_.resize(pool_->groups().size());
  wanted_.resize(tables_.size());
  // One more for a copy on its way: reserve() does not allocate.
  for (auto& table : tables_) table.reserve(size_t(std::min(ceil_div(capacity, kKvPage), pool_->max_pages())) + 1);
}

KvCache::~KvCache() {
  if (pool_) clear();
}

KvCache& KvCache::operator=(KvCache&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(capacity_, other.capacity_);
  std::swap(length_, other.length_);
  std::swap(tables_, other.tables_);
  std::swap(wanted_, other.wanted_);
  return *this;
}

Result<KvCache> KvCache::make(std::vector<KvGroup> groups, int64_t capacity) {
  LOWBIT_TRY_ASSIGN(auto pool, KvPool::make(std::move(groups), ceil_div(capacity, kKvPage)));
  return KvCache(std::move(pool), capacity);
}

KvCache KvCache::fork() const {
  KvCache other(pool_, capacity_);
  other.length_ = length_;
  for (size_t g = 0; g < tables_.size(); ++g)
    for (int64_t p = 0; p < ceil_div(length_, kKvPage); ++p) {
      const KvPool::Page& page = tables_[g][size_t(p)];
      pool_->share(int(g), page.id);
      other.tables_[g].push_back(page);
    }
  return other;
}

int64_t KvCache::bytes() const {
  int64_t total = 0;
  for (size_t g = 0; g < tables_.size(); ++g) total += int64_t(tables_[g].size()) * pool_->page_bytes(int(g));
  return total;
}

Status KvCache::reserve(int64_t n) {
  if (n < 0 || n > capacity_ - length_)
    return fail(ErrorCode::kInvalidArgument, "kv cache", fmt::format("{} + {} positions", length_, n),
                fmt::format("at most {}", capacity_), "shorten the text or ask for a larger context (-c)");
  if (n == 0) return {};
  const int64_t before = pages(), count = std::max(ceil_div(length_ + n, kKvPage), before), last = length_ / kKvPage;
  // All at once: who holds some of the pages it needs while it waits for the others would keep those from everybody else.
  for (size_t g = 0; g < tables_.size(); ++g) {
    const bool shared = last < before && pool_->is_shared(int(g), tables_[g][size_t(last)].id);
    wanted_[g] = count - before + (shared ? 1 : 0);
  }
  LOWBIT_TRY(pool_->take(wanted_, tables_));
  for (size_t g = 0; g < tables_.size(); ++g)
    if (int64_t(tables_[g].size()) > count)
      if (auto copied = own_page(g, last); !copied) {
        drop_pages(before);
        return copied;
      }
  return {};
}

void KvCache::drop_pages(int64_t count) {
  for (size_t g = 0; g < tables_.size(); ++g)
    while (int64_t(tables_[g].size()) > count) {
      pool_->give_back(int(g), tables_[g].back().id);
      tables_[g].pop_back();
    }
}

Status KvCache::own_page(size_t group, int64_t index) {
  auto& table = tables_[group];
  KvPool::Page& page = table[size_t(index)];
  LOWBIT_TRY(pool_->copy(int(group), page, table.back()));
  pool_->give_back(int(group), page.id);
  page = table.back();
  table.pop_back();
  return {};
}

uint16_t* KvCache::rows(int64_t layer, int64_t which, int64_t head, int64_t page) const {
  const KvPool::Place place = pool_->place(layer);
  const KvGroup& g = pool_->groups()[size_t(place.group)];
  LOWBIT_DCHECK(g.format == KvFormat::kF16);
  auto* const data = reinterpret_cast<uint16_t*>(tables_[size_t(place.group)][size_t(page)].data);
  return data + ((place.index * 2 + which) * g.kv_heads + head) * kKvPage * g.head_dim;
}

void KvCache::store(const VectorOps& ops, int64_t layer, int64_t position, int64_t n, const float* k, const float* v,
                    int64_t ld, ThreadPool& pool) {
  LOWBIT_DCHECK(position >= length_ && position + n <= pages() * kKvPage);
  const int64_t heads = group_of(layer).kv_heads, d = group_of(layer).head_dim;
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
  const int64_t d = group_of(layer).head_dim, page = position / kKvPage, at = position % kKvPage;
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
  drop_pages(ceil_div(length, kKvPage));
  return {};
}

void KvCache::clear() { (void)truncate(0); }

}  // namespace lowbit
