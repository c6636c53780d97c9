#pragma once
// Keys and values of one sequence, in pages of 64 positions taken from a pool that sequences share.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/threads.h"
#include "kernels/api.h"
#include "lowbit/error.h"
#include "ops/kv_pool.h"

namespace lowbit {

/// The page tables of one sequence, one per group of layers. Appending goes in three steps, because each layer writes at
/// another time: reserve(n), then store() for every layer, then commit(n). One call at a time; sequences that share pages may be
/// used from different threads.
class KvCache {
 public:
  /// `capacity`: the most positions this sequence may hold.
  KvCache(std::shared_ptr<KvPool> pool, int64_t capacity);
  ~KvCache();
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&& other) noexcept;

  /// A pool of its own, for one sequence.
  static Result<KvCache> make(std::vector<KvGroup> groups, int64_t capacity);
  /// The same positions in a sequence of its own: pages are shared until one of the two writes to them.
  KvCache fork() const;

  const KvPool& pool() const { return *pool_; }
  const KvGroup& group_of(int64_t layer) const { return pool_->group_of(layer); }
  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  int64_t bytes() const;  // of its pages, shared ones included

  /// Makes room for positions [length, length + n), on pages that nobody else has. Errors: kInvalidArgument (beyond the capacity),
  /// kOutOfMemory, what a device says. After an error the cache is as it was.
  Status reserve(int64_t n);
  /// Rounds rows of reserved positions [position, position + n) to f16, in pages of the host's memory. Shapes: k, v [n, kv_heads *
  /// head_dim], row stride ld.
  void store(const VectorOps& ops, int64_t layer, int64_t position, int64_t n, const float* k, const float* v,
             int64_t ld, ThreadPool& pool);
  /// The same for one head of one position: k, v [head_dim].
  void store_head(const VectorOps& ops, int64_t layer, int64_t head, int64_t position, const float* k, const float* v);
  void commit(int64_t n) { length_ += n; }
  /// Forgets positions [length, ...) and gives their pages back. Errors: kInvalidArgument (not in
  /// [0, length()]).
  Status truncate(int64_t length);
  void clear();

  /// One head of a page: element i of the key at position t of it lies at keys + i * kKvPage + t, that of the value at
  /// values + t * head_dim + i. Only for kF16 pages.
  const uint16_t* keys_f16(int64_t layer, int64_t head, int64_t page) const { return rows(layer, 0, head, page); }
  const uint16_t* values_f16(int64_t layer, int64_t head, int64_t page) const { return rows(layer, 1, head, page); }
  KvFormat page_format(int64_t layer) const { return group_of(layer).format; }
  /// Of a group of the pool, in the order of positions.
  std::span<const KvPool::Page> pages_of(int group) const { return tables_[static_cast<size_t>(group)]; }

 private:
  uint16_t* rows(int64_t layer, int64_t which, int64_t head, int64_t page) const;
  void drop_pages(int64_t count);
  /// Puts the last page of the group in the place of page `index`, which has other owners, and what that holds in it.
  Status own_page(size_t group, int64_t index);
  int64_t pages() const { return tables_.empty() ? 0 : static_cast<int64_t>(tables_[0].size()); }

  std::shared_ptr<KvPool> pool_;
  int64_t capacity_ = 0, length_ = 0;
  std::vector<std::vector<KvPool::Page>> tables_;  // [group][page]
  std::vector<int64_t> wanted_;                    // [group], of reserve()
};

/// Consecutive rows of a batch that continue one sequence: rows [row, row + rows) are its positions [position, position + rows).
struct SequenceRows {
  KvCache* cache = nullptr;
  int64_t position = 0, row = 0, rows = 0;
};

}  // namespace lowbit
