// gru_bench [seconds]: time of a GRU step on one core per shape, preset and instruction set, answers checked first.
// JSON.

#include <cstdio>
#include <cstdlib>

#include "base/cpu.h"
#include "lowbit/bench.h"

namespace {

using namespace lowbit;

bool print_rows(const GruBenchOptions& o, bool first) {
  const auto report = bench_gru(o);
  if (!report) return false;
  for (const GruBenchRow& row : report->rows) {
    if (!row.checked) return false;
    std::printf(
        "%s\n  {\"n\": %ld, \"c\": %ld, \"h\": %ld, \"t\": %ld, \"preset\": \"%s\", \"weight_bits\": %d, "
        "\"isa\": \"%s\", \"us_per_step\": %.3f, \"stream_us_per_step\": %.3f, \"checked\": true}",
        first ? "" : ",", long(o.batch), long(o.input), long(o.hidden), long(o.steps), o.preset.c_str(), o.weight_bits,
        row.isa.c_str(), row.us_per_step, row.stream_us_per_step);
    std::fflush(stdout);
    first = false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  GruBenchOptions options;
  options.seconds = argc > 1 ? std::atof(argv[1]) : 1;
  options.isas.clear();
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx})
    if (isa_available(isa)) options.isas.emplace_back(isa_name(isa));
  std::printf("{\"cpu\": \"%s\", \"threads\": 1, \"statistic\": \"quickest run\", \"rows\": [",
              cpu_info().model.c_str());
  struct Shape {
    int64_t n, c, h, t;
  };
  bool first = true;
  for (const Shape& s : {Shape{1, 256, 256, 100}, Shape{1, 64, 128, 100}, Shape{1, 400, 400, 100},
                         Shape{1, 512, 512, 100}, Shape{1, 1024, 1024, 20}, Shape{64, 128, 256, 50}})
    for (const char* preset : {"seed8", "gates12", "accurate"}) {
      options.batch = s.n, options.input = s.c, options.hidden = s.h, options.steps = s.t;
      options.preset = preset;
      if (!print_rows(options, first)) {
        std::fprintf(stderr, "error: a kernel's answer is not the reference's\n");
        return 1;
      }
      first = false;
    }
  std::printf("\n]}\n");
  return 0;
}
