// gru_bench [seconds]: time of a GRU step on one core per shape, preset and instruction set, answers checked first. JSON.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/cpu.h"
#include "base/rng.h"
#include "lowbit/gru.h"

namespace {

using namespace lowbit;

struct Shape {
  int64_t n, c, h, t;
};

std::vector<float> normals(Rng& rng, int64_t count, double scale) {
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = static_cast<float>(scale * rng.normal());
  return v;
}

/// Seconds of the quickest of many calls: on a shared machine only that says what the code costs.
template <class F>
double best_seconds(double limit, const F& call) {
  double best = 1e9;
  const auto start = std::chrono::steady_clock::now();
  for (auto now = start; std::chrono::duration<double>(now - start).count() < limit;) {
    const auto before = std::chrono::steady_clock::now();
    call();
    now = std::chrono::steady_clock::now();
    best = std::min(best, std::chrono::duration<double>(now - before).count());
  }
  return best;
}

bool time_shape(const Shape& s, const char* preset, int weight_bits, double seconds, bool first) {
  Rng rng(1);
  GruNetwork net;
  net.cells.push_back({s.c, s.h, normals(rng, 3 * s.h * s.c, 0.05), normals(rng, 3 * s.h * s.h, 0.05),
                       normals(rng, 3 * s.h, 0.1), normals(rng, 3 * s.h, 0.1)});
  const auto x = normals(rng, s.t * s.n * s.c, 1);
  GruInput in;
  in.steps = s.t;
  in.batch = s.n;
  in.x = x;
  const auto ranges = GruRanges::measure(net, std::span(&in, 1));
  auto config = gru_preset(preset);
  if (!ranges || !config) return false;
  config->w.bits = config->r.bits = weight_bits;
  const auto model = GruModel::quantize(net, *ranges, *config);
  if (!model) return false;
  GruModel::RunOptions options;
  options.isa = "scalar";
  const auto wanted = model->run(in, options);
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (!isa_available(isa)) continue;
    options.isa = isa_name(isa);
    if (model->run(in, options)->y != wanted->y) return false;
    const double whole = best_seconds(seconds, [&] { (void)model->run(in, options); });
    auto stream = model->stream(s.n, options.isa);
    std::vector<float> y(static_cast<size_t>(s.n * s.h));
    const double streamed = best_seconds(seconds, [&] {
      for (int64_t t = 0; t < s.t; ++t)
        (void)stream->step(std::span(x).subspan(static_cast<size_t>(t * s.n * s.c), static_cast<size_t>(s.n * s.c)), y);
    });
    std::printf(
        "%s\n  {\"n\": %ld, \"c\": %ld, \"h\": %ld, \"t\": %ld, \"preset\": \"%s\", \"weight_bits\": %d, \"isa\": "
        "\"%s\", "
        "\"us_per_step\": %.3f, \"stream_us_per_step\": %.3f, \"checked\": true}",
        first && isa == Isa::kAvx2 ? "" : ",", long(s.n), long(s.c), long(s.h), long(s.t), preset, weight_bits,
        options.isa.c_str(), 1e6 * whole / double(s.t), 1e6 * streamed / double(s.t));
    std::fflush(stdout);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  std::printf("{\"cpu\": \"%s\", \"threads\": 1, \"statistic\": \"quickest run\", \"rows\": [",
              cpu_info().model.c_str());
  bool first = true;
  for (const Shape& s : {Shape{1, 256, 256, 100}, Shape{1, 64, 128, 100}, Shape{1, 400, 400, 100},
                         Shape{1, 512, 512, 100}, Shape{1, 1024, 1024, 20}, Shape{64, 128, 256, 50}})
    for (const char* preset : {"seed8", "gates12", "accurate"}) {
      if (!time_shape(s, preset, 8, seconds, first)) {
        std::fprintf(stderr, "error: a kernel's answer is not the reference's\n");
        return 1;
      }
      first = false;
    }
  std::printf("\n]}\n");
  return 0;
}
