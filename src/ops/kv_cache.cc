#include "ops/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "base/try.h"
#include "kernels/fp8_rows.h"
#include "kernels/pack_rows.h"

namespace lowbit {
namespace {

/// Pages, from page 1 on, whose positions all lie before `length`.
int64_t whole_pages(int64_t length) { return std::max<int64_t>(0, length / kKvPage - 1); }

void pack_block(const uint16_t* from, int64_t ld, const PackedShape& shape, const PackedMatrix& to) {
  pack_rows(from, ld, shape, const_cast<uint8_t*>(to.codes), const_cast<uint8_t*>(to.side));
}

/// A head's keys [d][kKvPage] and values [kKvPage][d] of a page.
void pack_keys(const uint16_t* keys, int64_t d, int bits, const PackedMatrix& to) {
  pack_block(keys, kKvPage, {bits, d, kKvPage}, to);
}

/// run(first element, shape, matrix) for each block of a head's packed values.
template <class Run>
void each_block(PackedMatrix block, int64_t d, int bits, const Run& run) {
  const int64_t width = value_columns(bits);
  for (int64_t i = 0; i < d; i += width) {
    const PackedShape shape = {bits, kKvPage, std::min(width, d - i)};
    run(i, shape, block);
    block = {block.codes + shape.code_bytes(), block.side + shape.side_bytes()};
  }
}

void pack_values(const uint16_t* values, int64_t d, int bits, const PackedMatrix& to) {
  each_block(to, d, bits, [&](int64_t at, const PackedShape& shape, const PackedMatrix& block) {
    pack_block(values + at, d, shape, block);
  });
}

}  // namespace

KvCache::KvCache(std::shared_ptr<KvPool> pool, int64_t capacity) : pool_(std::move(pool)), capacity_(capacity) {
  const size_t groups = pool_->groups().size();
  tables_.resize(size_t(pool_->stores()));
  wanted_.resize(tables_.size());
  sizes_.resize(tables_.size());
  for (auto* const counts : {&packed_, &demoted_, &packed_gone_}) counts->resize(groups);
  for (size_t g = 0; g < groups; ++g) gone_.push_back(first_f16(g, 0));
  // One more for a copy on its way: reserve() does not allocate.
  const int64_t most = std::min(ceil_div(capacity, kKvPage), pool_->max_pages()) + 1;
  for (size_t g = 0; g < groups; ++g) {
    tables_[g].reserve(size_t(most));
    if (format(g).packed()) tables_[packed_store(g)].reserve(size_t(most));
    if (format(g).demote_after > 0) tables_[demoted_store(g)].reserve(size_t(most));
  }
}

KvCache::~KvCache() {
  if (pool_) clear();
}

KvCache& KvCache::operator=(KvCache&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(capacity_, other.capacity_);
  std::swap(length_, other.length_);
  std::swap(start_, other.start_);
  std::swap(tables_, other.tables_);
  std::swap(packed_, other.packed_);
  std::swap(demoted_, other.demoted_);
  std::swap(packed_gone_, other.packed_gone_);
  std::swap(gone_, other.gone_);
  std::swap(wanted_, other.wanted_);
  std::swap(sizes_, other.sizes_);
  std::swap(refreshed_, other.refreshed_);
  std::swap(most_packed_, other.most_packed_);
  std::swap(recent_, other.recent_);
  return *this;
}

Result<KvCache> KvCache::make(std::vector<KvGroup> groups, int64_t capacity) {
  LOWBIT_TRY_ASSIGN(auto pool, KvPool::make(std::move(groups), ceil_div(capacity, kKvPage)));
  return KvCache(std::move(pool), capacity);
}

void KvCache::share(size_t store, int64_t count, KvCache& with) const {
  for (int64_t p = 0; p < count; ++p) {
    const KvPool::Page& page = tables_[store][size_t(p)];
    if (page.data != nullptr) pool_->share(int(store), page.id);
    with.tables_[store].push_back(page);
  }
}

KvCache KvCache::fork() const {
  KvCache other(pool_, capacity_);
  other.length_ = other.start_ = length_;
  other.packed_ = packed_;
  other.demoted_ = demoted_;
  other.packed_gone_ = packed_gone_;
  other.gone_ = gone_;
  other.refreshed_ = refreshed_;
  other.most_packed_ = most_packed_;
  other.recent_ = recent_;
  for (size_t g = 0; g < packed_.size(); ++g) {
    share(g, ceil_div(length_, kKvPage), other);
    share(packed_store(g), packed_[g], other);  // what is not written yet each writes to a page of its own
    share(demoted_store(g), demoted_[g], other);
  }
  return other;
}

KvCache KvCache::restarted(int64_t length) const {
  KvCache other(pool_, capacity_);
  if (pool_->forgets()) return other;  // packed pages have gone, or are of rows that were computed once more
  for (size_t g = 0; g < packed_.size(); ++g) {
    other.packed_[g] = std::min(packed_[g], whole_pages(length));
    share(packed_store(g), other.packed_[g], other);
  }
  return other;
}

int64_t KvCache::bytes() const {
  int64_t total = 0;
  for (size_t s = 0; s < tables_.size(); ++s)
    for (const KvPool::Page& page : tables_[s])
      if (page.data != nullptr) total += pool_->page_bytes(int(s));
  return total;
}

Status KvCache::reserve(int64_t n) {
  if (n < 0 || n > capacity_ - length_)
    return fail(ErrorCode::kInvalidArgument, "kv cache", fmt::format("{} + {} positions", length_, n),
                fmt::format("at most {}", capacity_), "shorten the text or ask for a larger context (-c)");
  if (n == 0) return {};
  LOWBIT_TRY(grow(length_ + std::min(n, kOpenRows), length_ + n));
  start_ = length_;
  return {};
}

Status KvCache::open(int64_t rows) {
  LOWBIT_DCHECK(rows <= capacity_ - length_);
  return grow(length_ + rows, length_ + rows);
}

Status KvCache::grow(int64_t f16_end, int64_t end) {
  const int64_t last = length_ / kKvPage;
  // All at once: who holds some of the pages it needs while it waits for the others would keep those from everybody
  // else.
  for (size_t g = 0; g < packed_.size(); ++g) {
    const auto size = [&](size_t store) { return int64_t(tables_[store].size()); };
    const int64_t count = ceil_div(gives_back(g) ? f16_end : end, kKvPage);
    const bool shared = last < size(g) && pool_->is_shared(int(g), tables_[g][size_t(last)].id);
    sizes_[g] = size(g);
    wanted_[g] = std::max<int64_t>(0, count - size(g)) + (shared ? 1 : 0);
    const size_t s = packed_store(g);
    sizes_[s] = size(s);
    const bool demotes = format(g).demote_after > 0;  // so that packed pages go
    wanted_[s] = std::max<int64_t>(0, packed_pages(g, (demotes ? f16_end : end) - 1) - size(s));
    const size_t old = demoted_store(g);
    sizes_[old] = size(old);
    wanted_[old] = std::max<int64_t>(0, format(g).demoted_pages(end - 1) - size(old));
  }
  if (std::ranges::all_of(wanted_, [](int64_t pages) { return pages == 0; })) return {};
  LOWBIT_TRY(pool_->take(wanted_, tables_));
  for (size_t g = 0; g < packed_.size(); ++g)
    if (last < sizes_[g] && pool_->is_shared(int(g), tables_[g][size_t(last)].id))
      if (auto copied = own_page(g, last); !copied) {
        drop_pages(sizes_);
        return copied;
      }
  return {};
}

void KvCache::drop_last(size_t store) {
  const KvPool::Page page = tables_[store].back();
  if (page.data != nullptr) pool_->give_back(int(store), page.id);
  tables_[store].pop_back();
}

void KvCache::drop_pages(std::span<const int64_t> sizes) {
  for (size_t s = 0; s < tables_.size(); ++s)
    while (int64_t(tables_[s].size()) > sizes[s]) drop_last(s);
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
  const KvPool::GroupLayer in_group = pool_->group_layer(layer);
  const KvGroup& g = pool_->groups()[size_t(in_group.group)];
  auto* const data = reinterpret_cast<uint16_t*>(tables_[size_t(in_group.group)][size_t(page)].data);
  return data + ((in_group.index * 2 + which) * g.kv_heads + head) * kKvPage * g.head_dim;
}

void KvCache::store(const VectorOps& ops, int64_t layer, int64_t position, int64_t n, const float* k, const float* v,
                    int64_t ld, ThreadPool& pool) {
  LOWBIT_DCHECK(position >= length_ && position + n <= capacity_);
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

PackedMatrix KvCache::packed(int64_t layer, int64_t which, int64_t head, int64_t page, bool demoted) const {
  const KvPool::GroupLayer in_group = pool_->group_layer(layer);
  const KvGroup& g = pool_->groups()[size_t(in_group.group)];
  const size_t store = demoted ? demoted_store(size_t(in_group.group)) : packed_store(size_t(in_group.group));
  const auto* const data = reinterpret_cast<const uint8_t*>(tables_[store][size_t(page - 1)].data);
  const KvFormat format = demoted ? g.format.demoted() : g.format;
  const PackedHead at = packed_head(packed_head_bytes(format, g.head_dim), in_group.index * g.kv_heads + head,
                                    int64_t(g.layers.size()) * g.kv_heads);
  if (which == 0) return {data + at.key_codes, data + at.key_side};
  return {data + at.value_codes, data + at.value_side};
}

void KvCache::pack(int64_t layer, int64_t rows, ThreadPool& pool) {
  const auto g = size_t(pool_->group_layer(layer).group);
  const int64_t heads = group_of(layer).kv_heads, first = packed_[g];
  const int64_t last = length_ + rows - 1;
  if (const int64_t pages = packed_pages(g, last) - first; pages > 0)
    pool.parallel_for(pages * heads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) pack_head(layer, i % heads, 1 + first + i / heads);
    });
  const int64_t first_old = demoted_[g];
  if (const int64_t pages = format(g).demoted_pages(last) - first_old; pages > 0)
    pool.parallel_for(pages * heads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) demote_head(layer, i % heads, 1 + first_old + i / heads);
    });
}

void KvCache::pack_head(int64_t layer, int64_t head, int64_t page) {
  const KvGroup& g = group_of(layer);
  if (g.format.fp8) {
    const auto to = [](const uint8_t* bytes) { return const_cast<uint8_t*>(bytes); };
    const PackedMatrix keys = packed_keys(layer, head, page), values = packed_values(layer, head, page);
    pack_fp8_rows(keys_f16(layer, head, page), kKvPage, g.head_dim, kKvPage, to(keys.codes),
                  reinterpret_cast<int8_t*>(to(keys.side)));
    return pack_fp8_rows(values_f16(layer, head, page), g.head_dim, kKvPage, g.head_dim, to(values.codes),
                         reinterpret_cast<int8_t*>(to(values.side)));
  }
  pack_keys(keys_f16(layer, head, page), g.head_dim, g.format.key_bits, packed_keys(layer, head, page));
  pack_values(values_f16(layer, head, page), g.head_dim, g.format.value_bits, packed_values(layer, head, page));
}

void KvCache::demote_head(int64_t layer, int64_t head, int64_t page) {
  const KvGroup& g = group_of(layer);
  const KvFormat old = g.format.demoted();
  const PackedMatrix keys = packed_keys(layer, head, page), values = packed_values(layer, head, page);
  uint16_t rows[kMostPackedRows * kKvPage];
  if (g.format.fp8) {
    expand_fp8_rows(keys.codes, reinterpret_cast<const int8_t*>(keys.side), g.head_dim, kKvPage, rows);
  } else {
    unpack_rows(keys, {g.format.key_bits, g.head_dim, kKvPage}, kKvPage, rows);
  }
  pack_keys(rows, g.head_dim, old.key_bits, packed_keys(layer, head, page, true));
  if (g.format.fp8) {
    expand_fp8_rows(values.codes, reinterpret_cast<const int8_t*>(values.side), kKvPage, g.head_dim, rows);
  } else {
    each_block(values, g.head_dim, g.format.value_bits,
               [&](int64_t at, const PackedShape& shape, const PackedMatrix& block) {
                 unpack_rows(block, shape, g.head_dim, rows + at);
               });
  }
  pack_values(rows, g.head_dim, old.value_bits, packed_values(layer, head, page, true));
}

void KvCache::commit(int64_t n, std::span<const int32_t> tokens) {
  length_ += n;
  if (pool_->refresh() > 0) recent_.insert(recent_.end(), tokens.begin(), tokens.end());
  for (size_t g = 0; g < packed_.size(); ++g) {
    if (!gives_back(g) || length_ == 0) continue;
    packed_[g] = std::max(packed_[g], packed_pages(g, length_ - 1));
    demoted_[g] = std::max(demoted_[g], format(g).demoted_pages(length_ - 1));
    release(g);
    release_packed(g);
  }
}

void KvCache::release(size_t group) {
  const int64_t end = std::min(first_f16(group, first_row()), ceil_div(length_, kKvPage));
  // From it on, what is needed to begin the call again.
  const int64_t kept = pool_->forgets() ? end : first_f16(group, start_ - kKeptPositions);
  bool all = true;
  for (int64_t page = gone_[group]; page < end; ++page) {
    KvPool::Page& at = tables_[group][size_t(page)];
    const bool needed = page >= kept && page * kKvPage < start_;
    if (!needed && at.data != nullptr) {
      pool_->give_back(int(group), at.id);
      at = {};
    }
    all &= !needed;
    if (all) gone_[group] = page + 1;
  }
}

void KvCache::release_packed(size_t group) {
  const int64_t end = format(group).demoted_pages(first_row());
  for (int64_t& page = packed_gone_[group]; page < end; ++page) {
    KvPool::Page& at = tables_[packed_store(group)][size_t(page)];
    pool_->give_back(pool_->packed_store(int(group)), at.id);
    at = {};
  }
}

bool KvCache::can_truncate(int64_t length) const {
  if (length < 0 || length > length_ || (length > 0 && length < refreshed_)) return false;
  for (size_t g = 0; g < packed_.size(); ++g) {
    if (packed_gone_[g] > format(g).demoted_pages(length) && length > 0) return false;
    for (int64_t page = first_f16(g, length); page * kKvPage < length; ++page)
      if (tables_[g][size_t(page)].data == nullptr) return false;
  }
  return true;
}

Status KvCache::truncate(int64_t length) {
  if (length < 0 || length > length_)
    return fail(ErrorCode::kInvalidArgument, "kv cache truncate", fmt::format("{}", length),
                fmt::format("0..{}", length_));
  if (!can_truncate(length))
    return fail(ErrorCode::kUnsupported, "kv cache truncate", fmt::format("{} of {} positions", length, length_),
                fmt::format("0, or one of the last {} positions that it ever had", kKeptPositions),
                "clear it and compute the tokens again");
  length_ = length;
  start_ = std::min(start_, length);
  refreshed_ = std::min(refreshed_, length);
  recent_.resize(std::min(recent_.size(), size_t(length - refreshed_)));
  const int64_t whole = whole_pages(length);
  for (size_t g = 0; g < packed_.size(); ++g) {
    packed_[g] = std::min(packed_[g], whole);
    demoted_[g] = std::min(demoted_[g], whole);
    packed_gone_[g] = std::min(packed_gone_[g], packed_[g]);
    gone_[g] = std::clamp(length / kKvPage, first_f16(g, 0), gone_[g]);
    sizes_[g] = std::min(int64_t(tables_[g].size()), ceil_div(length, kKvPage));
    sizes_[packed_store(g)] = packed_[g];
    sizes_[demoted_store(g)] = demoted_[g];
  }
  drop_pages(sizes_);
  return {};
}

void KvCache::clear() { (void)truncate(0); }

}  // namespace lowbit
