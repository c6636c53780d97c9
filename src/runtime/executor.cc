#include "runtime/executor.h"

#include <algorithm>
#include <string>

#include "base/try.h"
#include "runtime/scheduler.h"

namespace lowbit {

Executor::Request Executor::request_of(const SequenceRequest& from, Call& call) {
  const auto [first, last] = from.wanted.rows_of(int64_t(from.tokens.size()));
  ++call.left;
  return {&call,
          from.tokens,
          from.cache,
          first,
          last - first,
          from.wanted.choices.empty() ? from.logits.data() : nullptr,
          from.observer,
          from.wanted.sink,
          0,
          from.wanted.choices,
          from.adapter,
          {},
          {}};
}

int64_t Executor::positions_of(const SequenceRequest& r) {
  return int64_t(r.tokens.size()) + std::max<int64_t>(int64_t(r.wanted.choices.size()) - 1, 0);
}

Status Executor::forward(std::span<const int32_t> tokens, KvCache& cache, LogitsWanted wanted, std::span<float> logits,
                         RowObserver* observer) {
  LOWBIT_TRY(model_.check(tokens, cache, wanted, logits));
  const int64_t start = cache.length();
  const SequenceRequest request{tokens, &cache, wanted, logits, observer};
  std::optional<KvCache> before = cache.copy_before(positions_of(request));
  LOWBIT_TRY(cache.reserve(positions_of(request)));
  Call call;
  Request own = request_of(request, call);
  run(call, {&own, 1});
  if (!call.status) LOWBIT_TRY(cache.go_back(start, before));
  return call.status;
}

Status Executor::forward(std::span<const SequenceRequest> requests) {
  std::vector<const KvCache*> caches;
  for (const SequenceRequest& r : requests) {
    LOWBIT_TRY(model_.check(r.tokens, *r.cache, r.wanted, r.logits));
    if (r.adapter != kNoAdapter)
      return fail(ErrorCode::kUnsupported, "forward", "adapter " + std::to_string(r.adapter),
                  "none: the model's own weights");
    caches.push_back(r.cache);
  }
  std::ranges::sort(caches);
  if (std::ranges::adjacent_find(caches) != caches.end())
    return fail(ErrorCode::kInvalidArgument, "forward", "one kv cache for two sequences", "one for each");
  if (requests.empty()) return {};
  std::vector<int64_t> starts;
  std::vector<std::optional<KvCache>> before;
  Call call;
  std::vector<Request> own;
  for (const SequenceRequest& r : requests) {
    starts.push_back(r.cache->length());
    before.push_back(r.cache->copy_before(positions_of(r)));
    call.status = r.cache->reserve(positions_of(r));
    if (!call.status) break;
    own.push_back(request_of(r, call));
  }
  if (call.status) run(call, own);
  if (call.status) return {};
  for (size_t i = 0; i < starts.size(); ++i) LOWBIT_TRY(requests[i].cache->go_back(starts[i], before[i]));
  return call.status;
}

void Executor::run(Call& call, std::span<Request> requests) {
  std::unique_lock lock(mutex_);
  for (Request& r : requests) waiting_.push_back(&r);
  if (busy_) call.changed.wait(lock, [&] { return call.left == 0 || call.leads; });
  if (call.left > 0) lead(call, lock);
}

void Executor::lead(Call& own, std::unique_lock<std::mutex>& lock) {
  busy_ = true;
  while (own.left > 0) run_batch(lock);
  busy_ = !waiting_.empty();
  if (!busy_) return;
  Call& next = *waiting_.front()->call;
  next.leads = true;
  next.changed.notify_one();
}

void Executor::run_batch(std::unique_lock<std::mutex>& lock) {
  chosen_.assign(waiting_.begin(), waiting_.end());
  left_.clear();
  for (Request* r : chosen_) left_.push_back(next_rows(*r));
  rows_.resize(left_.size());
  share_rows(left_, model_.batch(), rows_);
  passes_ = passes();
  lock.unlock();
  open_parts();
  const Status status = batch_.empty() ? Status{} : model_.run(batch_, passes_);
  lock.lock();
  size_t part = 0;
  for (size_t i = 0; i < chosen_.size(); ++i) {
    if (!opened_[i]) advance(*chosen_[i], {}, opened_[i]);
    if (opened_[i] && rows_[i] > 0) advance(*chosen_[i], batch_[part++], status);
  }
}

int64_t Executor::next_rows(Request& request) {
  if (!request.again && request.cache->rows_before_refresh() == 0) {
    request.again.emplace(request.cache->refreshing());
    const auto recent = request.cache->recent();
    request.again_tokens.assign(recent.begin(), recent.end());
  }
  if (request.again) return int64_t(request.again_tokens.size() - request.again->recent().size());
  return std::min(int64_t(request.tokens.size()), request.cache->rows_before_refresh());
}

int64_t Executor::passes() const {
  int64_t most = model_.passes_at_once();
  for (size_t i = 0; i < chosen_.size(); ++i) {
    const bool generates = chosen_[i]->call == chosen_.front()->call && left_[i] == 1 && rows_[i] == 1;
    most = generates ? std::min(most, int64_t(chosen_[i]->choices.size())) : 1;
  }
  return std::max<int64_t>(most, 1);
}

void Executor::open_parts() {
  batch_.clear();
  opened_.assign(chosen_.size(), Status{});
  for (size_t i = 0; i < chosen_.size(); ++i) {
    Request& r = *chosen_[i];
    if (rows_[i] == 0) continue;
    KvCache& cache = r.again ? *r.again : *r.cache;
    opened_[i] = cache.open(rows_[i] + passes_ - 1);
    if (!opened_[i]) continue;
    if (r.again) {
      const std::span<const int32_t> tokens(r.again_tokens);
      batch_.push_back(
          {.tokens = tokens.subspan(cache.recent().size(), size_t(rows_[i])), .cache = &cache, .adapter = r.adapter});
      continue;
    }
    const int64_t first = std::min(r.first, rows_[i]), last = std::min(r.first + r.count, rows_[i]);
    batch_.push_back({r.tokens.first(size_t(rows_[i])), r.cache, first, last - first, r.logits, r.observer, r.sink,
                      r.sink_row, r.choices.data(), r.adapter});
  }
}

bool Executor::goes_on(Request& request, const BatchPart& part) const {
  if (part.choice == nullptr || part.count == 0) return false;
  const auto made = request.choices.first(size_t(passes_));
  request.choices = request.choices.subspan(made.size());
  const bool chosen = std::ranges::all_of(made, [](const TokenChoice& c) { return c.token >= 0; });
  if (request.choices.empty() || !chosen) return false;
  request.tokens = {&made.back().token, 1};
  request.first = 0;
  request.count = 1;
  return true;
}

void Executor::advance(Request& request, const BatchPart& part, const Status& status) {
  if (!status) return finish(request, status);
  if (request.again) {
    if (request.again->recent().size() < request.again_tokens.size()) return;
    request.again->finish_refresh();
    *request.cache = std::move(*request.again);
    request.again.reset();
    return;
  }
  const auto rows = int64_t(part.tokens.size());
  request.tokens = request.tokens.subspan(part.tokens.size());
  request.first = std::max<int64_t>(request.first - rows, 0);
  request.count -= part.count;
  request.sink_row += part.count;
  if (request.logits != nullptr) request.logits += part.count * model_.spec().vocab_size;
  if (!request.tokens.empty() || goes_on(request, part)) return;
  finish(request, status);
}

void Executor::finish(Request& request, const Status& status) {
  Call& call = *request.call;
  if (!status) call.status = status;
  std::erase(waiting_, &request);
  if (--call.left > 0) return;
  call.changed.notify_one();  // under the lock: the call lives on its thread's stack until that thread has the lock
}

}  // namespace lowbit
