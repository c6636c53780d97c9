#pragma once
// A fixed pool of threads for data-parallel loops. Threads that wait spin for a bounded time, then sleep: on a busy
// two-core machine endless spinning makes two threads slower than one.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace lowbit {

/// A non-owning reference to a callable (begin, end, worker): no allocation per loop.
class RangeFn {
 public:
  using Call = void (*)(const void* object, int64_t begin, int64_t end, int worker);

  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, RangeFn>>>
  RangeFn(const F& f)  // NOLINT: implicit by design, so that a lambda can be passed
      : object_(&f),
        call_([](const void* o, int64_t b, int64_t e, int w) { (*static_cast<const F*>(o))(b, e, w); }),
        bytes_(sizeof(F)) {}
  RangeFn(const void* object, Call function, size_t bytes) : object_(object), call_(function), bytes_(bytes) {}
  void operator()(int64_t begin, int64_t end, int worker) const { call_(object_, begin, end, worker); }

  const void* object() const { return object_; }
  Call call() const { return call_; }
  size_t bytes() const { return bytes_; }  // of the object

 private:
  const void* object_;
  Call call_;
  size_t bytes_;
};

/// The memory that the next loop reads: `blocks` of `block_bytes` each, shared out evenly, of which those that begin
/// below `bytes` lie at `data`. Threads that wait fetch the first of their blocks into the second-level cache. A hint:
/// `data` is never dereferenced.
struct ReadAhead {
  const void* data = nullptr;
  int64_t bytes = 0, blocks = 0, block_bytes = 0;
};

class ThreadPool {
 public:
  /// `threads` >= 1 counts the calling thread, so `threads - 1` workers are started: fewer where the system has no more
  /// (a limit on threads or on memory), see size().
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Threads that there are. It never grows.
  int size() const;

  /// Calls fn(begin, end, worker) for disjoint ranges that cover [0, n); each begins at a multiple of `grain` and ends
  /// at one or at n; worker is in [0, size()). A worker takes half of what is left of its own part of [0, n), and so on
  /// down to one grain, then what others have left of theirs; a thread that does not run takes none and is not waited
  /// for. So fn's result must not depend on who does what. Not re-entrant: fn must not call parallel_for of the same
  /// pool. One caller at a time. What fn throws is thrown here when all ranges are done; the first, where several do.
  /// In a child of fork() the first loop starts threads of its own; no loop of the pool may be under way when it forks.
  void parallel_for(int64_t n, int64_t grain, RangeFn fn, const ReadAhead& next = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowbit
