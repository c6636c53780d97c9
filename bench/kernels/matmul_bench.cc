// matmul_bench [threads] [seconds] [isa]: the formats x GEMV (cold) and GEMM table, answers checked first.

#include <cstdio>
#include <cstdlib>

#include "base/cpu.h"
#include "ops/matmul_bench.h"

int main(int argc, char** argv) {
  using namespace lowbit;
  const int threads = argc > 1 ? std::atoi(argv[1]) : cpu_info().physical_cores;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.3;
  const auto isa = choose_isa(argc > 3 ? argv[3] : "");
  if (!isa) {
    std::fprintf(stderr, "error: %s\n", isa.error().message().c_str());
    return 1;
  }
  ThreadPool pool(threads);
  if (const auto bandwidth = measure_read_bandwidth(pool))
    std::printf("memory read: %.1f GB/s, %d threads\n", *bandwidth, threads);
  struct Row {
    FormatId format;
    int64_t group, m;
    Activation activation;
  };
  std::vector<Row> rows;
  for (const int64_t m : {1, 8, 512})
    for (const FormatId f : {FormatId::kInt8, FormatId::kInt4, FormatId::kInt3, FormatId::kInt2, FormatId::kTernary,
                             FormatId::kTernaryPacked, FormatId::kBinary})
      for (const int64_t group : {int64_t{Scaling::kAll}, int64_t{64}})
        if (m != 8 || group == 64) rows.push_back({f, group, m, Activation::kInt8});
  for (const int64_t m : {1, 64})
    for (const FormatId f : {FormatId::kF16, FormatId::kF32, FormatId::kInt4, FormatId::kCodebook4, FormatId::kFp8})
      rows.push_back({f, f == FormatId::kF16 || f == FormatId::kF32 ? 0 : 64, m, Activation::kF32});
  for (const Row& r : rows) {
    TimedMatmul o;
    o.format = r.format;
    o.group = r.group;
    o.m = r.m;
    o.activation = r.activation;
    o.cold = r.m == 1;
    o.isa = *isa;
    o.seconds = seconds;
    const auto result = time_matmul(o, pool);
    if (!result) {
      std::fprintf(stderr, "error: %s\n", result.error().message().c_str());
      return 1;
    }
    std::printf("%-46s m %3ld %s %8.3f ms (p10 %.3f p90 %.3f) %7.1f GOPS %6.1f GB/s %s\n", result->kernel.c_str(),
                long(r.m), result->cold ? "cold" : "warm", 1e3 * result->seconds, 1e3 * result->seconds_p10,
                1e3 * result->seconds_p90, result->gops, result->gb_s, result->checked ? "checked" : "WRONG");
    std::fflush(stdout);
  }
  return 0;
}
