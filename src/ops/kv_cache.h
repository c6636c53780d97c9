#pragma once
// Keys and values of one sequence, in pages of 64 positions taken from a pool that sequences share.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/threads.h"
#include "kernels/api.h"
#include "kernels/packed_kv.h"
#include "lowbit/error.h"
#include "ops/kv_pool.h"

namespace lowbit {

/// Rows whose f16 pages reserve() takes in advance where they will be packed.
inline constexpr int64_t kOpenRows = 512;

/// Which pages a sequence holds, for a file.
struct KvImage {
  struct Group {
    std::vector<int64_t> f16;  // those that are there, ascending
    int64_t packed = 0;        // pages 1 to this one
    int64_t packed_gone = 0;   // but for pages 1 to this one
    int64_t demoted = 0;       // pages 1 to this one
    int64_t packed_there() const { return packed - packed_gone; }
  };
  int64_t length = 0;
  int64_t refreshed = 0;  // positions before this one have been computed once more
  std::vector<Group> groups;
};

/// The page tables of one sequence, one per group of layers. Appending goes in steps, because each layer writes at
/// another time: reserve(n) for a whole call; then for each part of it open(rows), for every layer store() and pack(),
/// and commit(rows). One call at a time; sequences that share pages may be used from different threads. Packed groups
/// (KvFormat): a page is packed when a row is computed that reads it so, from its f16 page, and never changes after.
/// Its f16 page goes once nobody reads it and truncate() to the last kKeptPositions, or to where the call began, needs
/// it no more. So do pages of f16 groups with a window that lie before it.
///
/// Demoted pages (KvFormat::demote_after) come from packed ones, which go likewise. With KvFormat::refresh = N the
/// positions [bN, (b+1)N) are computed once more before position (b+1)N is: in refreshing(), where they read each other
/// as f16, and what lies before as they did. What that gives takes the place of the first pages.
///
/// Where the format forgets(), truncate() reaches back as far, but not before the last refresh, nor to where a call of
/// more than kKeptPositions began: see copy_before().
class KvCache {
 public:
  /// `capacity`: the most positions this sequence may hold.
  KvCache(std::shared_ptr<KvPool> pool, int64_t capacity);
  ~KvCache();
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&& other) noexcept;

  /// A pool of its own, for one sequence.
  static Result<KvCache> make(std::vector<KvGroup> groups, int64_t capacity);
  /// A second sequence with the same positions: pages are shared until one of the two writes to them.
  KvCache fork() const;
  /// A sequence without positions that has this one's packed pages of positions before `length` in advance, unless the
  /// format forgets(): for those who compute the same tokens again, which packs the same. This one stays as it is.
  KvCache restarted(int64_t length) const;
  KvImage image() const;
  /// A sequence with those pages, whose bytes are for the caller to write, then set_recent(). Errors: kCorrupt (pages
  /// that no sequence of this length has, or cannot lack), kInvalidArgument (beyond the capacity), kOutOfMemory.
  static Result<KvCache> from_image(std::shared_ptr<KvPool> pool, int64_t capacity, const KvImage& image);
  /// A page of a store, by where its positions begin: 64 page; to and from the host's memory [page_bytes(store)]. What
  /// an f16 page holds behind the sequence is read as zeros. Errors: what a device says.
  Status read_page(int store, int64_t page, std::byte* to) const;
  Status write_page(int store, int64_t page, const std::byte* from);

  const KvPool& pool() const { return *pool_; }
  const KvGroup& group_of(int64_t layer) const { return pool_->group_of(layer); }
  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  int64_t bytes() const;  // of its pages, shared ones included

  /// Makes room for positions [length, length + n), on pages that nobody else has; of f16 pages that will go again for
  /// the first kOpenRows of them. Errors: kInvalidArgument (beyond the capacity), kOutOfMemory, what a device says.
  /// After an error the cache is as it was.
  Status reserve(int64_t n);
  /// Room for the next `rows` of what is reserved, in f16 pages too. Errors: as reserve().
  Status open(int64_t rows);
  /// Rounds rows of reserved positions [position, position + n) to f16, in pages of the host's memory. Shapes: k, v [n,
  /// kv_heads * head_dim], row stride ld.
  void store(const VectorOps& ops, int64_t layer, int64_t position, int64_t n, const float* k, const float* v,
             int64_t ld, ThreadPool& pool);
  /// store() for one head of one position: k, v [head_dim].
  void store_head(const VectorOps& ops, int64_t layer, int64_t head, int64_t position, const float* k, const float* v);
  /// Packs what rows [length(), length() + rows) of a layer read packed and what is not packed yet; those rows are
  /// stored.
  void pack(int64_t layer, int64_t rows, ThreadPool& pool);
  /// `tokens`: of those positions; with KvFormat::refresh all of them.
  void commit(int64_t n, std::span<const int32_t> tokens = {});
  /// How many positions may be computed before the next refresh; 0: now.
  int64_t rows_before_refresh() const;
  /// The sequence up to where the last refresh ended, which computes recent() once more. Pages are shared.
  KvCache refreshing() const;
  bool is_refreshing() const { return most_packed_ < kAllPages; }
  /// The tokens of positions [refreshed, length()).
  std::span<const int32_t> recent() const { return recent_; }
  /// The last tokens of the sequence, for one that a file restores.
  void set_recent(std::span<const int32_t> tokens);
  /// Takes the place of the sequence that it came from, once it has computed all of recent().
  void finish_refresh();
  /// A fork to go back to when a call of n rows fails, where truncate() to length() would fail then.
  std::optional<KvCache> copy_before(int64_t n) const;
  /// Goes back to the state at `length` before a call: by truncate(), or by the copy of copy_before().
  Status go_back(int64_t length, std::optional<KvCache>& copy);
  /// Whether the f16 pages are there that a row at position `length` reads. Always for 0, for the last
  /// kKeptPositions that it ever had, and for the length that a call began with.
  bool can_truncate(int64_t length) const;
  /// Forgets positions [length, ...) and gives their pages back: as if they had never been. Errors: kInvalidArgument
  /// (not in [0, length()]), kUnsupported (not can_truncate(): the tokens before have to be computed again).
  Status truncate(int64_t length);
  void clear();

  /// One head of a page: element i of the key at position t of it lies at keys + i * kKvPage + t, that of the value at
  /// values + t * head_dim + i. Only for kF16 pages.
  const uint16_t* keys_f16(int64_t layer, int64_t head, int64_t page) const { return rows(layer, 0, head, page); }
  const uint16_t* values_f16(int64_t layer, int64_t head, int64_t page) const { return rows(layer, 1, head, page); }
  /// Whether an f16 page is there: it goes when it is packed, or lies before the window.
  bool holds_f16(int64_t layer, int64_t page) const {
    return tables_[static_cast<size_t>(pool_->group_layer(layer).group)][static_cast<size_t>(page)].data != nullptr;
  }
  /// Whether a query at this position reads the page packed.
  bool reads_packed(int64_t layer, int64_t page, int64_t position) const {
    return page > 0 && page <= std::min(group_of(layer).format.packed_pages(position), most_packed_);
  }
  /// Whether it reads it demoted; then it also reads it packed.
  bool reads_demoted(int64_t layer, int64_t page, int64_t position) const {
    return page > 0 && page <= group_of(layer).format.demoted_pages(position);
  }
  /// One head of a packed or demoted page; values by blocks of elements (SpanArgs).
  PackedMatrix packed_keys(int64_t layer, int64_t head, int64_t page, bool demoted = false) const {
    return packed(layer, 0, head, page, demoted);
  }
  PackedMatrix packed_values(int64_t layer, int64_t head, int64_t page, bool demoted = false) const {
    return packed(layer, 1, head, page, demoted);
  }
  /// The f16 pages of a group of the pool, in the order of positions. Pages that have gone have no data.
  std::span<const KvPool::Page> pages_of(int group) const { return tables_[static_cast<size_t>(group)]; }
  /// The packed pages, that of page 1 first, with room for those that the reserved rows read.
  std::span<const KvPool::Page> packed_pages_of(int group) const { return tables_[packed_store(size_t(group))]; }
  /// The pages of any store of the pool.
  std::span<const KvPool::Page> pages_in(int store) const { return tables_[static_cast<size_t>(store)]; }
  /// How many of the packed and of the demoted pages, from the first on, are written.
  int64_t packed_count(int group) const { return packed_[static_cast<size_t>(group)]; }
  int64_t demoted_count(int group) const { return demoted_[static_cast<size_t>(group)]; }
  /// Pages, from page 1 on, that a row at `position` reads packed; those behind most_packed() it never does.
  int64_t pages_read_packed(int group, int64_t position) const { return packed_pages(size_t(group), position); }
  int64_t most_packed() const { return most_packed_; }

 private:
  uint16_t* rows(int64_t layer, int64_t which, int64_t head, int64_t page) const;
  PackedMatrix packed(int64_t layer, int64_t which, int64_t head, int64_t page, bool demoted) const;
  /// The first `count` pages of a store also belong to `with`.
  void share(size_t store, int64_t count, KvCache& with) const;
  void pack_head(int64_t layer, int64_t head, int64_t page);
  void demote_head(int64_t layer, int64_t head, int64_t page);
  /// Room for f16 rows up to `f16_end`, or in groups that are never packed up to `end`, and for what rows before `end`
  /// read packed.
  Status grow(int64_t f16_end, int64_t end);
  /// Gives back what lies behind the first `sizes[s]` pages of store s.
  void drop_pages(std::span<const int64_t> sizes);
  void drop_last(size_t store);
  /// Puts the last page of the group in the place of page `index`, which has other owners, and what that holds in it.
  Status own_page(size_t group, int64_t index);
  /// Gives back pages that nothing needs any more: f16 ones, and packed ones.
  void release(size_t group);
  void release_packed(size_t group);
  /// Whether rows from position length() on find what they read.
  bool is_complete() const;
  const KvPool::Page& page_at(int store, int64_t page) const;
  const KvFormat& format(size_t group) const { return pool_->groups()[group].format; }
  /// The window of an f16 group; 0: all positions are seen.
  int64_t window(size_t group) const { return format(group).packed() ? 0 : pool_->groups()[group].window; }
  /// Whether f16 pages of the group go, and come as rows need them.
  bool gives_back(size_t group) const { return format(group).packed() || window(group) > 0; }
  /// Pages, from page 1 on, that a row at `position` reads packed.
  int64_t packed_pages(size_t group, int64_t position) const {
    return std::min(format(group).packed_pages(position), most_packed_);
  }
  /// The first page behind those that go which rows from `position` on read as f16.
  int64_t first_f16(size_t group, int64_t position) const {
    return std::min(pool_->groups()[group].first_f16(position), most_packed_ + 1);
  }
  /// The first position whose row may come again, and so what it reads.
  int64_t first_row() const {
    const int64_t first = length_ - kKeptPositions;
    return pool_->refresh() > 0 ? std::min(first, refreshed_) : first;
  }
  size_t packed_store(size_t group) const { return size_t(pool_->packed_store(int(group))); }
  size_t demoted_store(size_t group) const { return size_t(pool_->demoted_store(int(group))); }

  std::shared_ptr<KvPool> pool_;
  int64_t capacity_ = 0, length_ = 0;
  int64_t start_ = 0;                              // of the call that reserved last
  std::vector<std::vector<KvPool::Page>> tables_;  // [store][page], of a packed or demoted store from page 1 on
  std::vector<int64_t> packed_, demoted_;          // [group]: pages of those stores that have been written
  std::vector<int64_t> packed_gone_;               // [group]: pages 1 to this one are no longer held packed
  std::vector<int64_t> gone_;                      // [group]: from first_f16(0) to before this one no f16 page is held
  std::vector<int64_t> wanted_, sizes_;            // [store], of grow()
  // State of a format with refresh.
  static constexpr int64_t kAllPages = int64_t{1} << 40;
  int64_t refreshed_ = 0;
  int64_t most_packed_ = kAllPages;  // while it is_refreshing(): pages behind this one are not packed
  std::vector<int32_t> recent_;      // tokens of [refreshed_, length_)
};

/// A sequence that runs on the model's own weights. No adapters exist yet; every batch has a place for their ids.
inline constexpr int32_t kNoAdapter = 0;

/// Consecutive rows of a batch that continue one sequence: rows [row, row + rows) are its positions [position, position
/// + rows).
struct SequenceRows {
  KvCache* cache = nullptr;
  int64_t position = 0, row = 0, rows = 0;
  int32_t adapter = kNoAdapter;  // whose weights these rows get beside the model's
};

}  // namespace lowbit
