// pool_bench [--threads 2,4] [--work 0,2000,5000] [--chunks 1,8] [--seconds 0.2]
//
// The overhead of a loop of the pool: every thread has `work` nanoseconds to do, in `chunks` equal pieces. The overhead
// is the loop's time less that of one thread's work alone; one JSON object per line.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "list_argument.h"

namespace lowbit {
namespace {

/// Work that touches no memory: a chain of multiplications.
uint64_t chain(int64_t steps, uint64_t x) {
  for (int64_t i = 0; i < steps; ++i) x = x * 6364136223846793005u + 1442695040888963407u;
  return x;
}

double median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Seconds a call of f takes, the median of batches.
template <class F>
double seconds_of(double seconds, const F& f) {
  constexpr int kBatch = 50;
  std::vector<double> times;
  for (const auto start = Clock::now(); seconds_since(start) < seconds;) {
    const auto begin = Clock::now();
    for (int i = 0; i < kBatch; ++i) f();
    times.push_back(seconds_since(begin) / kBatch);
  }
  return median(times);
}

void measure(int threads, int64_t work_ns, int64_t chunks, double steps_per_ns, double seconds) {
  ThreadPool pool(threads);
  const auto steps = int64_t(double(work_ns) * steps_per_ns) / chunks;
  struct alignas(128) Slot {
    uint64_t value = 1;
    int64_t chunks = 0;
  };
  std::vector<Slot> slots(static_cast<size_t>(threads));
  const double alone = seconds_of(seconds / 4, [&] { slots[0].value = chain(steps * chunks, slots[0].value); });
  int64_t loops = 0;
  const double loop = seconds_of(seconds, [&] {
    ++loops;
    pool.parallel_for(chunks * threads, 1, [&](int64_t begin, int64_t end, int worker) {
      Slot& slot = slots[static_cast<size_t>(worker)];
      slot.value = chain(steps * (end - begin), slot.value);
      slot.chunks += end - begin;
    });
  });
  int64_t caller = slots[0].chunks, all = 0;
  for (const Slot& s : slots) all += s.chunks;
  const nlohmann::ordered_json line = {{"machine", cpu_info().model},
                                       {"threads", threads},
                                       {"work_ns", work_ns},
                                       {"chunks_per_thread", chunks},
                                       {"loop_ns", 1e9 * loop},
                                       {"alone_ns", 1e9 * alone},
                                       {"overhead_ns", 1e9 * (loop - alone)},
                                       {"callers_part", double(caller) / double(std::max<int64_t>(1, all))},
                                       {"complete", all == loops * chunks * threads}};
  std::printf("%s\n", line.dump().c_str());
}

int run(const std::map<std::string, std::string>& given) {
  const double seconds = std::atof(given.at("--seconds").c_str());
  uint64_t x = 1;
  const double steps_per_ns = 1e5 / (1e9 * seconds_of(0.1, [&] { x = chain(100000, x); }));
  if (x == 0) return 1;
  for (const std::string& threads : split(given.at("--threads")))
    for (const std::string& work : split(given.at("--work")))
      for (const std::string& chunks : split(given.at("--chunks")))
        measure(std::max(1, std::atoi(threads.c_str())), std::atoll(work.c_str()),
                std::max<int64_t>(1, std::atoll(chunks.c_str())), steps_per_ns, seconds);
  return 0;
}

}  // namespace
}  // namespace lowbit

int main(int argc, char** argv) {
  std::map<std::string, std::string> given = {
      {"--threads", "2"}, {"--work", "0,2000,5000"}, {"--chunks", "1,8"}, {"--seconds", "0.2"}};
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  if (argc % 2 == 0 || given.size() != 4) {
    std::fprintf(stderr, "usage: pool_bench [--threads LIST] [--work LIST] [--chunks LIST] [--seconds S]\n");
    return 2;
  }
  return lowbit::run(given);
}
