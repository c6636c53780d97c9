// Loops of the pool: every element once, results visible to the caller, whoever runs, sleeps or comes late. Meant to be
// run under ThreadSanitizer, too: results are plain memory.

#include "base/threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <new>
#include <thread>
#include <vector>

namespace lowbit {
namespace {

TEST(Threads, EveryElementOnceForAnyPoolAndGrain) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    for (int round = 0; round < 300; ++round) {
      const int64_t n = 1 + round * 7 % 331, grain = 1 + round % 9;
      std::vector<int> hits(static_cast<size_t>(n));
      pool.parallel_for(n, grain, [&](int64_t b, int64_t e, int worker) {
        ASSERT_TRUE(worker >= 0 && worker < threads);
        ASSERT_TRUE(b % grain == 0 && b < e && (e % grain == 0 || e == n));
        for (int64_t i = b; i < e; ++i) ++hits[size_t(i)];
      });
      for (const int h : hits) ASSERT_EQ(h, 1);
    }
  }
}

// Jobs lie on the stack of a loop that is gone when a late thread looks; shares of few chunks are not touched for many
// loops.
TEST(Threads, LoopsInARowWithLateThreads) {
  for (const int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    std::vector<int64_t> sums(static_cast<size_t>(threads));
    int64_t want = 0;
    for (int64_t loop = 0; loop < 4000; ++loop) {
      const int64_t n = loop % 5 == 0 ? 40 : 2 + loop % 3, offset = loop;
      std::vector<int64_t> values(static_cast<size_t>(n), -1);
      const int64_t hint[4] = {loop, loop, loop, loop};
      pool.parallel_for(n, 1,
                        [&](int64_t b, int64_t e, int worker) {
                          for (int64_t i = b; i < e; ++i) values[size_t(i)] = i + offset;
                          sums[size_t(worker)] += e - b;
                        },
                        {hint, 32, 4, 8});
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(values[size_t(i)], i + offset);
      want += n;
      if (loop % 500 == 499) std::this_thread::sleep_for(std::chrono::microseconds(loop % 1000 == 999 ? 3000 : 150));
    }
    int64_t got = 0;
    for (const int64_t s : sums) got += s;
    EXPECT_EQ(got, want);
  }
}

// One chunk is long: the caller sleeps until its thread reports, whichever it is.
TEST(Threads, TheCallerWaitsForWhoIsStillAtWork) {
  ThreadPool pool(4);
  for (int64_t slow = 0; slow < 16; ++slow) {
    std::vector<int> hits(16);
    pool.parallel_for(16, 1, [&](int64_t b, int64_t e, int) {
      for (int64_t i = b; i < e; ++i) {
        if (i == slow) std::this_thread::sleep_for(std::chrono::milliseconds(4));
        ++hits[size_t(i)];
      }
    });
    for (const int h : hits) ASSERT_EQ(h, 1);
  }
}

// Short loops that begin when the worker has gone to sleep: most are done before it wakes.
TEST(Threads, LoopsThatBeginWhileWorkersSleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    int64_t sum = 0;
    std::vector<int64_t> parts(2);
    pool.parallel_for(4, 1, [&](int64_t b, int64_t e, int worker) { parts[size_t(worker)] += e - b; });
    for (const int64_t p : parts) sum += p;
    ASSERT_EQ(sum, 4);
  }
}

TEST(Threads, MoreElementsThanChunksCanBeCounted) {
  ThreadPool pool(3);
  const int64_t n = (int64_t{1} << 40) + 5;
  std::vector<int64_t> sums(3);
  pool.parallel_for(n, 3, [&](int64_t b, int64_t e, int worker) {
    ASSERT_EQ(b % 3, 0);
    sums[size_t(worker)] += e - b;
  });
  EXPECT_EQ(sums[0] + sums[1] + sums[2], n);
}

TEST(Threads, PoolsComeAndGo) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(1 + i % 4);
    int64_t sum = 0;
    if (i % 3 == 0) continue;  // nobody has been given work
    std::vector<int64_t> parts(static_cast<size_t>(pool.size()));
    pool.parallel_for(100, 7, [&](int64_t b, int64_t e, int worker) { parts[size_t(worker)] += e - b; });
    for (const int64_t p : parts) sum += p;
    ASSERT_EQ(sum, 100);
    if (i % 50 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // its workers sleep when it ends
  }
}

// An exception of a loop's function, most likely out of memory, is thrown by the loop when all of it is done.
TEST(Threads, WhatIsThrownReachesTheCaller) {
  ThreadPool pool(4);
  for (int64_t thrower = 0; thrower < 40; ++thrower) {
    std::vector<int> hits(40);
    EXPECT_THROW(pool.parallel_for(40, 1,
                                   [&](int64_t b, int64_t e, int) {
                                     for (int64_t i = b; i < e; ++i) ++hits[size_t(i)];
                                     if (b <= thrower && thrower < e) throw std::bad_alloc();
                                   }),
                 std::bad_alloc);
    for (const int h : hits) ASSERT_EQ(h, 1);
    pool.parallel_for(40, 1, [&](int64_t b, int64_t e, int) {
      for (int64_t i = b; i < e; ++i) ++hits[size_t(i)];
    });
    for (const int h : hits) ASSERT_EQ(h, 2);
  }
}

TEST(Threads, NothingToDo) {
  ThreadPool pool(2);
  pool.parallel_for(0, 1, [](int64_t, int64_t, int) { FAIL(); });
  pool.parallel_for(-3, 1, [](int64_t, int64_t, int) { FAIL(); });
}

}  // namespace
}  // namespace lowbit
