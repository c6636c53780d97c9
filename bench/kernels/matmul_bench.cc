// matmul_bench [--threads N] [--seconds S] [--isa NAME] [--m LIST] [--formats LIST] [--groups LIST]
//              [--activation-groups LIST] [-N ROWS] [-K COLUMNS] [--warm]
//
// Every combination of the lists on one matrix, answers checked first; one JSON line each, the first one about the
// machine. Group 0: one scale per row; activation group 0: one scale per token, -1: f32 activations.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/cpu.h"
#include "format/registry.h"
#include "list_argument.h"
#include "ops/time_matmul.h"

namespace {

using namespace lowbit;

int usage(const std::string& what) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  return 2;
}

/// Instructions that do nothing a ns, of the thread with the fewest: those of a whole core, or of half of one, where
/// another hyperthread of it works (of another machine on the same host, maybe). 0: not known here.
double instructions_per_ns(ThreadPool& pool) {
#if defined(__x86_64__)
  constexpr int kBlock = 500, kBlocks = 1600;
  std::vector<double> rates(size_t(pool.size()), 1e9);
  pool.parallel_for(pool.size(), 1, [&](int64_t, int64_t, int worker) {
    const auto start = Clock::now();
    for (int i = 0; i < kBlocks; ++i) __asm__ volatile(".rept %c0\n\tnop\n\t.endr" : : "i"(kBlock));
    rates[size_t(worker)] = std::min(rates[size_t(worker)], 1e-9 * kBlock * kBlocks / seconds_since(start));
  });
  return *std::min_element(rates.begin(), rates.end());
#else
  return 0 * pool.size();
#endif
}

nlohmann::ordered_json to_json(const TimedMatmul& o, const MatmulTiming& t, double instructions) {
  return {{"kernel", t.kernel},
          {"format", format_info(o.format).name},
          {"group", o.group == Scaling::kAll ? 0 : o.group},
          {"activation_group", o.activation == Activation::kF32 ? -1 : o.activation_group},
          {"m", o.m},
          {"n", o.n},
          {"k", o.k},
          {"threads", t.threads},
          {"cold", t.cold},
          {"seconds", t.seconds},
          {"seconds_p10", t.seconds_p10},
          {"seconds_p90", t.seconds_p90},
          {"runs", t.runs},
          {"gops", t.gops},
          {"gb_s", t.gb_s},
          {"weight_bytes", t.weight_bytes},
          {"instructions_per_ns", instructions},
          {"checked", t.checked}};
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> given = {{"--threads", std::to_string(cpu_info().physical_cores)},
                                              {"--seconds", "0.3"},
                                              {"--isa", ""},
                                              {"--m", "1,8,512"},
                                              {"--formats", "int8,int4,int3,int2,ternary,ternary-packed,binary"},
                                              {"--groups", "0,64"},
                                              {"--activation-groups", "0,32"},
                                              {"-N", "4096"},
                                              {"-K", "4096"},
                                              {"--warm", ""}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (given.count(name) == 0) return usage("no option " + name);
    if (name == "--warm") {
      given[name] = "yes";
    } else if (++i < argc) {
      given[name] = argv[i];
    } else {
      return usage(name + " wants a value");
    }
  }
  const auto isa = choose_isa(given["--isa"]);
  if (!isa) return usage(isa.error().message());
  ThreadPool pool(std::max(1, std::atoi(given["--threads"].c_str())));
  const auto bandwidth = measure_read_bandwidth(pool);
  const nlohmann::ordered_json machine = {{"machine", cpu_info().model},
                                          {"features", cpu_info().features},
                                          {"isa", isa_name(*isa)},
                                          {"threads", pool.size()},
                                          {"logical_cpus", cpu_info().logical_cpus},
                                          {"read_gb_s", bandwidth ? bandwidth->median : 0}};
  std::printf("%s\n", machine.dump().c_str());
  bool all_checked = true;
  for (const std::string& m : split(given["--m"]))
    for (const std::string& name : split(given["--formats"]))
      for (const std::string& group : split(given["--groups"]))
        for (const std::string& activation : split(given["--activation-groups"])) {
          const auto format = parse_format(name);
          if (!format) return usage(format.error().message());
          TimedMatmul o;
          o.format = *format;
          o.group = std::atoll(group.c_str()) > 0 ? std::atoll(group.c_str()) : int64_t{Scaling::kAll};
          o.m = std::atoll(m.c_str());
          o.n = std::atoll(given["-N"].c_str());
          o.k = std::atoll(given["-K"].c_str());
          o.activation_group = std::max<int64_t>(0, std::atoll(activation.c_str()));
          o.activation = activation == "-1" ? Activation::kF32 : Activation::kInt8;
          o.cold = o.m <= 16 && given["--warm"].empty();
          o.isa = *isa;
          o.seconds = std::atof(given["--seconds"].c_str());
          const double before = instructions_per_ns(pool);
          const auto timing = time_matmul(o, pool);
          if (!timing) return usage(timing.error().message());
          all_checked = all_checked && timing->checked;
          const double instructions = std::min(before, instructions_per_ns(pool));
          std::printf("%s\n", to_json(o, *timing, instructions).dump().c_str());
          std::fflush(stdout);
        }
  return all_checked ? 0 : 1;
}
