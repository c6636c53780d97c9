// Pools where threads cannot be started, and pools in a child of fork(). pthread_create is this file's in this program.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <vector>

#include "base/threads.h"

namespace {
std::atomic<int> threads_left{1 << 30};
}

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) {
  if (threads_left.fetch_sub(1) <= 0) return EAGAIN;
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, start, argument);
}

namespace lowbit {
namespace {

/// Every element of many loops is touched once.
bool loops_are_whole(ThreadPool& pool) {
  for (int64_t n = 1; n < 600; n += 13) {
    std::vector<int> hits(static_cast<size_t>(n));
    std::atomic<bool> known{true};
    pool.parallel_for(n, 1, [&](int64_t b, int64_t e, int worker) {
      if (worker < 0 || worker >= pool.size()) known = false;
      for (int64_t i = b; i < e; ++i) ++hits[static_cast<size_t>(i)];
    });
    for (const int h : hits)
      if (h != 1) return false;
    if (!known) return false;
  }
  return true;
}

TEST(ThreadStart, ThePoolRunsWithTheThreadsThatStarted) {
  for (const int there : {0, 1, 2, 7}) {
    threads_left = there;
    ThreadPool pool(8);
    threads_left = 1 << 30;
    EXPECT_EQ(pool.size(), there + 1);
    EXPECT_TRUE(loops_are_whole(pool));
  }
}

int64_t threads_of_this_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

/// Runs `work` in a child of fork(), for ten seconds at most, and returns its result.
template <class Work>
int in_child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(work() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#if defined(__SANITIZE_THREAD__)  // it does not let a child of fork() start threads
constexpr bool kMayFork = false;
#else
constexpr bool kMayFork = true;
#endif

TEST(ThreadStart, AChildOfForkHasThreadsOfItsOwn) {
  if (!kMayFork) GTEST_SKIP() << "the thread sanitizer does not let a child start threads";
  for (const bool asleep : {false, true}) {
    ThreadPool pool(4);
    ASSERT_TRUE(loops_are_whole(pool));
    if (asleep) usleep(20000);  // else the workers still spin
    EXPECT_EQ(in_child([&] { return loops_are_whole(pool) && pool.size() == 4 && threads_of_this_process() == 4; }), 0);
    EXPECT_EQ(in_child([&] { return in_child([&] { return loops_are_whole(pool); }) == 0 && loops_are_whole(pool); }),
              0);
    EXPECT_TRUE(loops_are_whole(pool));
  }
}

TEST(ThreadStart, APoolOfTheParentCanEndInTheChild) {
  if (!kMayFork) GTEST_SKIP() << "the thread sanitizer does not let a child start threads";
  auto* pool = new ThreadPool(4);
  ASSERT_TRUE(loops_are_whole(*pool));
  usleep(20000);
  EXPECT_EQ(in_child([&] {
              delete pool;
              ThreadPool own(3);
              return loops_are_whole(own);
            }),
            0);
  delete pool;
}

TEST(ThreadStart, AChildThatMayStartNoThreadsRunsAlone) {
  if (!kMayFork) GTEST_SKIP() << "the thread sanitizer does not let a child start threads";
  ThreadPool pool(4);
  ASSERT_TRUE(loops_are_whole(pool));
  EXPECT_EQ(in_child([&] {
              threads_left = 0;
              return loops_are_whole(pool) && pool.size() == 1;
            }),
            0);
  EXPECT_EQ(pool.size(), 4);
}

}  // namespace
}  // namespace lowbit
