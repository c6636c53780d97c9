// threads_bench OUT.json --threads 1,2 [--m 1,512] [--isa avx512,avx2] [--formats int4,int2] [--group 64] [--seconds 1]
//               [--note TEXT]
//
// How matmuls of 4096 x 4096 scale with threads. Every number of threads in turn, a moment each, so that what else
// happens on the machine meets all alike. Weights of up to 16 tokens come from memory, and between two calls a plain
// read of as many bytes, by as many threads, tells what memory gives at that moment.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "base/try.h"
#include "format/registry.h"
#include "list_argument.h"
#include "ops/time_matmul.h"

namespace lowbit {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kSize = 4096, kColdBytes = int64_t{512} << 20;
constexpr double kMoment = 0.02;  // seconds

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Reads `bytes`, in as many chunks as a product has.
void read_plain(const std::byte* from, int64_t bytes, ThreadPool& pool, std::vector<uint64_t>& sums) {
  const int64_t lines = bytes / 64;
  pool.parallel_for(lines, std::max<int64_t>(1, lines / (8 * pool.size())), [&](int64_t b, int64_t e, int worker) {
    sums[size_t(64 * worker)] += read_once(from + 64 * b, 64 * (e - b));
  });
}

struct Pool {
  explicit Pool(int threads) : pool(threads), sums(size_t(64 * threads)) {}
  ThreadPool pool;
  std::vector<uint64_t> sums;
  std::vector<double> seconds, plain_seconds;
};

Status measure(const TimedMatmul& o, std::vector<std::unique_ptr<Pool>>& pools, Json& rows) {
  LOWBIT_TRY_ASSIGN(const QTensor w, random_weight(o, pools.back()->pool));
  std::vector<MatmulPlan> plans;
  LOWBIT_TRY_ASSIGN(MatmulPlan first, MatmulPlan::make(w, {o.activation, o.isa}, pools.back()->pool));
  const int64_t bytes = first.resident_bytes();
  plans.push_back(std::move(first));
  while (o.cold && int64_t(plans.size()) * bytes < kColdBytes) {
    LOWBIT_TRY_ASSIGN(MatmulPlan next, plans.front().copy(pools.back()->pool));
    plans.push_back(std::move(next));
  }
  const int64_t count = int64_t(plans.size());
  LOWBIT_TRY_ASSIGN(Buffer plain, Buffer::allocate(o.cold ? count * bytes : 64, "bytes to read", Pages::kLarge));
  std::memset(plain.data(), 1, size_t(plain.size()));
  LOWBIT_TRY_ASSIGN(Buffer x, Buffer::allocate(4 * o.m * o.k, "x", Pages::kLarge));
  LOWBIT_TRY_ASSIGN(Buffer y, Buffer::allocate(4 * o.m * o.n, "y", Pages::kLarge));
  Rng rng(2);
  for (int64_t i = 0; i < o.m * o.k; ++i) x.as<float>()[i] = float(rng.uniform()) - 0.5f;
  ActivationRows activations;
  int64_t turn = 0;
  for (const auto start = Clock::now(); seconds_since(start) < o.seconds;)
    for (auto& p : pools)
      for (const auto moment = Clock::now(); seconds_since(moment) < kMoment; ++turn) {
        auto begin = Clock::now();
        LOWBIT_TRY(activations.prepare(Activation::kInt8, x.as<float>(), o.m, o.k, o.k, o.isa, p->pool));
        LOWBIT_TRY(plans[size_t(turn % count)].run(activations, nullptr, y.as<float>(), o.n, p->pool));
        p->seconds.push_back(seconds_since(begin));
        if (!o.cold) continue;
        begin = Clock::now();
        read_plain(plain.data() + turn % count * bytes, bytes, p->pool, p->sums);
        p->plain_seconds.push_back(seconds_since(begin));
      }
  for (auto& p : pools) {
    const double seconds = median(std::exchange(p->seconds, {})), read = median(std::exchange(p->plain_seconds, {}));
    rows.push_back({{"kernel", plans[0].kernel_name()},
                    {"format", format_info(o.format).name},
                    {"isa", isa_name(o.isa)},
                    {"m", o.m},
                    {"threads", p->pool.size()},
                    {"gops", 2e-9 * double(o.m) * double(o.n) * double(o.k) / seconds},
                    {"gb_s", o.cold ? 1e-9 * double(bytes) / seconds : 0},
                    {"plain_gb_s", o.cold ? 1e-9 * double(bytes) / read : 0}});
    std::printf("%s\n", rows.back().dump().c_str());
    std::fflush(stdout);
  }
  return {};
}

Status run(const std::string& out, const std::map<std::string, std::string>& given) {
  std::vector<std::unique_ptr<Pool>> pools;
  for (const std::string& threads : split(given.at("--threads")))
    pools.push_back(std::make_unique<Pool>(std::max(1, std::atoi(threads.c_str()))));
  Json rows = Json::array();
  for (const std::string& m : split(given.at("--m")))
    for (const std::string& isa : split(given.at("--isa")))
      for (const std::string& format : split(given.at("--formats"))) {
        TimedMatmul o;
        LOWBIT_TRY_ASSIGN(o.format, parse_format(format));
        LOWBIT_TRY_ASSIGN(o.isa, choose_isa(isa));
        const int64_t group = std::atoll(given.at("--group").c_str());
        if (group > 0) o.group = group;
        o.m = std::max<int64_t>(1, std::atoll(m.c_str()));
        o.n = o.k = kSize;
        o.cold = o.m <= 16;
        o.seconds = std::atof(given.at("--seconds").c_str());
        LOWBIT_TRY(measure(o, pools, rows));
      }
  const Json report = {{"machine", cpu_info().model},
                       {"features", cpu_info().features},
                       {"note", given.at("--note")},
                       {"group", std::atoll(given.at("--group").c_str())},
                       {"rows", rows}};
  std::ofstream(out) << report.dump(1) << "\n";
  return {};
}

}  // namespace
}  // namespace lowbit

int main(int argc, char** argv) {
  std::map<std::string, std::string> given = {
      {"--threads", "1,2"}, {"--m", "1,512"},   {"--isa", ""}, {"--formats", "int4,int2"},
      {"--group", "64"},    {"--seconds", "1"}, {"--note", ""}};
  for (int i = 2; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  if (argc < 2 || argc % 2 != 0 || given.size() != 7) {
    std::fprintf(stderr,
                 "usage: threads_bench OUT.json [--threads LIST] [--m LIST] [--isa LIST] [--formats LIST] [--group N] "
                 "[--seconds S] [--note TEXT]\n");
    return 2;
  }
  const auto done = lowbit::run(argv[1], given);
  if (!done) std::fprintf(stderr, "error: %s\n", done.error().message().c_str());
  return done ? 0 : 1;
}
