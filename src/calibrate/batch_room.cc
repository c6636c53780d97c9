#include "calibrate/batch_room.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/try.h"

namespace lowbit {
namespace {

constexpr int64_t kFloat = sizeof(float);

}  // namespace

Result<std::unique_ptr<BatchRoom>> BatchRoom::make(Backend& backend,
                                                   std::span<const std::shared_ptr<const SourceBlock>> blocks,
                                                   int64_t context, int64_t sequences, const BatchSize& size) {
  std::unique_ptr<BatchRoom> room(new BatchRoom());
  room->backend_ = &backend;
  room->context_ = context;
  room->widths_.resize(kModelSlots);
  std::vector<Step> steps;
  for (const auto& block : blocks) {
    steps.insert(steps.end(), block->steps().begin(), block->steps().end());
    const auto widths = slot_widths(block->spec());
    for (size_t s = 0; s < widths.size(); ++s) room->widths_[s] = std::max(room->widths_[s], widths[s]);
  }
  int64_t row = room->widths_[kStream] + room->widths_[kGated];  // of slots, and of what products add and multiply
  for (const int64_t width : room->widths_) row += width;
  const int64_t affordable = std::max<int64_t>(16, std::min(size.rows, size.bytes / (row * kFloat)));
  room->rows_ = affordable >= context ? std::min(affordable / context, sequences) * context : affordable;
  LOWBIT_TRY_ASSIGN(room->work_, backend.workspace(steps, {room->widths_, room->rows_, context}));
  return room;
}

std::vector<RowRange> BatchRoom::batches(int64_t sequences) const {
  std::vector<RowRange> ranges;
  const int64_t span = rows_ >= context_ ? sequences * context_ : context_;  // that a batch does not pass
  for (int64_t begin = 0; begin < sequences * context_; begin += span)
    for (int64_t first = 0; first < span; first += rows_)
      ranges.push_back({begin + first, std::min(rows_, span - first)});
  return ranges;
}

Status BatchRoom::fit_caches(const AttentionSpec& a) {
  if (!caches_.empty() && group_.kv_heads == a.kv_heads && group_.head_dim == a.head_dim && group_.window == a.window)
    return {};
  caches_.clear();
  group_ = {.layers = {0}, .kv_heads = a.kv_heads, .head_dim = a.head_dim, .window = a.window};
  const int64_t count = std::max<int64_t>(1, rows_ / context_), pages = count * ceil_div(context_, kKvPage);
  KvGroup whole = group_;
  whole.window = 0;  // ranges reserve all of their rows at once: no page comes later
  LOWBIT_TRY_ASSIGN(const auto pool, backend_->kv_pool({whole}, pages, pages));
  caches_.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) caches_.emplace_back(pool, context_);
  return {};
}

Result<Batch> BatchRoom::begin(const SourceBlock& block, const RowRange& range, bool attends) {
  LOWBIT_TRY(fit_caches(block.block().attention));
  sequences_.clear();
  for (int64_t row = 0; row < range.rows;) {
    KvCache& cache = caches_[sequences_.size()];
    const int64_t position = (range.first + row) % context_, rows = std::min(context_ - position, range.rows - row);
    if (attends && position == 0) LOWBIT_TRY(cache.truncate(0));
    if (attends) LOWBIT_TRY(cache.reserve(rows));
    sequences_.push_back({&cache, position, row, rows});
    row += rows;
  }
  return Batch{{}, sequences_, {}};
}

void BatchRoom::end() {
  for (const SequenceRows& s : sequences_) s.cache->commit(s.rows);
}

}  // namespace lowbit
