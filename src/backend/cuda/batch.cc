#include "backend/cuda/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "kernels/cuda_api.h"

namespace lowbit {
namespace {

static_assert(CudaBatch::kPasses <= cuda::kMostLater);
constexpr int64_t kFewQueries = 16;  // of a kv head; more of them take less time in a tile of a prompt

int64_t first_seen(int64_t position, int64_t window) {
  return window == 0 ? 0 : std::max<int64_t>(0, position + 1 - window);
}

/// Whether some layers' pages are packed, or some are not.
bool has_layers(const KvPool& pool, bool packed) {
  return std::ranges::any_of(pool.groups(), [&](const KvGroup& g) { return g.format.packed() == packed; });
}

/// The first group whose pages are packed: all of them have one format, and what is true of one is true of all.
int packed_group(const KvPool& pool) {
  const auto is = [](const KvGroup& g) { return g.format.packed(); };
  return int(std::ranges::find_if(pool.groups(), is) - pool.groups().begin());
}

/// Whether a kernel knows the sizes of all packed pages: the one with the CPU's bits, or the fast one.
bool has_known_forms(const KvPool& pool, bool exact) {
  return std::ranges::all_of(pool.groups(), [exact](const KvGroup& g) {
    const KvFormat& f = g.format;
    if (!f.packed()) return true;
    if (f.fp8 || f.demote_after > 0) return false;
    return exact ? cuda::has_packed_form(f.key_bits, f.value_bits, g.head_dim)
                 : cuda::has_fast_packed(f.key_bits, f.value_bits, g.head_dim);
  });
}
/// Queries of a tile of packed pages: the fast kernel takes eight at once, the other one four.
int packed_queries(int64_t together, const KvPool& pool, bool exact) {
  const bool fast = !exact && has_known_forms(pool, false);
  return cuda::packed_tile_queries(together, !fast && has_known_forms(pool, true));
}

cuda::PackedPages packed_form(const KvFormat& format, const KvGroup& group, const Buffer& tables) {
  const PackedHeadBytes head = packed_head_bytes(format, group.head_dim);
  cuda::PackedPages pages;
  pages.tables = tables.as<uint64_t>();
  pages.key_bits = format.key_bits;
  pages.value_bits = format.value_bits;
  pages.fp8 = format.fp8;
  pages.behind = format.residual / kKvPage;
  pages.codes = head.codes();
  pages.key_codes = head.key_codes;
  pages.sides = head.sides();
  pages.key_side = head.key_side;
  pages.sides_at = packed_head(head, 0, int64_t(group.layers.size()) * group.kv_heads).key_side;
  return pages;
}

/// Layers lie at the same positions of the same pages.
Status check_same_form(const KvPool& a, const KvPool& b) {
  bool same = a.layers() == b.layers();
  for (int64_t layer = 0; same && layer < a.layers(); ++layer) {
    const KvPool::GroupLayer x = a.group_layer(layer), y = b.group_layer(layer);
    same = x.group == y.group && x.index == y.index && a.page_bytes(x.group) == b.page_bytes(y.group) &&
           a.group_of(layer).format == b.group_of(layer).format;
  }
  if (same) return {};
  return fail(ErrorCode::kInvalidArgument, "batch", "kv caches of different forms", "one form");
}

}  // namespace

Status DeviceLists::reserve(int64_t bytes, int64_t copies) {
  LOWBIT_TRY_ASSIGN(on_device_, cuda::allocate(bytes, "workspace"));
  LOWBIT_TRY_ASSIGN(host_, cuda::allocate_pinned(bytes * copies, "workspace"));
  return {};
}

Status DeviceLists::send(void* stream, int64_t bytes) {
  return cuda::upload_on(stream, on_device_.data(), host<std::byte>(0), bytes);
}

void CudaBatch::place(int64_t rows) {
  lists_.clear();
  pass_ = lists_.add<int32_t>(1);
  tokens_ = lists_.add<int32_t>(rows);
  wanted_ = lists_.add<int32_t>(rows);
  rows_ = lists_.add<cuda::BatchRow>(rows);
  sequences_ = lists_.add<cuda::BatchSequence>(rows);
  rules_ = lists_.add<TokenRule>(rows);
  for (TilesOf& t : tiles_) {
    t.few.at = lists_.add<cuda::QueryTile>(rows * ceil_div(t.share, 4) + rows);
    if (t.packed) continue;
    t.many.at = lists_.add<cuda::QueryTile>(rows * ceil_div(t.share, int64_t{cuda::kPromptQueries}) + rows);
  }
  logprobs_ = lists_.add<int32_t>(rows);
  row_changes_ = lists_.add<cuda::RowChanges>(rows);
}

Status CudaBatch::reserve(int64_t rows, int64_t context, std::span<const int64_t> shares) {
  most_rows_ = rows;
  most_pages_ = ceil_div(std::max<int64_t>(context, 1), kKvPage);
  for (const int64_t share : shares)
    for (const bool packed : {false, true}) tiles_.push_back({share, packed, {}, {}});
  place(std::max(rows, kFewRows));
  LOWBIT_TRY(changes_.reserve(rows));
  return lists_.reserve(lists_.used(), kPasses);
}

int64_t CudaBatch::bytes() const {
  int64_t total = lists_.bytes() + changes_.bytes();
  for (const Table& t : tables_) total += t.on_device.size();
  return total;
}

Status CudaBatch::set(const Batch& batch, int64_t pass, bool exact, void* stream) {
  exact_ = exact;
  lists_.use_copy(pass);
  of_ = batch.sequences;
  place(std::max(batch.rows(), kFewRows));
  std::ranges::copy(batch.tokens, lists_.host<int32_t>(tokens_));
  wanted_rows_ = 0;
  wanted_in_front_ = true;
  chooses_ = draws_ = wants_logits_ = wants_logprobs_ = false;
  for (const WantedRows& w : batch.wanted) {
    const TokenRule rule = w.choice != nullptr ? w.choice->rule : TokenRule{.temperature = -1};
    chooses_ |= w.choice != nullptr;
    wants_logits_ |= w.choice == nullptr;
    draws_ |= rule.temperature > 0;
    const bool likely = w.choice != nullptr && w.choice->logits != nullptr;
    wants_logprobs_ |= likely;
    for (int64_t row = w.row; row < w.row + w.rows; ++row) {
      wanted_in_front_ &= row == wanted_rows_;
      lists_.host<TokenRule>(rules_)[wanted_rows_] = rule;
      lists_.host<int32_t>(logprobs_)[wanted_rows_] = likely ? int32_t(w.choice->logits->count) : -1;
      lists_.host<int32_t>(wanted_)[wanted_rows_++] = int32_t(row);
    }
  }
  single_rows_ = true;
  auto* const rows = lists_.host<cuda::BatchRow>(rows_);
  auto* const sequences = lists_.host<cuda::BatchSequence>(sequences_);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceRows& s = batch.sequences[i];
    for (int64_t r = 0; r < s.rows; ++r) rows[s.row + r] = {int32_t(i), int32_t(s.position + r)};
    sequences[i] = {int32_t(s.row), int32_t(s.rows), int32_t(s.position),
                    int32_t(std::min<int64_t>(s.cache->most_packed(), INT32_MAX))};
    single_rows_ &= s.rows == 1;
  }
  for (TilesOf& t : tiles_) cut(batch.sequences, t);
  LOWBIT_TRY(send_pack_tasks(batch.sequences, stream));
  LOWBIT_TRY(changes_.set(batch.wanted, pass, lists_.host<cuda::RowChanges>(row_changes_), stream));
  *lists_.host<int32_t>(pass_) = pass == 0 ? -1 : int32_t(pass);
  list_bytes_ = changes_.any() ? lists_.used() : row_changes_;
  if (pass == 0) LOWBIT_TRY(lists_.send(stream, list_bytes_));  // others: feed_tokens(), each row has chosen
  return set_pages(batch.sequences, stream);
}

cuda::FeedTokens CudaBatch::lists_to_feed() const {
  cuda::FeedTokens feed;
  feed.pass = const_cast<int32_t*>(lists_.on_device<int32_t>(pass_));
  feed.tokens = const_cast<int32_t*>(tokens());
  feed.lists = const_cast<uint8_t*>(lists_.on_device<uint8_t>(0));
  feed.host_lists = reinterpret_cast<const uint8_t*>(lists_.host_copies());
  feed.bytes = list_bytes_;
  feed.lists_apart = lists_.copies_apart();
  return feed;
}

void CudaBatch::cut(std::span<const SequenceRows> sequences, TilesOf& to) {
  const bool packed = to.packed;
  to.few.count = to.many.count = 0;
  if (sequences.empty() || !has_layers(sequences.front().cache->pool(), packed)) return;
  const auto has_many = [&](const SequenceRows& s) { return !packed && s.rows > 1 && s.rows * to.share > kFewQueries; };
  int64_t together = 0;
  for (const SequenceRows& s : sequences)
    if (!has_many(s)) together = std::max(together, s.rows * to.share);
  to.few.queries = packed ? packed_queries(together, sequences.front().cache->pool(), exact_)
                          : cuda::attention_tile_queries(together);
  to.many.queries = cuda::kPromptQueries;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceRows& of = sequences[s];
    TileList& list = has_many(of) ? to.many : to.few;
    auto* const tiles = lists_.host<cuda::QueryTile>(list.at);
    for (int64_t first = 0, count = list.queries; first < of.rows * to.share; first += count) {
      tiles[list.count++] = {int32_t(s), int32_t(first)};
      if (packed) count = cuda::queries_of_packed_tile(of.position, of.rows, to.share, first, list.queries);
    }
  }
}

Status CudaBatch::send_pack_tasks(std::span<const SequenceRows> sequences, void* stream) {
  tasks_.clear();
  pack_count_ = 0;
  if (sequences.empty() || !has_layers(sequences.front().cache->pool(), true)) return {};
  const auto add = [&](const auto& count, const auto& wanted) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      const KvCache& cache = *sequences[s].cache;
      const int group = packed_group(cache.pool());
      const int64_t last = wanted(cache, group, sequences[s].position + sequences[s].rows - 1);
      for (int64_t page = count(cache, group) + 1; page <= last; ++page) tasks_.push_back({int32_t(s), int32_t(page)});
    }
  };
  add([](const KvCache& cache, int group) { return cache.packed_count(group); },
      [](const KvCache& cache, int group, int64_t position) { return cache.pages_read_packed(group, position); });
  pack_count_ = int64_t(tasks_.size());
  add([](const KvCache& cache, int group) { return cache.demoted_count(group); },
      [](const KvCache& cache, int group, int64_t position) {
        return cache.pool().groups()[size_t(group)].format.demoted_pages(position);
      });
  if (tasks_.empty()) return {};
  const auto bytes = int64_t(tasks_.size() * sizeof(cuda::PackTask));
  if (bytes > tasks_on_device_.size()) {
    LOWBIT_TRY_ASSIGN(tasks_on_device_, cuda::allocate(std::max(bytes, 2 * tasks_on_device_.size()), "page tables"));
  }
  return cuda::upload_on(stream, tasks_on_device_.data(), tasks_.data(), bytes);
}

Status CudaBatch::set_pages(std::span<const SequenceRows> sequences, void* stream) {
  if (tiles_.empty() || sequences.empty()) return {};  // no step asks for them
  const KvPool& form = sequences.front().cache->pool();
  const size_t groups = form.groups().size(), stores = has_layers(form, true) ? size_t(form.stores()) : groups;
  while (tables_.size() < stores) {
    Table table;
    LOWBIT_TRY_ASSIGN(table.on_device,
                      cuda::allocate(most_rows_ * most_pages_ * int64_t(sizeof(uint64_t)), "page tables"));
    LOWBIT_TRY(cuda::fill(table.on_device, 0));  // kernels load addresses of whole spans
    table.sent.resize(size_t(most_rows_ * most_pages_));
    tables_.push_back(std::move(table));
  }
  for (size_t s = 0; s < sequences.size(); ++s) {
    const KvCache& cache = *sequences[s].cache;
    if (&cache.pool() != &form) LOWBIT_TRY(check_same_form(cache.pool(), form));
    bool here = false;  // other groups may lie elsewhere, with blocks that run there
    for (size_t g = 0; g < groups; ++g) here |= cache.pool().device(int(g)) == Device::kCuda;
    if (!here)
      return fail(ErrorCode::kInvalidArgument, "kv cache", "pages in the host's memory", "pages of the model's GPU");
    for (size_t store = 0; store < stores; ++store)
      LOWBIT_TRY(send_table(tables_[store], s, cache.pages_in(int(store)), stream));
  }
  return {};
}

Status CudaBatch::send_table(Table& table, size_t sequence, std::span<const KvPool::Page> pages, void* stream) {
  if (int64_t(pages.size()) > most_pages_)
    return fail(ErrorCode::kInvalidArgument, "kv cache", fmt::format("{} pages", pages.size()),
                fmt::format("at most {}, a context", most_pages_));
  const size_t row = sequence * size_t(most_pages_);
  size_t same = 0;
  // Kernels load whole spans. What of them lies before a window nobody sees: any page that is there may stand for one
  // that has gone.
  const auto there = std::ranges::find_if(pages, [](const KvPool::Page& page) { return page.data != nullptr; });
  const auto* const instead = there == pages.end() ? nullptr : there->data;
  const auto address = [&](size_t p) {
    return reinterpret_cast<uint64_t>(pages[p].data != nullptr ? pages[p].data : instead);
  };
  while (same < pages.size() && table.sent[row + same] == address(same)) ++same;
  if (same == pages.size()) return {};
  uint64_t* const to = table.sent.data() + row;
  for (size_t p = same; p < pages.size(); ++p) to[p] = address(p);
  return cuda::upload_on(stream, table.on_device.as<uint64_t>() + row + same, to + same,
                         int64_t((pages.size() - same) * sizeof(uint64_t)));
}

CudaBatch::Tiles CudaBatch::list_of(int64_t share, bool packed, TileList TilesOf::*list) const {
  const auto it =
      std::ranges::find_if(tiles_, [&](const TilesOf& t) { return t.share == share && t.packed == packed; });
  const TileList& tiles = (*it).*list;
  return {lists_.on_device<cuda::QueryTile>(tiles.at), tiles.count, tiles.queries};
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
  const KvPool::GroupLayer in_group = pool.group_layer(layer);
  const KvGroup& group = pool.groups()[size_t(in_group.group)];
  return {tables_[size_t(in_group.group)].on_device.as<uint64_t>(), most_pages_, in_group.index, group.kv_heads,
          group.head_dim};
}

bool CudaBatch::is_packed(int64_t layer) const { return of_.front().cache->pool().group_of(layer).format.packed(); }

cuda::PackedKv CudaBatch::packed_pages(int64_t layer) const {
  const KvPool& pool = of_.front().cache->pool();
  const KvPool::GroupLayer in_group = pool.group_layer(layer);
  const KvGroup& group = pool.groups()[size_t(in_group.group)];
  cuda::PackedKv kv;
  kv.pages = pages(layer);
  kv.packed = packed_form(group.format, group, tables_[size_t(pool.packed_store(in_group.group))].on_device);
  if (group.format.demote_after > 0)
    kv.old = packed_form(group.format.demoted(), group, tables_[size_t(pool.demoted_store(in_group.group))].on_device);
  return kv;
}

}  // namespace lowbit
