#include "ops/kv_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "base/try.h"
#include "kernels/packed_kv.h"

namespace lowbit {
namespace {

constexpr int64_t kPageAlignment = 64;

/// Bytes of an f16 page, or nothing where a size is senseless.
std::optional<uint64_t> bytes_of_page(const KvGroup& g) {
  uint64_t bytes = 2 * sizeof(uint16_t) * kKvPage;
  for (const int64_t factor : {int64_t(g.layers.size()), g.kv_heads, g.head_dim}) {
    const auto product = factor < 1 ? std::nullopt : checked_mul(bytes, uint64_t(factor));
    if (!product) return std::nullopt;
    bytes = *product;
  }
  return bytes;
}

/// Bytes of a group's packed page in this format; 0: there are none.
int64_t packed_page_bytes(const KvGroup& g, const KvFormat& format) {
  if (!format.packed()) return 0;
  const PackedHeadBytes head = packed_head_bytes(format, g.head_dim);
  return round_up(int64_t(g.layers.size()) * g.kv_heads * (head.codes() + head.sides()), kPageAlignment);
}

}  // namespace

Status check_packable(const KvGroup& g) {
  if (!g.format.packed() || is_packable_head(g.head_dim)) return {};
  return fail(ErrorCode::kUnsupported, "kv cache",
              fmt::format("{} of heads of {}", kv_format_name(g.format), g.head_dim),
              fmt::format("heads of 16, 32, .. {}", kMostPackedRows), "use --kv f16");
}

std::vector<KvGroup> uniform_kv_groups(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t window) {
  KvGroup group;
  group.layers.resize(size_t(std::max<int64_t>(layers, 0)));
  std::iota(group.layers.begin(), group.layers.end(), 0);
  group.kv_heads = kv_heads;
  group.head_dim = head_dim;
  group.window = window;
  return {std::move(group)};
}

Result<std::shared_ptr<KvPool>> KvPool::make(std::vector<KvGroup> groups, int64_t max_pages, int64_t slab_pages,
                                             std::vector<KvPageMemory> memories) {
  std::shared_ptr<KvPool> pool(new KvPool());
  LOWBIT_DCHECK(memories.empty() || memories.size() == groups.size());
  pool->memories_ = std::move(memories);
  pool->max_pages_ = max_pages;
  size_t layers = 0;
  for (const KvGroup& g : groups) layers += g.layers.size();
  pool->group_layers_.resize(layers, {-1, 0});
  for (size_t i = 0; i < groups.size(); ++i) {
    const KvGroup& g = groups[i];
    LOWBIT_TRY(check_packable(g));
    const auto bytes = bytes_of_page(g);
    const auto total = bytes && max_pages > 0 ? checked_mul(*bytes, uint64_t(max_pages)) : std::nullopt;
    if (!total || *total > uint64_t{1} << 62 || max_pages > int64_t{UINT32_MAX})
      return fail(
          ErrorCode::kInvalidArgument, "kv cache",
          fmt::format("{} layers, {} heads of {}, {} pages", g.layers.size(), g.kv_heads, g.head_dim, max_pages),
          "at least 1 of each, and sizes that fit in memory");
    for (size_t l = 0; l < g.layers.size(); ++l) {
      const int layer = g.layers[l];
      if (layer < 0 || size_t(layer) >= layers || pool->group_layers_[size_t(layer)].group >= 0)
        return fail(ErrorCode::kInvalidArgument, "kv cache", fmt::format("layer {} in group {}", layer, i),
                    fmt::format("each of {} layers in one group", layers));
      pool->group_layers_[size_t(layer)] = {int(i), int(l)};
    }
    pool->stores_.emplace_back().page_bytes = int64_t(*bytes);
  }
  if (groups.empty()) return fail(ErrorCode::kInvalidArgument, "kv cache", "no groups of layers", "at least one");
  pool->groups_ = std::move(groups);
  for (const bool demoted : {false, true})
    for (const KvGroup& g : pool->groups_)
      pool->stores_.emplace_back().page_bytes = packed_page_bytes(g, demoted ? g.format.demoted() : g.format);
  for (size_t store = 0; store < pool->stores_.size(); ++store) {
    if (pool->stores_[store].page_bytes == 0) continue;
    pool->stores_[store].slab_pages = pool->slab_pages_of(store, slab_pages);
    LOWBIT_TRY(pool->add_slab(store));
    pool->stores_[store].device = pool->stores_[store].slabs.front().device();
  }
  return pool;
}

int64_t KvPool::slab_pages_of(size_t store, int64_t slab_pages) const {
  const int64_t most = slab_pages > 0 ? std::min(slab_pages, max_pages_) : max_pages_;
  const KvPageMemory* const memory = memory_of(store);
  if (memory == nullptr || memory->slab_pages == 0) return most;
  // Of up to twice as many those that leave least of the last granule empty, for each page.
  const auto bytes_of_one = [&](int64_t pages) {
    return double(round_up(pages * stores_[store].page_bytes, memory->granule_bytes)) / double(pages);
  };
  int64_t best = std::min(memory->slab_pages, most);
  for (int64_t pages = best + 1; pages < 2 * memory->slab_pages && pages <= most; ++pages)
    if (bytes_of_one(pages) < bytes_of_one(best)) best = pages;
  return best;
}

Status KvPool::add_slab(size_t index) {
  Store& store = stores_[index];
  const auto gone = std::ranges::find_if(store.slabs, &Buffer::empty);
  const int64_t first = (gone - store.slabs.begin()) * store.slab_pages;
  const int64_t pages = std::min(store.slab_pages, max_pages_ - first);
  const int64_t bytes = pages * store.page_bytes;
  const KvPageMemory* const memory = memory_of(index);
  // A layer reads a few KB of each page, far apart: with small pages of memory nearly each needs its own translation.
  LOWBIT_TRY_ASSIGN(Buffer slab, memory != nullptr && memory->allocate
                                     ? memory->allocate(bytes)
                                     : Buffer::allocate(bytes, "kv cache", Pages::kLarge));
  if (gone == store.slabs.end()) {
    store.slabs.push_back(std::move(slab));
    store.owners.resize(size_t(first + pages));
    store.spare.reserve(store.owners.size());
  } else {
    *gone = std::move(slab);
  }
  for (int64_t i = first + pages - 1; i >= first; --i) store.spare.push_back(uint32_t(i));
  return {};
}

Status KvPool::add_slabs(std::span<const int64_t> counts) {
  for (size_t s = 0; s < counts.size(); ++s)
    while (int64_t(stores_[s].spare.size()) < counts[s]) LOWBIT_TRY(add_slab(s));
  return {};
}

bool KvPool::give_back_slabs() {
  bool any = false;
  for (Store& store : stores_)
    for (size_t i = 0; i < store.slabs.size(); ++i) {
      const int64_t first = int64_t(i) * store.slab_pages, end = std::min(first + store.slab_pages, max_pages_);
      const std::span<const uint32_t> owners = std::span(store.owners).subspan(size_t(first), size_t(end - first));
      if (store.slabs[i].empty() || std::ranges::any_of(owners, [](uint32_t n) { return n > 0; })) continue;
      std::erase_if(store.spare, [&](uint32_t id) { return id >= first && id < end; });
      store.slabs[i] = {};
      any = true;
    }
  return any;
}

int64_t KvPool::bytes_of(int64_t positions) const {
  const int64_t all = ceil_div(positions, kKvPage);
  int64_t bytes = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const KvFormat& format = groups_[g].format;
    const int64_t kept = std::max<int64_t>(positions - std::max(kKeptPositions, refresh()), 0);
    const int64_t released = groups_[g].first_f16(kept) - groups_[g].first_f16(0);
    const int64_t packed = format.packed_pages(positions - 1) - format.demoted_pages(kept);
    bytes += (all - released) * page_bytes(int(g)) + packed * page_bytes(packed_store(int(g))) +
             format.demoted_pages(positions - 1) * page_bytes(demoted_store(int(g)));
  }
  return bytes;
}

int64_t KvPool::refresh() const {
  int64_t most = 0;
  for (const KvGroup& g : groups_) most = std::max(most, g.format.refresh);
  return most;
}

bool KvPool::forgets() const {
  return std::ranges::any_of(groups_, [](const KvGroup& g) { return g.format.forgets(); });
}

int64_t KvPool::pages_in_use() const {
  const std::lock_guard lock(mutex_);
  int64_t pages = 0;
  for (const Store& store : stores_) pages += store.in_use;
  return pages;
}

int64_t KvPool::allocated_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const Store& store : stores_) bytes += store.most_in_use * store.page_bytes;
  return bytes;
}

Status KvPool::take(std::span<const int64_t> counts, std::span<std::vector<Page>> tables) {
  const std::lock_guard lock(mutex_);
  for (size_t s = 0; s < counts.size(); ++s)
    if (counts[s] > max_pages_ - stores_[s].in_use)
      return fail(ErrorCode::kOutOfMemory, "kv cache", fmt::format("{} pages in use", stores_[s].in_use),
                  fmt::format("at most {} pages of {} positions", max_pages_, kKvPage),
                  "shorten the text, end other sessions, or ask for a larger context");
  // Memory that pages of one form left empty may be all that those of another lack.
  if (Status room = add_slabs(counts); !room) {
    if (!give_back_slabs()) return room;
    LOWBIT_TRY(add_slabs(counts));
  }
  for (size_t s = 0; s < counts.size(); ++s) {
    Store& store = stores_[s];
    for (int64_t i = 0; i < counts[s]; ++i) {
      const uint32_t id = store.spare.back();
      store.spare.pop_back();
      store.owners[id] = 1;
      tables[s].push_back(
          {id, store.slabs[id / size_t(store.slab_pages)].data() + id % store.slab_pages * store.page_bytes});
    }
    store.in_use += counts[s];
    store.most_in_use = std::max(store.most_in_use, store.in_use);
  }
  return {};
}

Status KvPool::copy_bytes(int store, std::byte* to, const std::byte* from) const {
  const KvPageMemory* const memory = memory_of(size_t(store));
  if (memory != nullptr && memory->copy) return memory->copy(to, from, page_bytes(store));
  std::copy_n(from, page_bytes(store), to);
  return {};
}

Status KvPool::copy(int store, const Page& from, const Page& to) const { return copy_bytes(store, to.data, from.data); }
Status KvPool::read(int store, const Page& from, std::byte* to) const { return copy_bytes(store, to, from.data); }
Status KvPool::write(int store, const std::byte* from, const Page& to) const {
  return copy_bytes(store, to.data, from);
}

void KvPool::share(int store, uint32_t id) {
  const std::lock_guard lock(mutex_);
  ++stores_[size_t(store)].owners[id];
}

bool KvPool::is_shared(int store, uint32_t id) const {
  const std::lock_guard lock(mutex_);
  return stores_[size_t(store)].owners[id] > 1;
}

void KvPool::give_back(int store, uint32_t id) {
  {
    const std::lock_guard lock(mutex_);
    Store& from = stores_[size_t(store)];
    LOWBIT_DCHECK(from.owners[id] > 0);
    if (--from.owners[id] > 1) return;
    if (from.owners[id] == 0) {
      from.spare.push_back(id);
      --from.in_use;
    }
    ++times_freed_;  // the last owner may write to the page without a copy now
  }
  freed_.notify_all();
}

uint64_t KvPool::times_freed() const {
  const std::lock_guard lock(mutex_);
  return times_freed_;
}

bool KvPool::wait_until_freed(uint64_t since, std::chrono::milliseconds most) const {
  std::unique_lock lock(mutex_);
  return freed_.wait_for(lock, most, [&] { return times_freed_ != since; });
}

}  // namespace lowbit
