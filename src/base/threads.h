#pragma once
// A fixed pool of threads for data-parallel loops. Workers spin for a bounded time, then sleep: on
// a busy two-core machine endless spinning makes two threads slower than one.

#include <cstdint>
#include <memory>
#include <type_traits>

namespace lowbit {

/// A non-owning reference to a callable (begin, end, worker): no allocation per loop.
class RangeFn {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, RangeFn>>>
  RangeFn(const F& f)  // NOLINT: implicit by design, so that a lambda can be passed
      : object_(&f), call_([](const void* o, int64_t b, int64_t e, int w) { (*static_cast<const F*>(o))(b, e, w); }) {}
  void operator()(int64_t begin, int64_t end, int worker) const { call_(object_, begin, end, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t, int64_t, int);
};

class ThreadPool {
 public:
  /// `threads` >= 1 counts the calling thread, so `threads - 1` workers are started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  /// Calls fn(begin, end, worker) for disjoint chunks of at most `grain` covering [0, n); worker is
  /// in [0, size()). Each worker takes the chunks of its own part of [0, n) in order, then what others have left of
  /// theirs, so fn's result must not depend on who does what. Not re-entrant: fn must not call parallel_for of the same pool. One caller at
  /// a time.
  void parallel_for(int64_t n, int64_t grain, RangeFn fn);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowbit
