// A sequence's pages as a file has them.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "ops/kv_cache.h"

namespace lowbit {
namespace {

tl::unexpected<Error> no_sequence(const std::string& got, const std::string& wanted) {
  return fail(ErrorCode::kCorrupt, "kv cache", got, wanted);
}

/// Ascending page numbers below `end`.
bool is_list_of_pages(const std::vector<int64_t>& pages, int64_t end) {
  for (size_t i = 0; i < pages.size(); ++i)
    if (pages[i] < 0 || pages[i] >= end || (i > 0 && pages[i] <= pages[i - 1])) return false;
  return true;
}

Status check(const KvImage& image, const KvPool& pool, int64_t capacity) {
  if (image.length < 0 || image.length > capacity)
    return fail(ErrorCode::kInvalidArgument, "kv cache", fmt::format("{} positions", image.length),
                fmt::format("at most {}", capacity), "ask for a larger context (-c)");
  if (image.groups.size() != pool.groups().size())
    return no_sequence(fmt::format("{} groups of layers", image.groups.size()),
                       fmt::format("{}", pool.groups().size()));
  const int64_t pages = ceil_div(image.length, kKvPage), every = pool.refresh();
  const bool refreshes =
      every > 0 ? image.refreshed % every == 0 && image.length - image.refreshed <= every : image.refreshed == 0;
  if (image.refreshed < 0 || image.refreshed > image.length || !refreshes)
    return no_sequence(fmt::format("{} of {} positions refreshed", image.refreshed, image.length),
                       fmt::format("all but the last {}", every));
  for (size_t g = 0; g < image.groups.size(); ++g) {
    const KvImage::Group& group = image.groups[g];
    const int64_t most_packed = pool.groups()[g].format.packed() ? std::max<int64_t>(0, image.length / kKvPage - 1) : 0;
    const KvFormat& format = pool.groups()[g].format;
    if (!is_list_of_pages(group.f16, pages) || group.packed < 0 || group.packed > most_packed)
      return no_sequence(fmt::format("pages of group {} that no sequence has", g),
                         fmt::format("f16 pages below {} in order, at most {} packed ones", pages, most_packed));
    const int64_t demoted = format.demoted_pages(image.length - 1);  // that have been read, and so are there
    if (group.demoted > (format.demote_after > 0 ? group.packed : 0) || group.demoted < demoted ||
        group.packed_gone < 0 || group.packed_gone > demoted)
      return no_sequence(
          fmt::format("{} demoted pages in group {}, {} packed ones gone", group.demoted, g, group.packed_gone),
          fmt::format("{} or more, and no more gone", demoted));
  }
  return {};
}

}  // namespace

const KvPool::Page& KvCache::page_at(int store, int64_t page) const {
  const bool packed = size_t(store) >= packed_.size();
  return tables_[size_t(store)][size_t(packed ? page - 1 : page)];
}

KvImage KvCache::image() const {
  KvImage image{length_, refreshed_, {}};
  for (size_t g = 0; g < packed_.size(); ++g) {
    KvImage::Group group{{}, packed_[g], packed_gone_[g], demoted_[g]};
    for (int64_t page = 0; page < ceil_div(length_, kKvPage); ++page)
      if (tables_[g][size_t(page)].data != nullptr) group.f16.push_back(page);
    image.groups.push_back(std::move(group));
  }
  return image;
}

bool KvCache::is_complete() const {
  for (size_t g = 0; g < packed_.size(); ++g) {
    const bool packed = format(g).packed();
    const int64_t position = pool_->refresh() > 0 ? refreshed_ : length_;  // whose row comes next, or once more
    if (packed_gone_[g] > format(g).demoted_pages(position)) return false;
    const int64_t first = packed ? std::min(first_f16(g, position), packed_[g] + 1) : first_f16(g, position);
    for (int64_t page = packed ? 0 : first; page * kKvPage < length_; ++page)
      if (tables_[g][size_t(page)].data == nullptr && (page == 0 || page >= first)) return false;
  }
  return true;
}

Result<KvCache> KvCache::from_image(std::shared_ptr<KvPool> pool, int64_t capacity, const KvImage& image) {
  LOWBIT_TRY(check(image, *pool, capacity));
  KvCache cache(std::move(pool), capacity);
  const size_t groups = image.groups.size();
  for (size_t g = 0; g < groups; ++g) {
    cache.wanted_[g] = int64_t(image.groups[g].f16.size());
    cache.wanted_[cache.packed_store(g)] = image.groups[g].packed_there();
    cache.wanted_[cache.demoted_store(g)] = image.groups[g].demoted;
  }
  LOWBIT_TRY(cache.pool_->take(cache.wanted_, cache.tables_));
  cache.length_ = cache.start_ = image.length;
  cache.refreshed_ = image.refreshed;
  for (size_t g = 0; g < groups; ++g) {
    const KvImage::Group& from = image.groups[g];
    auto& table = cache.tables_[g];
    const std::vector<KvPool::Page> taken = table;
    table.assign(size_t(ceil_div(image.length, kKvPage)), {});
    for (size_t i = 0; i < taken.size(); ++i) table[size_t(from.f16[i])] = taken[i];
    auto& packed = cache.tables_[cache.packed_store(g)];
    packed.insert(packed.begin(), size_t(from.packed_gone), {});
    cache.packed_[g] = from.packed;
    cache.packed_gone_[g] = from.packed_gone;
    cache.demoted_[g] = from.demoted;
    while (cache.gone_[g] < int64_t(table.size()) && table[size_t(cache.gone_[g])].data == nullptr) ++cache.gone_[g];
  }
  if (!cache.is_complete())
    return no_sequence(fmt::format("no page of some of {} positions", image.length), "pages of all that are read");
  return cache;
}

Status KvCache::read_page(int store, int64_t page, std::byte* to) const {
  LOWBIT_TRY(pool_->read(store, page_at(store, page), to));
  const int64_t left = length_ - page * kKvPage;
  if (size_t(store) >= packed_.size() || left >= kKvPage) return {};
  const KvGroup& g = pool_->groups()[size_t(store)];
  auto* at = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < int64_t(g.layers.size()); ++i) {
    for (int64_t row = 0; row < g.kv_heads * g.head_dim; ++row, at += kKvPage)  // keys: positions side by side
      std::fill(at + left, at + kKvPage, uint16_t{0});
    for (int64_t head = 0; head < g.kv_heads; ++head, at += kKvPage * g.head_dim)
      std::fill(at + left * g.head_dim, at + kKvPage * g.head_dim, uint16_t{0});
  }
  return {};
}

Status KvCache::write_page(int store, int64_t page, const std::byte* from) {
  return pool_->write(store, from, page_at(store, page));
}

}  // namespace lowbit
