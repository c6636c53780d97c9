#pragma once
// Pages of keys and values, counted, so that sequences may share them.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/api.h"
#include "lowbit/error.h"
#include "ops/kv_format.h"
#include "tensor/buffer.h"

namespace lowbit {

/// Layers whose keys and values have one form: they share pages, 64 positions of all of them in each.
/// An f16 page is [layer][key, value][kv head], keys [head_dim][position], values [position][head_dim], binary16. A
/// packed page has the codes of all heads, then what stands beside them (packed_head()), heads in the same order of
/// layers and kv heads.
struct KvGroup {
  std::vector<int> layers;  // of the model, ascending
  int64_t kv_heads = 0, head_dim = 0;
  int64_t window = 0;  // positions that a query sees, its own included; 0: all. Pages before it go
  KvFormat format = {};

  int64_t row_elems() const { return kv_heads * head_dim; }  // one position of one layer, keys or values
  /// The first page, but for page 0 of packed groups, that rows from `position` on read as f16.
  int64_t first_f16(int64_t position) const {
    if (format.packed()) return format.packed_pages(position) + 1;
    return window > 0 && position >= window ? (position + 1 - window) / kKvPage : 0;
  }
};

/// Error: kUnsupported (heads that the group's format does not pack).
Status check_packable(const KvGroup& group);

/// `layers` layers of one form.
std::vector<KvGroup> uniform_kv_groups(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t window = 0);

/// Where pages of a group lie. Empty: in the host's memory.
struct KvPageMemory {
  std::function<Result<Buffer>(int64_t bytes)> allocate;
  /// Between pages, or a page and the host's memory; waits until it is done.
  std::function<Status(std::byte* to, const std::byte* from, int64_t bytes)> copy;
  /// Where memory that is taken is occupied at once, as on a GPU: about so many pages are taken at a time, so that a
  /// cache takes what it uses, not what it might; 0: as many as the pool is told.
  int64_t slab_pages = 0;
  int64_t granule_bytes = 1;  // allocate() takes whole multiples of it
};

/// Positions, behind the newest ones that queries read as f16, whose f16 pages a sequence keeps beside the packed ones,
/// so that it can be truncated to any of them.
inline constexpr int64_t kKeptPositions = 256;

/// Hands out pages of every group, counts their owners and takes them back. Address space comes in slabs of so many
/// pages, the first of them at once, so that decoding within it never allocates; a host's system gives memory to a page
/// when it is first written, so that an unused context costs nothing, and a GPU's slabs are small. A page stays where
/// it is while it has owners. Slabs without such pages are used again, by their own form, and by any other once memory
/// has run out. Thread safe.
class KvPool {
 public:
  struct Page {
    uint32_t id = 0;
    std::byte* data = nullptr;  // page_bytes(store), in memory of its group's device
  };

  /// Each store has at most `max_pages` pages, and gets address space for `slab_pages` of them at a time (0: for all),
  /// or for fewer where its memory says so.
  /// `memories`: of each group; none: all in the host's memory.
  /// Errors: kInvalidArgument (an extent below 1, a head that cannot be packed, a layer in two groups or none, sizes
  /// beyond memory's address range), kOutOfMemory.
  static Result<std::shared_ptr<KvPool>> make(std::vector<KvGroup> groups, int64_t max_pages, int64_t slab_pages = 0,
                                              std::vector<KvPageMemory> memories = {});

  std::span<const KvGroup> groups() const { return groups_; }
  Device device(int group) const { return stores_[static_cast<size_t>(group)].device; }
  int64_t layers() const { return static_cast<int64_t>(group_layers_.size()); }
  /// Where a layer of the model lies: layer `index` of groups()[group].
  struct GroupLayer {
    int group = 0, index = 0;
  };
  GroupLayer group_layer(int64_t layer) const { return group_layers_[static_cast<size_t>(layer)]; }
  const KvGroup& group_of(int64_t layer) const { return groups_[static_cast<size_t>(group_layer(layer).group)]; }

  /// Pages are kept in stores: those of f16 of group g in store g, its packed ones in packed_store(g), demoted ones in
  /// demoted_store(g), which have none for other formats.
  int packed_store(int group) const { return int(groups_.size()) + group; }
  int demoted_store(int group) const { return 2 * int(groups_.size()) + group; }
  int stores() const { return 3 * int(groups_.size()); }
  /// KvFormat::refresh, which all packed groups have alike; KvFormat::forgets() of any.
  int64_t refresh() const;
  bool forgets() const;
  int64_t page_bytes(int store) const { return stores_[static_cast<size_t>(store)].page_bytes; }
  /// Bytes of one sequence of `positions`, over all groups; of f16 pages that go, those that it keeps at most after a
  /// call.
  int64_t bytes_of(int64_t positions) const;
  int64_t max_pages() const { return max_pages_; }
  int64_t pages_in_use() const;     // of all stores; a shared page counts once
  int64_t allocated_bytes() const;  // of pages that have been in use

  /// counts[s] pages of store s with one owner each, behind those in tables[s]; none at all after an error. Error:
  /// kOutOfMemory (all `max_pages` are in use, or the system or the device has no memory).
  Status take(std::span<const int64_t> counts, std::span<std::vector<Page>> tables);
  /// Copies a page to another of its store. Errors: those of the device.
  Status copy(int store, const Page& from, const Page& to) const;
  /// Copies a page to and from the host's memory, [page_bytes(store)].
  Status read(int store, const Page& from, std::byte* to) const;
  Status write(int store, const std::byte* from, const Page& to) const;
  /// One owner more.
  void share(int store, uint32_t id);
  bool is_shared(int store, uint32_t id) const;
  /// One owner less; without any the page is free again.
  void give_back(int store, uint32_t id);

  /// How often pages have become free, or their last owner's alone. A caller that got none reads it first, then waits
  /// until it has grown; false when the time is up.
  uint64_t times_freed() const;
  bool wait_until_freed(uint64_t since, std::chrono::milliseconds most) const;

 private:
  /// The pages of one form. Page `id` lies in slabs[id / slab_pages].
  struct Store {
    int64_t page_bytes = 0, slab_pages = 0, in_use = 0, most_in_use = 0;
    Device device = Device::kCpu;
    std::vector<Buffer> slabs;     // empty: given back
    std::vector<uint32_t> owners;  // of each page
    std::vector<uint32_t> spare;   // pages without owners, of slabs that are there; the last is taken first
  };
  KvPool() = default;
  /// How many pages a slab of the store has; the last may have fewer.
  int64_t slab_pages_of(size_t store, int64_t slab_pages) const;
  Status add_slab(size_t store);
  Status add_slabs(std::span<const int64_t> counts);  // until there are so many spare pages
  bool give_back_slabs();                             // all that have no page in use; false: there was none
  Status copy_bytes(int store, std::byte* to, const std::byte* from) const;
  /// The memory of a store's pages; null: the host's.
  const KvPageMemory* memory_of(size_t store) const {
    return memories_.empty() ? nullptr : &memories_[store % groups_.size()];
  }

  std::vector<KvGroup> groups_;
  std::vector<GroupLayer> group_layers_;
  std::vector<KvPageMemory> memories_;  // of groups
  int64_t max_pages_ = 0;
  mutable std::mutex mutex_;
  mutable std::condition_variable freed_;
  uint64_t times_freed_ = 0;
  std::vector<Store> stores_;
};

}  // namespace lowbit
