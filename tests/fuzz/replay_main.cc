// The fuzz targets without libFuzzer, for every compiler: each reads its seeds, and these with random damage.
//   lowbit_fuzz_replay CORPUS [--rounds N] [--seed N] [TARGET ...]
// N damaged copies of each seed (100), always the same ones. An input that crashes, takes longer than its target allows
// or more memory than 256 MiB is left in the file fuzz-failure-TARGET. Each target has a process of its own: the memory
// of one allows the next no more.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/rng.h"
#include "fuzz_targets.h"  // LOWBIT_FUZZ_TARGET(name) for each; made by CMake

#define LOWBIT_FUZZ_TARGET(name) extern "C" int lowbit_fuzz_##name(const std::uint8_t* data, std::size_t size);
LOWBIT_FUZZ_TARGETS
#undef LOWBIT_FUZZ_TARGET

namespace {

using Bytes = std::vector<uint8_t>;

struct Target {
  const char* name;
  int (*run)(const uint8_t*, size_t);
};
constexpr Target kTargets[] = {
#define LOWBIT_FUZZ_TARGET(name) {#name, lowbit_fuzz_##name},
    LOWBIT_FUZZ_TARGETS
#undef LOWBIT_FUZZ_TARGET
};

constexpr size_t kLargestInput = 65536;
constexpr long kMostKib = 256 << 10;  // above what a target had before its first input

// For the handler of signals.
std::string failure_path;
Bytes current;

void keep_input() {
  const int fd = open(failure_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd >= 0 && write(fd, current.data(), current.size()) >= 0) close(fd);
}

void on_crash(int signal) {
  keep_input();
  constexpr char kText[] = "fuzz: the input is in ";
  (void)!write(2, kText, sizeof kText - 1);
  (void)!write(2, failure_path.data(), failure_path.size());
  (void)!write(2, "\n", 1);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

long peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

double cpu_s() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

bool counts_memory() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return true;
#endif
}

std::vector<Bytes> read_seeds(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> seeds;
  for (const std::string& path : paths) {
    std::ifstream in(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return seeds;
}

/// One to four edits.
Bytes damaged(Bytes input, const std::vector<Bytes>& seeds, lowbit::Rng& rng) {
  constexpr std::array<uint8_t, 12> kBytes = {0, 1, 0x7f, 0x80, 0xff, '0', '9', '"', '{', ']', ',', '\\'};
  const auto at = [&](size_t size) { return static_cast<size_t>(rng.below(size + 1)); };
  for (uint64_t edits = 1 + rng.below(4); edits > 0; --edits) {
    const size_t i = at(input.size()),
                 n = std::min<size_t>(input.size() - i, rng.below(16) == 0 ? at(4096) : 1 + rng.below(8));
    const auto begin = input.begin() + static_cast<std::ptrdiff_t>(i), end = begin + static_cast<std::ptrdiff_t>(n);
    switch (rng.below(6)) {
      case 0:  // other bits
        for (auto byte = begin; byte != end; ++byte) *byte ^= static_cast<uint8_t>(1u << rng.below(8));
        break;
      case 1:
        for (auto byte = begin; byte != end; ++byte) *byte = kBytes[rng.below(kBytes.size())];
        break;
      case 2:
        input.erase(begin, end);
        break;
      case 3: {  // again
        const Bytes part(begin, end);
        input.insert(begin, part.begin(), part.end());
        break;
      }
      case 4: {  // of another seed
        const Bytes& other = seeds[rng.below(seeds.size())];
        const size_t from = at(other.size()), count = std::min<size_t>(other.size() - from, 1 + rng.below(64));
        const auto part = other.begin() + static_cast<std::ptrdiff_t>(from);
        input.insert(begin, part, part + static_cast<std::ptrdiff_t>(count));
        break;
      }
      default:
        if (rng.below(4) == 0) input.resize(i);
    }
  }
  if (input.size() > kLargestInput) input.resize(kLargestInput);
  return input;
}

bool replay(const Target& target, const std::string& corpus, int64_t rounds, uint64_t seed) {
  const std::vector<Bytes> seeds = read_seeds(corpus + "/" + target.name);
  failure_path = std::string("fuzz-failure-") + target.name;
  const long before = peak_kib();
  int64_t inputs = 0;
  double longest_s = 0;
  lowbit::Rng rng(seed, 1);
  for (const Bytes& one : seeds)
    for (int64_t round = 0; round <= rounds; ++round, ++inputs) {
      current = round == 0 ? one : damaged(one, seeds, rng);
      const double start_s = cpu_s();
      target.run(current.data(), current.size());
      longest_s = std::max(longest_s, cpu_s() - start_s);
      if (!counts_memory() || peak_kib() - before <= kMostKib) continue;
      keep_input();
      std::printf("%s: %ld MiB for one input, which is in %s\n", target.name, (peak_kib() - before) >> 10,
                  failure_path.c_str());
      return false;
    }
  std::printf("%s: %zu seeds, %lld inputs, at most %.2f s and %ld MiB more\n", target.name, seeds.size(),
              static_cast<long long>(inputs), longest_s, (peak_kib() - before) >> 10);
  return !seeds.empty();
}

bool replay_alone(const Target& target, const std::string& corpus, int64_t rounds, uint64_t seed) {
  const pid_t child = fork();
  if (child == 0) std::exit(replay(target, corpus, rounds, seed) ? 0 : 1);
  int status = 0;
  const bool good = child > 0 && waitpid(child, &status, 0) == child && status == 0;
  if (!good) std::printf("%s: failed, status %d\n", target.name, status);
  std::fflush(stdout);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t rounds = 100;
  uint64_t seed = 1;
  std::string corpus;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--rounds" && i + 1 < argc) {
      rounds = std::atoll(argv[++i]);
    } else if (word == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      (corpus.empty() ? corpus : names.emplace_back()) = word;
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s CORPUS [--rounds N] [--seed N] [TARGET ...]\n", argv[0]);
    return 2;
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL}) std::signal(signal, on_crash);
  bool good = true;
  for (const Target& target : kTargets)
    if (names.empty() || std::find(names.begin(), names.end(), target.name) != names.end())
      good = replay_alone(target, corpus, rounds, seed) && good;
  return good ? 0 : 1;
}
