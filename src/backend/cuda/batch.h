#pragma once
// What kernels know of a batch: where each row belongs, and where the pages of its sequence are.

#include <span>
#include <vector>

#include "backend/step.h"
#include "kernels/cuda_step_api.h"
#include "tensor/buffer.h"

namespace lowbit {

/// A list that lies on the device at one address, and is sent when it has changed.
template <class T>
class DeviceList {
 public:
  Status reserve(int64_t most);
  std::vector<T>& host() { return host_; }
  Status send(void* stream);
  const T* data() const { return on_device_.as<T>(); }
  int64_t size() const { return static_cast<int64_t>(host_.size()); }
  int64_t bytes() const { return on_device_.size(); }

 private:
  Buffer on_device_;
  std::vector<T> host_, sent_;
};

class CudaBatch {
 public:
  /// `shares`: numbers of heads that share a kv head, each once.
  Status reserve(int64_t rows, int64_t context, std::span<const int64_t> shares);
  int64_t bytes() const;
  /// Sends what differs from the batch before. Errors: kInvalidArgument (pages in the host's memory, more of them than
  /// a context, caches of different forms), kOutOfMemory, what CUDA says.
  Status set(const Batch& batch, void* stream);

  const int32_t* tokens() const { return tokens_.data(); }
  const int32_t* wanted() const { return wanted_.data(); }
  int64_t wanted_rows() const { return wanted_.size(); }
  /// They are the first rows of the batch, in their order.
  bool wanted_in_front() const { return wanted_in_front_; }
  const cuda::BatchRow* rows() const { return rows_.data(); }
  const cuda::BatchSequence* sequences() const { return sequences_.data(); }
  struct Tiles {
    const cuda::QueryTile* tiles = nullptr;
    int64_t count = 0;
    int queries = 0;
  };
  Tiles tiles(int64_t share) const;
  /// The most spans that a sequence's rows see.
  int64_t most_spans(int64_t window) const;
  cuda::PagedKv pages(int64_t layer) const;

 private:
  struct TilesOf {
    int64_t share = 0;
    int queries = 0;
    DeviceList<cuda::QueryTile> tiles;
  };
  /// Addresses of pages of one group of layers: [sequences, most_pages_].
  struct Table {
    Buffer on_device;
    std::vector<uint64_t> sent;
  };
  Status set_pages(std::span<const SequenceRows> sequences, void* stream);
  void cut(std::span<const SequenceRows> sequences, TilesOf& to) const;

  int64_t most_rows_ = 0, most_pages_ = 0;
  DeviceList<int32_t> tokens_, wanted_;
  DeviceList<cuda::BatchRow> rows_;
  DeviceList<cuda::BatchSequence> sequences_;
  std::vector<TilesOf> tiles_;
  std::vector<Table> tables_;  // by group
  bool wanted_in_front_ = false;
  std::span<const SequenceRows> of_;  // the batch that was set
};

}  // namespace lowbit
