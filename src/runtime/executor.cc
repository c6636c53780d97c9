#include "runtime/executor.h"

#include <algorithm>

#include "base/try.h"
#include "runtime/scheduler.h"

namespace lowbit {

Status Executor::forward(std::span<const int32_t> tokens, KvCache& cache, LogitsWanted wanted, std::span<float> logits,
                         RowObserver* observer) {
  LOWBIT_TRY(model_.check(tokens, cache, wanted, logits));
  const auto n = int64_t(tokens.size()), start = cache.length();
  LOWBIT_TRY(cache.reserve(n));
  Request own;
  own.tokens = tokens;
  own.cache = &cache;
  own.first = n;
  own.logits = logits.data();
  own.observer = observer;
  if (wanted.kind == LogitsWanted::Kind::kLast) {
    own.first = n - 1;
    own.count = 1;
  } else if (wanted.kind == LogitsWanted::Kind::kRange) {
    own.first = wanted.first;
    own.count = wanted.count;
  }
  std::unique_lock lock(mutex_);
  waiting_.push_back(&own);
  if (busy_) own.changed.wait(lock, [&] { return own.done || own.leads; });
  if (!own.done) lead(own, lock);
  lock.unlock();
  if (!own.status) LOWBIT_TRY(cache.truncate(start));
  return own.status;
}

void Executor::lead(Request& own, std::unique_lock<std::mutex>& lock) {
  busy_ = true;
  while (!own.done) run_batch(lock);
  busy_ = !waiting_.empty();
  if (!busy_) return;
  waiting_.front()->leads = true;
  waiting_.front()->changed.notify_one();
}

void Executor::run_batch(std::unique_lock<std::mutex>& lock) {
  chosen_.assign(waiting_.begin(), waiting_.end());
  left_.clear();
  for (const Request* r : chosen_) left_.push_back(int64_t(r->tokens.size()));
  rows_.resize(left_.size());
  share_rows(left_, model_.batch(), rows_);
  batch_.clear();
  for (size_t i = 0; i < chosen_.size(); ++i) {
    const Request& r = *chosen_[i];
    if (rows_[i] == 0) continue;
    const int64_t first = std::min(r.first, rows_[i]), last = std::min(r.first + r.count, rows_[i]);
    batch_.push_back({r.tokens.first(size_t(rows_[i])), r.cache, first, last - first, r.logits, r.observer});
  }
  lock.unlock();
  const Status status = model_.run(batch_);
  lock.lock();
  size_t part = 0;
  for (size_t i = 0; i < chosen_.size(); ++i) {
    if (rows_[i] == 0) continue;
    Request& r = *chosen_[i];
    const BatchPart& ran = batch_[part++];
    r.tokens = r.tokens.subspan(size_t(rows_[i]));
    r.first = std::max<int64_t>(r.first - rows_[i], 0);
    r.count -= ran.count;
    r.logits += ran.count * model_.spec().vocab_size;
    if (status && !r.tokens.empty()) continue;
    r.status = status;
    r.done = true;
    std::erase(waiting_, &r);
    r.changed.notify_one();  // under the lock: the request lives on its thread's stack until that thread has the lock
  }
}

}  // namespace lowbit
