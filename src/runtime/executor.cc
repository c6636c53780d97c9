#include "runtime/executor.h"

#include <algorithm>
#include <string>

#include "base/try.h"
#include "runtime/scheduler.h"

namespace lowbit {

Executor::Request Executor::request_of(const SequenceRequest& from, Call& call) {
  const auto [first, last] = from.wanted.rows_of(int64_t(from.tokens.size()));
  ++call.left;
  return {
      &call, from.tokens,        from.cache,  first, last - first, from.logits.data(), from.observer, from.wanted.sink,
      0,     from.wanted.choice, from.adapter};
}

Status Executor::forward(std::span<const int32_t> tokens, KvCache& cache, LogitsWanted wanted, std::span<float> logits,
                         RowObserver* observer) {
  LOWBIT_TRY(model_.check(tokens, cache, wanted, logits));
  const int64_t start = cache.length();
  LOWBIT_TRY(cache.reserve(int64_t(tokens.size())));
  Call call;
  Request own = request_of({tokens, &cache, wanted, logits, observer}, call);
  run(call, {&own, 1});
  if (!call.status) LOWBIT_TRY(cache.truncate(start));
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
  Call call;
  std::vector<Request> own;
  for (const SequenceRequest& r : requests) {
    starts.push_back(r.cache->length());
    call.status = r.cache->reserve(int64_t(r.tokens.size()));
    if (!call.status) break;
    own.push_back(request_of(r, call));
  }
  if (call.status) run(call, own);
  if (call.status) return {};
  for (size_t i = 0; i < starts.size(); ++i) LOWBIT_TRY(requests[i].cache->truncate(starts[i]));
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
  for (const Request* r : chosen_) left_.push_back(int64_t(r->tokens.size()));
  rows_.resize(left_.size());
  share_rows(left_, model_.batch(), rows_);
  lock.unlock();
  open_parts();
  const Status status = batch_.empty() ? Status{} : model_.run(batch_);
  lock.lock();
  size_t part = 0;
  for (size_t i = 0; i < chosen_.size(); ++i) {
    if (!opened_[i]) advance(*chosen_[i], {}, opened_[i]);
    if (opened_[i] && rows_[i] > 0) advance(*chosen_[i], batch_[part++], status);
  }
}

void Executor::open_parts() {
  batch_.clear();
  opened_.assign(chosen_.size(), Status{});
  for (size_t i = 0; i < chosen_.size(); ++i) {
    const Request& r = *chosen_[i];
    if (rows_[i] == 0) continue;
    opened_[i] = r.cache->open(rows_[i]);
    if (!opened_[i]) continue;
    const int64_t first = std::min(r.first, rows_[i]), last = std::min(r.first + r.count, rows_[i]);
    batch_.push_back({r.tokens.first(size_t(rows_[i])), r.cache, first, last - first, r.logits, r.observer, r.sink,
                      r.sink_row, r.choice, r.adapter});
  }
}

void Executor::advance(Request& request, const BatchPart& part, const Status& status) {
  const auto rows = int64_t(part.tokens.size());
  request.tokens = request.tokens.subspan(part.tokens.size());
  request.first = std::max<int64_t>(request.first - rows, 0);
  request.count -= part.count;
  request.sink_row += part.count;
  if (request.logits != nullptr) request.logits += part.count * model_.spec().vocab_size;
  if (status && !request.tokens.empty()) return;
  Call& call = *request.call;
  if (!status) call.status = status;
  std::erase(waiting_, &request);
  if (--call.left > 0) return;
  call.changed.notify_one();  // under the lock: the call lives on its thread's stack until that thread has the lock
}

}  // namespace lowbit
