#include "backend/cuda/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "kernels/cuda_api.h"

namespace lowbit {
namespace {

int64_t first_seen(int64_t position, int64_t window) {
  return window == 0 ? 0 : std::max<int64_t>(0, position + 1 - window);
}

/// Layers lie at the same places of the same pages.
Status check_same_form(const KvPool& a, const KvPool& b) {
  bool same = a.layers() == b.layers();
  for (int64_t layer = 0; same && layer < a.layers(); ++layer) {
    const KvPool::Place x = a.place(layer), y = b.place(layer);
    same = x.group == y.group && x.index == y.index && a.page_bytes(x.group) == b.page_bytes(y.group);
  }
  if (same) return {};
  return fail(ErrorCode::kInvalidArgument, "batch", "kv caches of different forms", "one form");
}

}  // namespace

template <class T>
Status DeviceList<T>::reserve(int64_t most) {
  LOWBIT_TRY_ASSIGN(on_device_, cuda::allocate(most * int64_t(sizeof(T)), "workspace"));
  host_.reserve(size_t(most));
  sent_.reserve(size_t(most));
  return {};
}

template <class T>
Status DeviceList<T>::send(void* stream) {
  const size_t bytes = host_.size() * sizeof(T);
  if (host_.size() == sent_.size() && (bytes == 0 || std::memcmp(host_.data(), sent_.data(), bytes) == 0)) return {};
  sent_.clear();
  LOWBIT_TRY(cuda::upload_on(stream, on_device_.data(), host_.data(), int64_t(bytes)));
  sent_ = host_;
  return {};
}

Status CudaBatch::reserve(int64_t rows, int64_t context, std::span<const int64_t> shares) {
  most_rows_ = rows;
  most_pages_ = ceil_div(std::max<int64_t>(context, 1), kKvPage);
  LOWBIT_TRY(tokens_.reserve(rows));
  LOWBIT_TRY(wanted_.reserve(rows));
  LOWBIT_TRY(rows_.reserve(rows));
  LOWBIT_TRY(sequences_.reserve(rows));
  for (const int64_t share : shares) {
    tiles_.push_back({share, 0, {}});
    LOWBIT_TRY(tiles_.back().tiles.reserve(rows * ceil_div(share, 16) + rows));
  }
  return {};
}

int64_t CudaBatch::bytes() const {
  int64_t total = tokens_.bytes() + wanted_.bytes() + rows_.bytes() + sequences_.bytes();
  for (const TilesOf& t : tiles_) total += t.tiles.bytes();
  for (const Table& t : tables_) total += t.on_device.size();
  return total;
}

Status CudaBatch::set(const Batch& batch, void* stream) {
  of_ = batch.sequences;
  tokens_.host().assign(batch.tokens.begin(), batch.tokens.end());
  wanted_.host().clear();
  wanted_in_front_ = true;
  for (const WantedRows& w : batch.wanted)
    for (int64_t row = w.row; row < w.row + w.rows; ++row) {
      wanted_in_front_ &= row == wanted_.size();
      wanted_.host().push_back(int32_t(row));
    }
  rows_.host().clear();
  sequences_.host().clear();
  for (const SequenceRows& s : batch.sequences) {
    for (int64_t r = 0; r < s.rows; ++r) rows_.host().push_back({int32_t(sequences_.size()), int32_t(s.position + r)});
    sequences_.host().push_back({int32_t(s.row), int32_t(s.rows), int32_t(s.position)});
  }
  LOWBIT_TRY(tokens_.send(stream));
  LOWBIT_TRY(wanted_.send(stream));
  LOWBIT_TRY(rows_.send(stream));
  LOWBIT_TRY(sequences_.send(stream));
  for (TilesOf& t : tiles_) {
    cut(batch.sequences, t);
    LOWBIT_TRY(t.tiles.send(stream));
  }
  return set_pages(batch.sequences, stream);
}

void CudaBatch::cut(std::span<const SequenceRows> sequences, TilesOf& to) const {
  int64_t together = 0;
  for (const SequenceRows& s : sequences) together = std::max(together, s.rows * to.share);
  to.queries = cuda::attention_tile_queries(together);
  to.tiles.host().clear();
  for (size_t s = 0; s < sequences.size(); ++s)
    for (int64_t first = 0; first < sequences[s].rows * to.share; first += to.queries)
      to.tiles.host().push_back({int32_t(s), int32_t(first)});
}

Status CudaBatch::set_pages(std::span<const SequenceRows> sequences, void* stream) {
  if (tiles_.empty() || sequences.empty()) return {};  // no step asks for them
  const KvPool& form = sequences.front().cache->pool();
  while (tables_.size() < form.groups().size()) {
    Table table;
    LOWBIT_TRY_ASSIGN(table.on_device,
                      cuda::allocate(most_rows_ * most_pages_ * int64_t(sizeof(uint64_t)), "page tables"));
    table.sent.resize(size_t(most_rows_ * most_pages_));
    tables_.push_back(std::move(table));
  }
  for (size_t s = 0; s < sequences.size(); ++s) {
    const KvCache& cache = *sequences[s].cache;
    if (&cache.pool() != &form) LOWBIT_TRY(check_same_form(cache.pool(), form));
    if (cache.pool().device() != Device::kCuda)
      return fail(ErrorCode::kInvalidArgument, "kv cache", "pages in the host's memory", "pages of the model's GPU");
    for (size_t g = 0; g < form.groups().size(); ++g) {
      const auto pages = cache.pages_of(int(g));
      if (int64_t(pages.size()) > most_pages_)
        return fail(ErrorCode::kInvalidArgument, "kv cache", fmt::format("{} pages", pages.size()),
                    fmt::format("at most {}, a context", most_pages_));
      const size_t row = s * size_t(most_pages_);
      size_t same = 0;
      const auto address = [&](size_t p) { return reinterpret_cast<uint64_t>(pages[p].data); };
      while (same < pages.size() && tables_[g].sent[row + same] == address(same)) ++same;
      if (same == pages.size()) continue;
      uint64_t* const to = tables_[g].sent.data() + row;
      for (size_t p = same; p < pages.size(); ++p) to[p] = address(p);
      LOWBIT_TRY(cuda::upload_on(stream, tables_[g].on_device.as<uint64_t>() + row + same, to + same,
                                 int64_t((pages.size() - same) * sizeof(uint64_t))));
    }
  }
  return {};
}

CudaBatch::Tiles CudaBatch::tiles(int64_t share) const {
  const auto it = std::ranges::find_if(tiles_, [&](const TilesOf& t) { return t.share == share; });
  return {it->tiles.data(), it->tiles.size(), it->queries};
}

int64_t CudaBatch::most_spans(int64_t window) const {
  int64_t most = 0;
  for (const SequenceRows& s : of_)
    most = std::max(most,
                    (s.position + s.rows - 1) / kAttentionSpan + 1 - first_seen(s.position, window) / kAttentionSpan);
  return most;
}

cuda::PagedKv CudaBatch::pages(int64_t layer) const {
  const KvPool& pool = of_.front().cache->pool();
  const KvPool::Place place = pool.place(layer);
  const KvGroup& group = pool.groups()[size_t(place.group)];
  return {tables_[size_t(place.group)].on_device.as<uint64_t>(), most_pages_, place.index, group.kv_heads,
          group.head_dim};
}

}  // namespace lowbit
