#include "base/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lowbit {
namespace {

inline void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// About 20-50 us of spinning: longer than the gap between two loops of a decode step, far shorter
// than a time slice.
constexpr int kSpins = 2000;

}  // namespace

struct ThreadPool::Impl {
  /// A worker's own part of a loop's chunks; others take from it when they are done with theirs.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  explicit Impl(int threads) : shares(static_cast<size_t>(threads)) {
    for (int w = 1; w < threads; ++w) workers.emplace_back([this, w] { serve(w); });
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
      generation.fetch_add(1);
    }
    wake.notify_all();
    for (auto& t : workers) t.join();
  }

  void run(int64_t n, int64_t grain, const RangeFn& fn) {
    job = &fn;
    job_n = n;
    job_grain = grain;
    const int64_t chunks = (n - 1) / grain + 1, count = static_cast<int64_t>(shares.size());
    for (int64_t w = 0; w < count; ++w) {
      Share& share = shares[static_cast<size_t>(w)];
      share.next.store(part(chunks, count, w), std::memory_order_relaxed);
      share.end = part(chunks, count, w + 1);
    }
    busy.store(static_cast<int>(workers.size()), std::memory_order_relaxed);
    // Sequentially consistent, as is what a worker does before it sleeps: either it sees the new generation, or it is seen here.
    generation.fetch_add(1);
    if (sleepers.load() > 0) {
      { std::lock_guard lock(mutex); }  // whoever counted itself is waiting by now
      wake.notify_all();
    }
    take_chunks(0);
    for (int spin = 0; busy.load(std::memory_order_acquire) > 0; ++spin) {
      if (spin < kSpins) {
        cpu_relax();
      } else {
        std::unique_lock lock(mutex);
        caller_sleeps.store(true);
        done.wait(lock, [this] { return busy.load() == 0; });
        caller_sleeps.store(false);
      }
    }
  }

  /// floor(chunks * w / count) without overflow.
  static int64_t part(int64_t chunks, int64_t count, int64_t w) {
    return chunks / count * w + chunks % count * w / count;
  }

  void take_chunks(int worker) {
    const size_t count = shares.size();
    for (size_t i = 0; i < count; ++i) {
      Share& share = shares[(static_cast<size_t>(worker) + i) % count];
      for (;;) {
        const int64_t chunk = share.next.fetch_add(1, std::memory_order_relaxed);
        if (chunk >= share.end) break;
        const int64_t begin = chunk * job_grain;
        (*job)(begin, std::min(begin + job_grain, job_n), worker);
      }
    }
  }

  void serve(int worker) {
    uint64_t seen = 0;
    for (;;) {
      int spin = 0;
      while (generation.load(std::memory_order_acquire) == seen) {
        if (++spin < kSpins) {
          cpu_relax();
          continue;
        }
        std::unique_lock lock(mutex);
        sleepers.fetch_add(1);
        wake.wait(lock, [&] { return generation.load() != seen; });
        sleepers.fetch_sub(1);
      }
      seen = generation.load(std::memory_order_acquire);
      if (stopping) return;
      take_chunks(worker);
      if (busy.fetch_sub(1) == 1 && caller_sleeps.load()) {
        { std::lock_guard lock(mutex); }
        done.notify_one();
      }
    }
  }

  std::vector<Share> shares;  // one per worker, the caller's first
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake, done;
  alignas(64) std::atomic<uint64_t> generation{0};
  std::atomic<int> sleepers{0};
  bool stopping = false;  // written before `generation` is released
  const RangeFn* job = nullptr;
  int64_t job_n = 0, job_grain = 1;
  alignas(64) std::atomic<int> busy{0};
  std::atomic<bool> caller_sleeps{false};
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(std::max(threads, 1))) {}
ThreadPool::~ThreadPool() = default;
int ThreadPool::size() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::parallel_for(int64_t n, int64_t grain, RangeFn fn) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (impl_->workers.empty() || n <= grain) {
    for (int64_t b = 0; b < n; b += grain) fn(b, std::min(b + grain, n), 0);
    return;
  }
  impl_->run(n, grain, fn);
}

}  // namespace lowbit
