#include "base/threads.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
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

/// Asks for a line that this thread will write, so that the write does not wait for other caches.
inline void own_line([[maybe_unused]] void* p) {
#if defined(__x86_64__)
  __asm__ volatile("prefetchw %0" : : "m"(*static_cast<char*>(p)));  // every 64-bit CPU takes it, some as a no-op
#endif
}

// Some 50 to 100 us of spinning: longer than the gap between two loops of a decode step, far shorter than a time slice.
// The first polls, a few microseconds, are bare: on Intel a pause is 140 cycles, which the end of a wait would be late
// by.
constexpr int kSpins = 4000, kBareSpins = 2000;
// Two cache lines, since they are fetched in pairs.
constexpr size_t kApart = 128;
// Loop number and first free chunk in one word.
constexpr int kChunkBits = 24;
constexpr int64_t kMostChunks = int64_t{1} << 23;

/// The part of a thread that it reads next, in small steps between two looks at what it waits for.
class Fetcher {
 public:
  static constexpr int64_t kMostBytes = 64 << 10;

  Fetcher() = default;
  Fetcher(const ReadAhead& r, int worker, int64_t threads) {
    const int64_t first = r.blocks * worker / threads * r.block_bytes,
                  last = r.blocks * (worker + 1) / threads * r.block_bytes;
    if (first >= r.bytes) return;
    at_ = static_cast<const char*>(r.data) + first;
    left_ = std::min({kMostBytes, r.bytes - first, last - first});
  }
  /// False when nothing is left.
  bool step() {
    if (left_ <= 0) return false;
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(at_ + i * 64, 0, 2);
    at_ += kLines * 64;
    left_ -= kLines * 64;
    return true;
  }

 private:
  static constexpr int kLines = 4;
  const char* at_ = nullptr;
  int64_t left_ = 0;
};

/// Prefetches the object of a loop's function, which another thread has just written: all cache lines at once. Never
/// dereferenced.
inline void fetch_object(const RangeFn& fn) {
  constexpr size_t kMostBytes = 2048;
  for (size_t at = 0; at < std::min(fn.bytes(), kMostBytes); at += 64)
    __builtin_prefetch(static_cast<const char*>(fn.object()) + at);
}

/// How many forks lie between this process and the one that loaded the library. fork() copies the calling thread alone.
std::atomic<uint64_t> forks{0};

uint64_t forks_so_far() {
  [[maybe_unused]] static const int watched =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  return forks.load(std::memory_order_relaxed);
}

/// Between two looks at what a thread waits for.
inline void wait_a_little(int spin, Fetcher& fetcher) {
  if (!fetcher.step() && spin >= kBareSpins) cpu_relax();
}

/// Address space that stacks of threads must leave free: where a limit on it lets only some of them start, the work
/// needs room as well.
class SpareRoom {
 public:
  SpareRoom() : at_(mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SpareRoom() {
    if (there()) (void)munmap(at_, kBytes);
  }
  SpareRoom(const SpareRoom&) = delete;
  SpareRoom& operator=(const SpareRoom&) = delete;
  bool there() const { return at_ != MAP_FAILED; }

 private:
  static constexpr size_t kBytes = size_t{64} << 20;
  void* at_;
};

}  // namespace

// A loop costs few transfers of cache lines between cores: one with the whole job, which the caller alone writes; each
// thread's share, which is its own unless another steals; each thread's report, which its own thread alone writes.
// Nobody waits for a thread that has taken nothing: the caller is done when the chunks of all reports add up.
struct ThreadPool::Impl {
  struct Job {
    RangeFn fn{nullptr, nullptr, 0};
    int64_t n = 0, grain = 1, chunks = 0;
    uint64_t loop = 0;
    ReadAhead next;
  };

  /// The job that the caller publishes, in one cache line, under a sequence lock: `sequence` is odd while the rest is
  /// written, 2 * loop behind. Fields are atomic since a late thread may read them meanwhile; it then sees another
  /// sequence and drops them.
  struct alignas(kApart) Board {
    std::atomic<uint64_t> sequence{0};
    std::atomic<const void*> object{nullptr};
    std::atomic<RangeFn::Call> call{nullptr};
    std::atomic<int64_t> n{0}, grain{1};
    std::atomic<const void*> next_data{nullptr};
    std::atomic<uint32_t> next_blocks{0}, next_blocks_there{0}, next_block_bytes{0}, object_bytes{0};
  };
  static_assert(offsetof(Board, object_bytes) + 4 == 64);

  struct alignas(kApart) Sleep {
    std::atomic<int> workers{0};
    std::atomic<bool> caller{false}, stopping{false};
  };

  /// A thread's share of a loop: the first chunk of it that is free, with the loop it belongs to. An older loop's: all
  /// are free.
  struct alignas(kApart) Share {
    std::atomic<uint64_t> free{0};
  };
  /// A thread's report: how many chunks it did, with the loop.
  struct alignas(kApart) Report {
    std::atomic<uint64_t> done{0};
  };

  explicit Impl(int threads) : shares(static_cast<size_t>(threads)), reports(static_cast<size_t>(threads)) {
    workers.reserve(static_cast<size_t>(threads - 1));
    const SpareRoom spare;
    try {
      for (int w = 1; w < threads && spare.there(); ++w) workers.emplace_back([this, w] { serve(w); });
    } catch (const std::exception&) {
      // No room for another stack, or a limit on threads. Those that started do the work, in the spare room; they read
      // `started` with the first job.
    }
    started = static_cast<int64_t>(workers.size()) + 1;
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex);
      sleep.stopping.store(true);
      board.sequence.fetch_add(2);
    }
    wake.notify_all();
    for (auto& t : workers) t.join();
  }

  int64_t size() const { return started; }

  void run(const Job& job) {
    publish(job);
    // A worker that goes to sleep just now may be missed here. It looks again after a millisecond, and nobody waits for
    // it.
    if (sleep.workers.load(std::memory_order_relaxed) > 0) {
      { std::lock_guard lock(mutex); }
      wake.notify_all();
    }
    const int64_t others = job.chunks - take_chunks(job, 0);
    Fetcher fetcher(job.next, 0, size());
    for (int spin = 0; reported(job.loop) < others; ++spin) {
      if (spin < kSpins) {
        wait_a_little(spin, fetcher);
      } else {
        std::unique_lock lock(mutex);
        sleep.caller.store(true);
        done.wait(lock, [&] { return reported(job.loop) >= others; });
        sleep.caller.store(false);
      }
    }
    own_line(&shares[0]);
    if (raised) std::rethrow_exception(std::exchange(raised, nullptr));  // nobody is at work any more
  }

  void publish(const Job& job) {
    board.sequence.store(2 * job.loop - 1, std::memory_order_relaxed);
    board.object.store(job.fn.object(), std::memory_order_release);  // release: behind the odd sequence
    board.call.store(job.fn.call(), std::memory_order_release);
    board.n.store(job.n, std::memory_order_release);
    board.grain.store(job.grain, std::memory_order_release);
    board.next_data.store(job.next.data, std::memory_order_release);
    const int64_t block = job.next.block_bytes;
    const bool fits =
        block > 0 && std::max(block, job.next.blocks) <= UINT32_MAX;  // a hint: dropped where it does not fit
    const int64_t there = fits ? std::min((job.next.bytes + block - 1) / block, job.next.blocks) : 0;
    board.next_blocks.store(fits ? uint32_t(job.next.blocks) : 0, std::memory_order_release);
    board.next_blocks_there.store(uint32_t(there), std::memory_order_release);
    board.next_block_bytes.store(fits ? uint32_t(block) : 0, std::memory_order_release);
    board.object_bytes.store(uint32_t(job.fn.bytes()), std::memory_order_release);
    board.sequence.store(2 * job.loop, std::memory_order_release);
  }

  /// The job of an even `sequence`; false when another has taken its place.
  bool read_board(uint64_t sequence, Job& job) const {
    job.fn = {board.object.load(std::memory_order_acquire), board.call.load(std::memory_order_acquire),
              board.object_bytes.load(std::memory_order_acquire)};
    job.n = board.n.load(std::memory_order_acquire);
    job.grain = board.grain.load(std::memory_order_acquire);
    const int64_t block_bytes = board.next_block_bytes.load(std::memory_order_acquire);
    job.next = {board.next_data.load(std::memory_order_acquire),
                board.next_blocks_there.load(std::memory_order_acquire) * block_bytes,
                board.next_blocks.load(std::memory_order_acquire), block_bytes};
    job.loop = sequence / 2;
    job.chunks = (job.n - 1) / job.grain + 1;
    return board.sequence.load(std::memory_order_relaxed) == sequence;
  }

  /// Chunks that workers have reported of a loop.
  int64_t reported(uint64_t loop) const {
    int64_t sum = 0;
    for (size_t w = 1; w < size_t(started); ++w) sum += of_loop(reports[w].done.load(std::memory_order_acquire), loop);
    return sum;
  }

  /// The lower part of a word of this loop, else 0.
  static int64_t of_loop(uint64_t word, uint64_t loop) {
    return word >> kChunkBits == (loop << kChunkBits) >> kChunkBits ? int64_t(word & ((1u << kChunkBits) - 1)) : 0;
  }
  static uint64_t word_of(uint64_t loop, int64_t chunk) { return loop << kChunkBits | uint64_t(chunk); }

  /// Does what it finds to do; how many chunks it were.
  int64_t take_chunks(const Job& job, int worker) {
    int64_t taken = 0;
    for (int64_t i = 0; i < size(); ++i) {
      const int64_t victim = (worker + i) % size();
      // A thread that has reported has nothing left; looking at its share would take the line from it.
      if (i > 0 && of_loop(reports[size_t(victim)].done.load(std::memory_order_relaxed), job.loop) > 0) continue;
      taken += take_from(job, victim, worker);
    }
    return taken;
  }

  int64_t take_from(const Job& job, int64_t victim, int worker) {
    std::atomic<uint64_t>& free = shares[size_t(victim)].free;
    const int64_t begin = job.chunks * victim / size(), end = job.chunks * (victim + 1) / size();
    int64_t taken = 0;
    for (uint64_t word = free.load(std::memory_order_relaxed);;) {
      const int64_t left = end - next_free(word, job.loop, begin, end);
      if (left <= 0) return taken;
      const int64_t count = (left + 1) / 2, first = end - left;
      // Succeeds only while the loop has free chunks, so while the caller waits for who takes them: `job` is alive.
      if (!free.compare_exchange_weak(word, word_of(job.loop, first + count), std::memory_order_acq_rel,
                                      std::memory_order_relaxed))
        continue;
      word = word_of(job.loop, first + count);
      try {
        job.fn(first * job.grain, std::min((first + count) * job.grain, job.n), worker);
      } catch (...) {  // out of memory, most likely
        const std::lock_guard lock(mutex);
        if (!raised) raised = std::current_exception();
      }
      taken += count;
    }
  }

  static int64_t next_free(uint64_t word, uint64_t loop, int64_t begin, int64_t end) {
    const uint64_t of = word >> kChunkBits, mine = (loop << kChunkBits) >> kChunkBits;
    if (of == mine) return int64_t(word & ((1u << kChunkBits) - 1));
    return of < mine ? begin : end;  // a later loop's: this one is over
  }

  /// The sequence of a job that this worker has not seen; spins, then sleeps.
  uint64_t wait_for_job(uint64_t seen, Fetcher& fetcher) {
    const auto fresh = [&](uint64_t sequence) { return sequence != seen && sequence % 2 == 0; };
    for (int spin = 0; spin < kSpins; ++spin) {
      if (const uint64_t s = board.sequence.load(std::memory_order_acquire); fresh(s)) return s;
      wait_a_little(spin, fetcher);
    }
    const auto came = [&] { return fresh(board.sequence.load(std::memory_order_acquire)); };
    std::unique_lock lock(mutex);
    sleep.workers.fetch_add(1);
    if (!wake.wait_for(lock, std::chrono::milliseconds(1), came)) wake.wait(lock, came);  // see run()
    sleep.workers.fetch_sub(1);
    return board.sequence.load(std::memory_order_acquire);
  }

  void serve(int worker) {
    Fetcher fetcher;
    for (uint64_t seen = 0;;) {
      const uint64_t sequence = wait_for_job(seen, fetcher);
      if (sequence % 2 != 0) continue;  // being written behind a sleep
      if (sleep.stopping.load(std::memory_order_relaxed)) return;
      Job job;
      if (!read_board(sequence, job)) continue;
      seen = sequence;
      fetch_object(job.fn);
      const int64_t taken = take_chunks(job, worker);
      if (taken > 0) {
        // An exchange, so that the look at sleep.caller is behind it: either the caller sees the report, or is seen
        // here.
        reports[size_t(worker)].done.exchange(word_of(job.loop, taken));
        if (sleep.caller.load()) {
          { std::lock_guard lock(mutex); }
          done.notify_one();
        }
      }
      own_line(&shares[size_t(worker)]);
      fetcher = Fetcher(job.next, worker, size());
    }
  }

  Board board;
  Sleep sleep;
  std::vector<Share> shares;    // one per thread, the caller's first
  std::vector<Report> reports;  // the caller's is not used
  std::vector<std::thread> workers;
  std::exception_ptr raised;  // by a loop's function, in whichever thread; the caller gets the first
  std::mutex mutex;
  std::condition_variable wake, done;
  int64_t started = 1;  // threads that there are, the caller among them
  uint64_t loops = 0;   // the caller's
  const uint64_t process = forks_so_far();
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(std::max(threads, 1))) {}
ThreadPool::~ThreadPool() {
  if (impl_->process != forks_so_far()) (void)impl_.release();  // there is nobody to join
}
int ThreadPool::size() const { return static_cast<int>(impl_->size()); }

void ThreadPool::parallel_for(int64_t n, int64_t grain, RangeFn fn, const ReadAhead& next) {
  if (n <= 0) return;
  if (impl_->process != forks_so_far()) {
    // In a child of fork(): threads of its own, never more than before. What the parent's had, locks perhaps, is left
    // as it is.
    auto own = std::make_unique<Impl>(size());
    (void)impl_.release();
    impl_ = std::move(own);
  }
  grain = std::max<int64_t>(grain, 1);
  if (impl_->size() == 1 || n <= grain) return fn(0, n, 0);
  grain *= (n - 1) / grain / kMostChunks + 1;
  impl_->run({fn, n, grain, (n - 1) / grain + 1, ++impl_->loops, next});
}

}  // namespace lowbit
