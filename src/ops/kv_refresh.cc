// Sequences whose recent positions are computed once more now and then.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "ops/kv_cache.h"

namespace lowbit {

int64_t KvCache::rows_before_refresh() const {
  const int64_t every = pool_->refresh();
  if (every == 0 || is_refreshing()) return capacity_ - length_;
  return refreshed_ + every - length_;
}

KvCache KvCache::refreshing() const {
  LOWBIT_DCHECK(refreshed_ % kKvPage == 0 && int64_t(recent_.size()) == length_ - refreshed_);
  KvCache other(pool_, capacity_);
  other.length_ = other.start_ = other.refreshed_ = refreshed_;
  const int64_t pages = refreshed_ / kKvPage, most_packed = std::max<int64_t>(0, pages - 1);
  other.most_packed_ = most_packed;
  for (size_t g = 0; g < packed_.size(); ++g) {
    other.packed_[g] = std::min(packed_[g], most_packed);
    other.demoted_[g] = std::min(demoted_[g], most_packed);
    other.packed_gone_[g] = std::min(packed_gone_[g], most_packed);
    other.gone_[g] = std::clamp(pages, first_f16(g, 0), gone_[g]);
    share(g, pages, other);
    share(packed_store(g), other.packed_[g], other);
    share(demoted_store(g), other.demoted_[g], other);
  }
  return other;
}

void KvCache::finish_refresh() {
  most_packed_ = kAllPages;
  refreshed_ = length_;
  recent_.clear();
}

void KvCache::set_recent(std::span<const int32_t> tokens) {
  if (pool_->refresh() == 0) return;
  const auto last = tokens.last(size_t(length_ - refreshed_));
  recent_.assign(last.begin(), last.end());
}

std::optional<KvCache> KvCache::copy_before(int64_t n) const {
  if (!pool_->forgets() || (n <= kKeptPositions && n <= rows_before_refresh())) return std::nullopt;
  return fork();
}

Status KvCache::go_back(int64_t length, std::optional<KvCache>& copy) {
  if (!copy) return truncate(length);
  *this = std::move(*copy);
  copy.reset();
  return {};
}

}  // namespace lowbit
