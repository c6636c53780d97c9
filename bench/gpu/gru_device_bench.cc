// gru_device_bench [all|chosen [SHAPE [PRESET]]]: microseconds of whole sequences on the GPU, codes in, codes out,
// replayed from a graph; answers compared with the CPU's first. `all`: every path and tile that a shape can take, not
// only the one that is chosen; SHAPE: the shape of that number alone (-1: all). JSON.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/cpu.h"
#include "base/rng.h"
#include "gru/model.h"
#include "gru/random_network.h"

namespace {

using namespace lowbit;

struct Shape {
  int64_t t, n, c, h;
};

/// A run's memory on the device and the answer it must give.
struct Run {
  Buffer x, y, state, first_state, order, length, one_step, workspace;
  cuda::GruSequences call;
  std::vector<uint16_t> wanted;  // the last state
};

void answer(const GruSpec& s, const Shape& shape, const std::vector<uint16_t>& x, std::vector<uint16_t>& state) {
  const GruKernel& kernel = gru_kernel(best_isa());
  Buffer packed = *Buffer::allocate(kernel.packed_bytes(s), "bench");
  kernel.pack(s, packed.as<uint8_t>());
  Buffer scratch = *Buffer::allocate(kernel.scratch_bytes(s, shape.n), "bench");
  std::vector<int32_t> ih(static_cast<size_t>(shape.n * 3 * s.h));
  for (int64_t t = 0; t < shape.t; ++t) {
    kernel.input(s, packed.as<uint8_t>(), x.data() + t * shape.n * s.c, shape.n, ih.data(), scratch.as<uint8_t>());
    kernel.step(s, packed.as<uint8_t>(), ih.data(), shape.n, state.data(), nullptr, scratch.as<uint8_t>());
  }
}

Run make_run(const GruSpec& s, const Shape& shape) {
  Rng rng(2);
  Run r;
  const GruGrid &gx = s.grid[kSlotX], &gh = s.grid[kSlotH];
  std::vector<uint16_t> x(static_cast<size_t>(shape.t * shape.n * s.c));
  for (auto& q : x) q = static_cast<uint16_t>(rng.below(static_cast<uint64_t>(gx.hi - gx.lo + 1)));
  r.wanted.assign(static_cast<size_t>(shape.n * s.h), static_cast<uint16_t>(gh.zp - gh.lo));
  const auto up = [](const void* from, size_t bytes) {
    Buffer b = *cuda::allocate(int64_t(bytes), "bench");
    (void)cuda::upload(b, from, int64_t(bytes));
    return b;
  };
  r.first_state = up(r.wanted.data(), 2 * r.wanted.size());
  r.state = up(r.wanted.data(), 2 * r.wanted.size());
  answer(s, shape, x, r.wanted);
  std::vector<uint8_t> planes(static_cast<size_t>(cuda::gru_codes_bytes(gx, shape.t * shape.n, s.c, r.call.x)));
  for (size_t i = 0; i < x.size(); ++i)
    for (int l = 0; l < cuda::gru_planes(gx); ++l)
      planes[i / size_t(s.c) * size_t(r.call.x.stride) + i % size_t(s.c) + size_t(l * r.call.x.plane_bytes)] =
          static_cast<uint8_t>(x[i] >> (8 * l));
  r.x = up(planes.data(), planes.size());
  r.y = *cuda::allocate(cuda::gru_codes_bytes(gh, shape.t * shape.n, s.h, r.call.y), "bench");
  std::vector<int32_t> order(static_cast<size_t>(shape.n)), length(static_cast<size_t>(shape.n), int32_t(shape.t));
  std::iota(order.begin(), order.end(), 0);
  r.order = up(order.data(), 4 * order.size());
  r.length = up(length.data(), 4 * length.size());
  std::fill(length.begin(), length.end(), 1);
  r.one_step = up(length.data(), 4 * length.size());
  r.call.steps = shape.t;
  r.call.batch = shape.n;
  r.call.x.data = r.x.as<uint8_t>();
  r.call.y.data = r.y.as<uint8_t>();
  r.call.state = r.state.as<uint16_t>();
  r.call.order = r.order.as<int32_t>();
  r.call.length = r.length.as<int32_t>();
  return r;
}

struct Times {
  double us = 0, quickest = 0, slowest = 0,
         one_step = 0;  // one_step: the input product of all steps, one of the others
  bool checked = false;
};

/// Seconds of a graph of the call, ascending.
std::vector<double> replay(const cuda::GruDeviceCell& cell, const cuda::GruSequences& call, void* stream) {
  std::vector<double> seconds;
  if (!cuda::Graph::begin(stream) || !cell.run(call)) return {0};
  const auto graph = cuda::Graph::end(stream);
  if (!graph || !graph->launch(stream) || !cuda::synchronize(stream)) return {0};
  for (int i = 0; i < 9; ++i) seconds.push_back(graph->time(stream, 10).value_or(0) / 10);
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

Times time_cell(const cuda::GruDeviceCell& cell, Run& r) {
  r.workspace = *cuda::allocate(cell.workspace_bytes(r.call.steps, r.call.batch), "bench");
  r.call.workspace = r.workspace.as<uint8_t>();
  const cuda::Stream stream = std::move(*cuda::Stream::create());
  r.call.stream = stream.handle();
  Times t;
  std::vector<uint16_t> got(r.wanted.size());
  (void)cuda::fill(r.y, 0xa5);
  if (!cell.run(r.call) || !cuda::synchronize(stream.handle())) return t;
  (void)cuda::download(got.data(), r.state, int64_t(2 * got.size()));
  // The last row of y is the last state; sequence n of it too.
  std::vector<uint8_t> y(size_t(r.y.size()));
  (void)cuda::download(y.data(), r.y, r.y.size());
  t.checked = got == r.wanted;
  const int64_t h = int64_t(got.size()) / r.call.batch;
  for (int64_t n = 0; n < r.call.batch; ++n)
    for (int64_t j = 0; j < h; ++j)
      t.checked = t.checked && y[size_t(((r.call.steps - 1) * r.call.batch + n) * r.call.y.stride + j)] ==
                                   (got[size_t(n * h + j)] & 0xff);
  const auto seconds = replay(cell, r.call, stream.handle());
  t.us = 1e6 * seconds[seconds.size() / 2];
  t.quickest = 1e6 * seconds.front();
  t.slowest = 1e6 * seconds.back();
  cuda::GruSequences short_call = r.call;
  short_call.length = r.one_step.as<int32_t>();
  const auto one = replay(cell, short_call, stream.handle());
  t.one_step = 1e6 * one[one.size() / 2];
  // The state went on from where it was; put the first one back for the next variant.
  std::vector<uint16_t> first(got.size());
  (void)cuda::download(first.data(), r.first_state, int64_t(2 * first.size()));
  (void)cuda::upload(r.state, first.data(), int64_t(2 * first.size()));
  return t;
}

}  // namespace

int main(int argc, char** argv) {
  const bool all = argc > 1 && std::strcmp(argv[1], "all") == 0;
  const auto devices = cuda::devices();
  if (devices.empty()) {
    std::fprintf(stderr, "no CUDA device of compute capability 8.0 or higher\n");
    return 77;
  }
  std::printf(
      "{\"device\": \"%s\", \"mode\": \"graph\", \"state\": \"hot\", \"statistic\": \"median of 9 times 10 replays\", "
      "\"rows\": [",
      devices[0].name.c_str());
  const int only = argc > 2 ? std::atoi(argv[2]) : -1;
  bool first = true, right = true;
  constexpr Shape kShapes[] = {{100, 1, 64, 64},   {100, 64, 256, 256}, {500, 32, 512, 512}, {100, 128, 1024, 1024},
                               {100, 1, 256, 256}, {100, 1, 512, 512},  {50, 64, 128, 256}};
  for (const char* preset : {"seed8", "accurate"}) {
    if (argc > 3 && std::strcmp(argv[3], preset) != 0) continue;
    for (const Shape& shape : kShapes) {
      if (only >= 0 && &shape != &kShapes[std::min<size_t>(size_t(only), std::size(kShapes) - 1)]) continue;
      const auto random = RandomGru::make(20, 1, shape.c, shape.h, preset, 8);
      if (!random) return 1;
      const GruSpec& s = random->model().impl().cells[0]->spec();
      Run run = make_run(s, shape);
      std::vector<std::string> seen;
      for (const cuda::GruPath path : {cuda::GruPath::kAuto, cuda::GruPath::kFused, cuda::GruPath::kBlock,
                                       cuda::GruPath::kCluster, cuda::GruPath::kGrid})
        for (const auto& [tile, warps] : {std::pair{0, 0},
                                          {8, 0},
                                          {8, 1},
                                          {8, 2},
                                          {8, 4},
                                          {8, 8},
                                          {16, 0},
                                          {16, 2},
                                          {16, 4},
                                          {16, 8},
                                          {24, 0},
                                          {32, 0}}) {
          if ((path == cuda::GruPath::kAuto) != (tile == 0) || (!all && tile != 0)) continue;
          for (const int split : {0, 1, 2}) {
            if ((path == cuda::GruPath::kAuto) != (split == 0)) continue;
            const auto cell = cuda::GruDeviceCell::make(s, {path, tile, warps, split});
            if (!cell) continue;
            const std::string name = cell->kernel(shape.n);
            if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
            seen.push_back(name);
            const Times t = time_cell(*cell, run);
            right = right && t.checked;
            std::printf(
                "%s\n  {\"t\": %ld, \"n\": %ld, \"c\": %ld, \"h\": %ld, \"preset\": \"%s\", \"kernel\": \"%s\", "
                "\"chosen\": %s, "
                "\"us\": %.2f, \"quickest_us\": %.2f, \"slowest_us\": %.2f, \"one_step_us\": %.2f, \"us_per_step\": "
                "%.4f, \"checked\": %s}",
                first ? "" : ",", long(shape.t), long(shape.n), long(shape.c), long(shape.h), preset, name.c_str(),
                path == cuda::GruPath::kAuto ? "true" : "false", t.us, t.quickest, t.slowest, t.one_step,
                t.us / double(shape.t), t.checked ? "true" : "false");
            std::fflush(stdout);
            first = false;
          }
        }
    }
  }
  std::printf("\n]}\n");
  return right ? 0 : 1;
}
