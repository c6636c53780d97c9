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
  explicit Impl(int threads) {
    for (int w = 1; w < threads; ++w) workers.emplace_back([this, w] { serve(w); });
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
      generation.fetch_add(1, std::memory_order_release);
    }
    wake.notify_all();
    for (auto& t : workers) t.join();
  }

  void run(int64_t n, int64_t grain, const RangeFn& fn) {
    job = &fn;
    job_n = n;
    job_grain = grain;
    next.store(0, std::memory_order_relaxed);
    busy.store(static_cast<int>(workers.size()), std::memory_order_relaxed);
    {
      std::lock_guard lock(mutex);  // pairs with the wait below, so that no worker sleeps through the change
      generation.fetch_add(1, std::memory_order_release);
    }
    if (sleepers.load(std::memory_order_relaxed) > 0) wake.notify_all();
    take_chunks(0);
    for (int spin = 0; busy.load(std::memory_order_acquire) > 0; ++spin) {
      if (spin < kSpins) {
        cpu_relax();
      } else {
        std::unique_lock lock(mutex);
        done.wait(lock, [this] { return busy.load(std::memory_order_acquire) == 0; });
      }
    }
  }

  void take_chunks(int worker) {
    for (;;) {
      const int64_t begin = next.fetch_add(job_grain, std::memory_order_relaxed);
      if (begin >= job_n) return;
      (*job)(begin, std::min(begin + job_grain, job_n), worker);
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
        sleepers.fetch_add(1, std::memory_order_relaxed);
        wake.wait(lock, [&] { return generation.load(std::memory_order_acquire) != seen; });
        sleepers.fetch_sub(1, std::memory_order_relaxed);
      }
      seen = generation.load(std::memory_order_acquire);
      if (stopping) return;
      take_chunks(worker);
      if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard lock(mutex);
        done.notify_one();
      }
    }
  }

  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake, done;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> busy{0}, sleepers{0};
  bool stopping = false;  // written before `generation` is released
  const RangeFn* job = nullptr;
  int64_t job_n = 0, job_grain = 1;
  std::atomic<int64_t> next{0};
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
