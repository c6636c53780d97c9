#pragma once
// Keys and values of one sequence, in pages of 64 positions taken from a pool that sequences share.

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/threads.h"
#include "kernels/api.h"
#include "lowbit/error.h"
#include "tensor/buffer.h"

namespace lowbit {

/// How keys and values lie in a page. Quantized pages join here: a page carries its own tag, so that a full page may be re-coded
/// while the newest stay as they are.
enum class KvFormat : uint8_t {
  kF16,  // [layer][key, value][kv head], keys [head_dim][position], values [position][head_dim], binary16
};

struct KvShape {
  int64_t layers = 0, kv_heads = 0, head_dim = 0;
  int64_t row_elems() const { return kv_heads * head_dim; }  // one position of one layer, keys or values
};

struct KvPage {
  KvFormat format = KvFormat::kF16;
  Buffer data;
};

/// Hands out pages and takes them back. Address space for all of them is taken at once, so that decoding never allocates;
/// the system gives memory to a page when it is first written, so that an unused context costs nothing. Thread safe.
class KvPool {
 public:
  /// Errors: kInvalidArgument (an extent below 1, or pages that would not fit in memory's address
  /// range), kOutOfMemory.
  static Result<std::shared_ptr<KvPool>> make(const KvShape& shape, int64_t max_pages);

  const KvShape& shape() const { return shape_; }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t max_pages() const { return max_pages_; }
  int64_t pages_in_use() const;
  int64_t allocated_bytes() const;  // of pages that have been in use

  /// Errors: kOutOfMemory (all `max_pages` are in use).
  Result<std::unique_ptr<KvPage>> take();
  void give_back(std::unique_ptr<KvPage> page);

 private:
  KvPool(const KvShape& shape, int64_t max_pages, int64_t page_bytes)
      : shape_(shape), max_pages_(max_pages), page_bytes_(page_bytes) {}

  const KvShape shape_;
  const int64_t max_pages_, page_bytes_;
  mutable std::mutex mutex_;
  int64_t in_use_ = 0, most_in_use_ = 0;
  std::vector<std::unique_ptr<KvPage>> spare_;
};

/// The page table of one sequence. Appending goes in three steps, because each layer writes at
/// another time: reserve(n), then store() for every layer, then commit(n).
class KvCache {
 public:
  /// `capacity`: the most positions this sequence may hold.
  KvCache(std::shared_ptr<KvPool> pool, int64_t capacity);
  ~KvCache();
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&&) = delete;

  /// A pool of its own, for one sequence.
  static Result<KvCache> make(const KvShape& shape, int64_t capacity);

  const KvShape& shape() const { return pool_->shape(); }
  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  int64_t bytes() const { return int64_t(pages_.size()) * pool_->page_bytes(); }

  /// Makes room for positions [length, length + n). Errors: kInvalidArgument (beyond the capacity),
  /// kOutOfMemory. After an error the cache is as it was.
  Status reserve(int64_t n);
  /// Rounds rows of reserved positions [position, position + n) to f16. Shapes: k, v [n, kv_heads *
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
  KvFormat page_format(int64_t page) const { return pages_[static_cast<size_t>(page)]->format; }

 private:
  uint16_t* rows(int64_t layer, int64_t which, int64_t head, int64_t page) const;

  std::shared_ptr<KvPool> pool_;
  int64_t capacity_ = 0, length_ = 0;
  std::vector<std::unique_ptr<KvPage>> pages_;
};

}  // namespace lowbit
