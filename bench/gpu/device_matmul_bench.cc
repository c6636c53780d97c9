// Times the CUDA matmuls: answers are checked against the CPU reference first, work is captured into a graph, weights
// rotate over at least 256 MiB (cold) or stay the same (hot). Prints a table and writes JSON.
//   lowbit_device_matmul_bench OUT.json [part ...]     parts: shapes rivals stack formats quantized_mm (all by default)
// LOWBIT_BITNET_KERNEL, LOWBIT_CUBLAS: shared libraries of rivals (rivals.h), timed in the same way where they are
// given.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/float.h"
#include "base/rng.h"
#include "base/try.h"
#include "format/registry.h"
#include "ops/device_matmul.h"
#include "ops/matmul.h"
#include "rivals.h"

namespace lowbit {
namespace {

using cuda::Element;
using Json = nlohmann::json;

constexpr int64_t kColdBytes = int64_t{256} << 20;

struct Bench {
  cuda::Stream stream;
  Buffer x, y, scales;
  Json rows = Json::array();
  ThreadPool pool{8};
};

/// Codes at random, every one inside the alphabet; scales per row, or per `group` columns.
QTensor random_weight(FormatId format, int64_t n, int64_t k, int64_t group, ThreadPool& pool) {
  QTensor w;
  w.format = format;
  w.n = n;
  w.k = k;
  w.scaling = {1, group, ScaleKind::kF32, ZeroKind::kNone};
  const int64_t bytes = n * row_bytes(format, k);
  w.codes = *Buffer::allocate(bytes, "bench");
  w.scales = *Buffer::allocate(4 * n * w.scale_cols(), "bench");
  uint8_t valid[256];
  for (int i = 0; i < 256; ++i) {
    valid[i] = uint8_t(i);
    if (format == FormatId::kTernary)
      for (int f = 0; f < 8; f += 2)
        if ((valid[i] >> f & 3) == 3) valid[i] = uint8_t(valid[i] & ~(2 << f));
  }
  constexpr int64_t kChunk = 1 << 16;
  pool.parallel_for((bytes + kChunk - 1) / kChunk, 1, [&](int64_t b, int64_t e, int) {
    for (int64_t c = b; c < e; ++c) {
      Rng rng(3, uint64_t(c));
      uint64_t v = 0;
      for (int64_t i = c * kChunk; i < std::min(bytes, (c + 1) * kChunk); ++i, v >>= 8) {
        if (i % 8 == 0) v = rng.next();
        w.codes.as<uint8_t>()[i] = valid[v & 255];
      }
    }
  });
  Rng rng(4);
  for (int64_t i = 0; i < n * w.scale_cols(); ++i) w.scales.as<float>()[i] = 0.5f + float(rng.uniform());
  return w;
}

struct Inputs {
  std::vector<float> x;  // bf16 values
  std::vector<int8_t> codes;
  std::vector<float> scales;
};
Inputs random_inputs(int64_t m, int64_t k) {
  Rng rng(5);
  Inputs in;
  for (int64_t i = 0; i < m * k; ++i) in.x.push_back(bf16_to_f32(f32_to_bf16(float(rng.normal()))));
  return in;
}

/// y of the first plan, first and last token, against the CPU's reference: bit for bit.
bool answer_is_right(const QTensor& w, const std::vector<float>& got, const Inputs& in, int64_t m, Activation act,
                     int64_t activation_group, ThreadPool& pool) {
  auto plan = MatmulPlan::make(w, {act, best_isa(), false, activation_group}, pool);
  if (!plan) return false;
  std::vector<float> want(size_t(m * w.n));
  ActivationRows rows;
  if (!rows.prepare(plan->activation(), in.x.data(), m, w.k, w.k, best_isa(), pool)) return false;
  if (!plan->run(rows, nullptr, want.data(), w.n, pool)) return false;
  return std::memcmp(want.data(), got.data(), want.size() * 4) == 0;
}

/// Median seconds per call of `calls` enqueued by `enqueue(i)`, as one graph replayed back to back.
Result<double> time_graph(Bench& b, int calls, const std::function<Status(int)>& enqueue) {
  void* const stream = b.stream.handle();
  LOWBIT_TRY(enqueue(0));
  LOWBIT_TRY(cuda::synchronize(stream));
  LOWBIT_TRY(cuda::Graph::begin(stream));
  Status status;
  for (int i = 0; i < calls && status; ++i) status = enqueue(i);
  auto graph = cuda::Graph::end(stream);
  LOWBIT_TRY(status);
  if (!graph) return tl::unexpected(graph.error());
  LOWBIT_TRY_ASSIGN(const double once, graph->time(stream, 2));
  const int loops = std::clamp(int(4e-3 / once), 1, 400);
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    LOWBIT_TRY_ASSIGN(const double t, graph->time(stream, loops));
    times.push_back(t / loops / calls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Case {
  FormatId format = FormatId::kTernary;
  int64_t m = 1, n = 0, k = 0, group = 0, activation_group = 0;
  bool int8_x = true, overlap = true, cold = true, fallback = false;
};

Result<std::vector<DeviceMatmulPlan>> make_plans(const QTensor& w, const Case& c, int64_t at_most) {
  std::vector<DeviceMatmulPlan> plans;
  int64_t bytes = 0;
  do {
    LOWBIT_TRY_ASSIGN(DeviceMatmulPlan plan,
                      DeviceMatmulPlan::make(w, {Activation::kInt8, c.activation_group, c.fallback, c.m}));
    bytes += plan.code_bytes(c.m);
    plans.push_back(std::move(plan));
  } while (bytes < at_most);
  return plans;
}

/// x of `in` on the device as bf16 and as int8 codes.
Status place_inputs(Bench& b, const Inputs& in, int64_t m, int64_t k, const DeviceMatmulPlan& plan) {
  std::vector<uint16_t> half;
  for (float v : in.x) half.push_back(f32_to_bf16(v));
  LOWBIT_TRY_ASSIGN(Buffer floats, cuda::allocate(2 * m * k, "x"));
  LOWBIT_TRY(cuda::upload(floats, half.data(), 2 * m * k));
  LOWBIT_TRY_ASSIGN(Buffer codes, cuda::allocate(m * k, "x"));
  const int64_t scales = plan.x_groups() ? plan.groups() : 1;
  LOWBIT_TRY_ASSIGN(b.scales, cuda::allocate(4 * m * scales, "x"));
  LOWBIT_TRY(cuda::quantize_activations(floats.data(), Element::kBf16, m, k, k, plan.x_groups() ? plan.group() : 0,
                                        false, codes.as<int8_t>(), k, b.scales.as<float>(), nullptr));
  LOWBIT_TRY(cuda::synchronize(nullptr));
  b.x = floats;
  b.y = codes;  // kept together: both forms of x
  return {};
}

Status time_case(Bench& b, const QTensor& w, const std::vector<DeviceMatmulPlan>& plans, const Inputs& in,
                 const Case& c, const char* part) {
  const DeviceMatmulPlan& first = plans.front();
  LOWBIT_TRY(place_inputs(b, in, c.m, c.k, first));
  const Buffer floats = b.x, codes = b.y;
  const int64_t copies = c.cold ? int64_t(plans.size()) : 1;
  LOWBIT_TRY_ASSIGN(Buffer y, cuda::allocate(4 * c.m * c.n * copies, "y"));
  LOWBIT_TRY(cuda::fill(y, 0xff));
  const DeviceRows rows = {c.int8_x ? codes.data() : floats.data(), c.int8_x ? Element::kInt8 : Element::kBf16, c.m,
                           c.k, c.int8_x ? b.scales.as<float>() : nullptr};
  Buffer workspace;
  if (const int64_t bytes = first.workspace_bytes(c.m, rows.element); bytes > 0) {
    LOWBIT_TRY_ASSIGN(workspace, cuda::allocate(bytes, "workspace"));
  }
  const auto enqueue = [&](int i) -> Status {
    const int64_t at = i % copies;
    return plans[size_t(at)].run(rows, nullptr, y.as<float>() + at * c.m * c.n, Element::kF32, c.n,
                                 workspace.empty() ? nullptr : workspace.as<uint8_t>(), b.stream.handle(), c.overlap);
  };
  const int calls = int(std::max<int64_t>(copies, 40));
  LOWBIT_TRY_ASSIGN(const double seconds, time_graph(b, calls, enqueue));
  std::vector<float> got(size_t(c.m * c.n));
  LOWBIT_TRY(cuda::download(got.data(), y, 4 * c.m * c.n));
  const bool checked = answer_is_right(w, got, in, c.m, Activation::kInt8, c.activation_group, b.pool);
  const double us = 1e6 * seconds, gb_s = 1e-9 * double(first.code_bytes(c.m) + first.factor_bytes()) / seconds;
  b.rows.push_back({{"part", part},
                    {"kernel", first.kernel_name(c.m, rows.element)},
                    {"format", format_info(c.format).name},
                    {"m", c.m},
                    {"n", c.n},
                    {"k", c.k},
                    {"group", c.group},
                    {"x", c.int8_x ? "int8" : "bf16, quantized here"},
                    {"cold", c.cold},
                    {"overlap", c.overlap},
                    {"us", us},
                    {"gb_s", gb_s},
                    {"checked", checked}});
  std::printf("%-8s %-38s m %lld %6lldx%-6lld %s %s %s %8.2f us %7.0f GB/s %s\n", part,
              first.kernel_name(c.m, rows.element).c_str(), static_cast<long long>(c.m), static_cast<long long>(c.n),
              static_cast<long long>(c.k), c.int8_x ? "int8" : "bf16", c.cold ? "cold" : "hot ",
              c.overlap ? "pdl  " : "plain", us, gb_s, checked ? "right" : "WRONG");
  std::fflush(stdout);
  return {};
}

const std::pair<int64_t, int64_t> kShapes[] = {{2560, 2560}, {3840, 2560}, {13824, 2560}, {2560, 6912},  {20480, 3200},
                                               {3200, 3200}, {4800, 3200}, {3200, 10240}, {5120, 27648}, {55296, 5120}};

Status shapes(Bench& b) {
  for (const auto& [n, k] : kShapes) {
    Case c;
    c.n = n;
    c.k = k;
    const QTensor w = random_weight(c.format, n, k, 0, b.pool);
    const Inputs in = random_inputs(1, k);
    LOWBIT_TRY_ASSIGN(const auto plans, make_plans(w, c, kColdBytes));
    for (const bool int8_x : {true, false})
      for (const bool overlap : {false, true})
        for (const bool cold : {true, false}) {
          c.int8_x = int8_x;
          c.overlap = overlap;
          c.cold = cold;
          if (!cold && !int8_x) continue;
          LOWBIT_TRY(time_case(b, w, plans, in, c, "shapes"));
        }
  }
  return {};
}

/// One rival on all shapes: operands at random, weights of `bytes` bytes each, cold.
Status time_rival(Bench& b, const char* name, int64_t n, int64_t k, int64_t bytes,
                  const std::function<bool(const uint8_t*, void*)>& call) {
  const int64_t copies = std::max<int64_t>(2, kColdBytes / bytes + 1);
  LOWBIT_TRY_ASSIGN(Buffer w, cuda::allocate(bytes * copies, "w"));
  std::vector<uint8_t> part(size_t{1} << 22);
  Rng rng(7);
  for (uint8_t& v : part) v = static_cast<uint8_t>(rng.next() & 0x3f);  // as bf16: finite
  for (int64_t at = 0; at < w.size(); at += int64_t(part.size())) {
    const auto length = size_t(std::min<int64_t>(int64_t(part.size()), w.size() - at));
    Buffer slice = Buffer::borrow(w.span().subspan(size_t(at), length), nullptr, Device::kCuda);
    LOWBIT_TRY(cuda::upload(slice, part.data(), slice.size()));
  }
  LOWBIT_TRY_ASSIGN(Buffer y, cuda::allocate(4 * n, "y"));
  const auto enqueue = [&](int i) -> Status {
    if (call(w.as<uint8_t>() + i % copies * bytes, y.data())) return {};
    return fail(ErrorCode::kUnsupported, name, "the call", "");
  };
  LOWBIT_TRY_ASSIGN(const double seconds, time_graph(b, int(std::max<int64_t>(copies, 40)), enqueue));
  b.rows.push_back(
      {{"part", "rivals"}, {"rival", name}, {"m", 1}, {"n", n}, {"k", k}, {"cold", true}, {"us", 1e6 * seconds}});
  std::printf("rivals   %-12s %6lldx%-6lld cold %8.2f us\n", name, static_cast<long long>(n), static_cast<long long>(k),
              1e6 * seconds);
  std::fflush(stdout);
  return {};
}

Status rivals(Bench& b) {
  const Rivals all(b.stream.handle());
  LOWBIT_TRY_ASSIGN(Buffer x, cuda::allocate(1 << 17, "x"));
  LOWBIT_TRY(cuda::fill(x, 1));
  for (const auto& [n, k] : kShapes) {
    const int rows = int(n), columns = int(k);
    if (all.has_bitnet())
      LOWBIT_TRY(time_rival(b, "bitnet", n, k, n * k / 4, [&](const uint8_t* w, void* y) {
        return all.bitnet(x.data(), w, y, x.data(), x.data(), rows, columns);
      }));
    if (all.has_cublas())
      LOWBIT_TRY(time_rival(b, "cublas bf16", n, k, 2 * n * k,
                            [&](const uint8_t* w, void* y) { return all.cublas(x.data(), w, y, rows, columns); }));
  }
  return {};
}

Status formats(Bench& b) {
  const Inputs in = random_inputs(8, 4096);
  for (const FormatId format :
       {FormatId::kBinary, FormatId::kTernary, FormatId::kInt2, FormatId::kInt3, FormatId::kInt4, FormatId::kInt8})
    for (const int64_t group : {0, 64}) {
      Case c;
      c.format = format;
      c.n = c.k = 4096;
      c.group = group;
      c.m = 8;  // one order of the weight for all tokens
      const QTensor w = random_weight(format, c.n, c.k, group, b.pool);
      LOWBIT_TRY_ASSIGN(const auto plans, make_plans(w, c, kColdBytes));
      for (const int64_t m : {1, 2, 8}) {
        c.m = m;
        c.activation_group = 0;
        LOWBIT_TRY(time_case(b, w, plans, in, c, "formats"));
      }
    }
  return {};
}

/// All linear layers of one token of the 2B-4T model, distinct weights, one graph.
Status stack(Bench& b) {
  const std::pair<int64_t, int64_t> layer[] = {{3840, 2560}, {2560, 2560}, {13824, 2560}, {2560, 6912}};
  std::vector<DeviceMatmulPlan> plans;
  int64_t bytes = 0;
  std::vector<QTensor> weights;
  for (const auto& [n, k] : layer) weights.push_back(random_weight(FormatId::kTernary, n, k, 0, b.pool));
  for (int l = 0; l < 30; ++l)
    for (const QTensor& w : weights) {
      LOWBIT_TRY_ASSIGN(DeviceMatmulPlan plan, DeviceMatmulPlan::make(w, {Activation::kInt8, 0, false, 1}));
      bytes += plan.resident_bytes();
      plans.push_back(std::move(plan));
    }
  const Inputs in = random_inputs(1, 6912);
  LOWBIT_TRY(place_inputs(b, in, 1, 6912, plans[3]));
  const Buffer floats = b.x, codes = b.y;
  LOWBIT_TRY_ASSIGN(Buffer y, cuda::allocate(4 * 13824 * 120, "y"));
  for (const bool int8_x : {true, false})
    for (const bool overlap : {false, true}) {
      const DeviceRows rows = {int8_x ? codes.data() : floats.data(), int8_x ? Element::kInt8 : Element::kBf16, 1, 6912,
                               int8_x ? b.scales.as<float>() : nullptr};
      const auto enqueue = [&](int i) {
        return plans[size_t(i)].run(rows, nullptr, y.as<float>() + i * 13824, Element::kF32, 13824, nullptr,
                                    b.stream.handle(), overlap);
      };
      LOWBIT_TRY_ASSIGN(const double seconds, time_graph(b, 120, enqueue));
      // Eager: the same calls without a graph, from the host's clock.
      double eager = 1e9;
      for (int repeat = 0; repeat < 7; ++repeat) {
        LOWBIT_TRY(cuda::synchronize(b.stream.handle()));
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < 120; ++i) LOWBIT_TRY(enqueue(i));
        LOWBIT_TRY(cuda::synchronize(b.stream.handle()));
        eager = std::min(eager, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
      const double us = 1e6 * seconds * 120;
      b.rows.push_back({{"part", "stack"},
                        {"linears", 120},
                        {"x", int8_x ? "int8" : "bf16, quantized here"},
                        {"overlap", overlap},
                        {"us", us},
                        {"eager_us", 1e6 * eager},
                        {"mb", 1e-6 * double(bytes)},
                        {"gb_s", 1e-3 * double(bytes) / us}});
      std::printf("stack    120 linears %s %s %8.1f us in a graph, %8.1f us eager, %5.0f GB/s\n",
                  int8_x ? "int8" : "bf16", overlap ? "pdl  " : "plain", us, 1e6 * eager, 1e-3 * double(bytes) / us);
      std::fflush(stdout);
    }
  return {};
}

/// f32 x on packed weights, seed 000: relative error against double, and time.
Status quantized_mm(Bench& b) {
  constexpr int64_t kN = 4096, kK = 4096;
  const std::pair<int, FormatId> kinds[] = {
      {1, FormatId::kBinary}, {2, FormatId::kInt2}, {4, FormatId::kInt4}, {8, FormatId::kInt8}};
  for (const auto& [bits, format] : kinds) {
    const QTensor w = random_weight(format, kN, kK, 0, b.pool);
    std::vector<Buffer> copies;
    for (int64_t bytes = 0; bytes < kColdBytes; bytes += w.codes.size()) {
      LOWBIT_TRY_ASSIGN(Buffer copy, cuda::allocate(w.codes.size(), "w"));
      LOWBIT_TRY(cuda::upload(copy, w.codes.data(), w.codes.size()));
      copies.push_back(std::move(copy));
    }
    for (const int64_t m : {1, 2, 8, 16, 64}) {
      Rng rng(6);
      std::vector<float> x(size_t(m * kK));
      for (float& v : x) v = float(rng.normal());
      LOWBIT_TRY_ASSIGN(Buffer xb, cuda::allocate(4 * m * kK, "x"));
      LOWBIT_TRY(cuda::upload(xb, x.data(), 4 * m * kK));
      LOWBIT_TRY_ASSIGN(Buffer y, cuda::allocate(4 * m * kN, "y"));
      LOWBIT_TRY(cuda::fill(y, 0xff));
      for (const bool overlap : {false, true}) {
        cuda::QuantizedMm call;
        call.input = xb.data();
        call.output = y.data();
        call.m = m;
        call.n = kN;
        call.k = call.input_stride = kK;
        call.output_stride = kN;
        call.weight_stride = kK * bits / 8;
        call.scale = 0.25f;
        call.stream = b.stream.handle();
        call.overlap = overlap;
        const auto enqueue = [&](int i) {
          call.weight = copies[size_t(i) % copies.size()].as<uint8_t>();
          return cuda::quantized_mm(bits, call);
        };
        LOWBIT_TRY_ASSIGN(const double seconds, time_graph(b, int(std::max<size_t>(copies.size(), 40)), enqueue));
        std::vector<float> got(size_t(m * kN)), values(static_cast<size_t>(kK));
        LOWBIT_TRY(cuda::download(got.data(), y, 4 * m * kN));
        double error = 0, norm = 0;
        std::vector<uint8_t> codes(static_cast<size_t>(kK));
        for (int64_t n = 0; n < kN; n += 16) {
          format_ops(format).unpack(w.row(n), 0, kK, codes.data());
          for (int64_t r = 0; r < m; ++r) {
            double sum = 0;
            for (int64_t k = 0; k < kK; ++k)
              sum += double(format_ops(format).values[codes[size_t(k)]]) * double(x[size_t(r * kK + k)]);
            const double d = double(got[size_t(r * kN + n)]) - 0.25 * sum;
            error += d * d;
            norm += 0.0625 * sum * sum;
          }
        }
        error = std::sqrt(error / norm);
        b.rows.push_back({{"part", "quantized_mm"},
                          {"bits", bits},
                          {"m", m},
                          {"n", kN},
                          {"k", kK},
                          {"cold", true},
                          {"overlap", overlap},
                          {"us", 1e6 * seconds},
                          {"relative_error", error}});
        std::printf("quantized_mm<%d> m %-3lld %s %8.2f us  relative error %.2g\n", bits, static_cast<long long>(m),
                    overlap ? "pdl  " : "plain", 1e6 * seconds, error);
        std::fflush(stdout);
      }
    }
  }
  return {};
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s OUT.json [shapes] [rivals] [stack] [formats] [quantized_mm]\n", argv[0]);
    return 2;
  }
  const auto all = cuda::devices();
  auto stream = cuda::Stream::create();
  if (all.empty() || !stream) {
    std::printf("no CUDA device of compute capability 8.0 or higher: nothing measured\n");
    return 0;
  }
  Bench b{std::move(*stream), {}, {}, {}, Json::array(), ThreadPool(8)};
  const std::set<std::string> wanted(argv + 2, argv + argc);
  const std::pair<const char*, Status (*)(Bench&)> parts[] = {
      {"stack", stack}, {"shapes", shapes}, {"rivals", rivals}, {"formats", formats}, {"quantized_mm", quantized_mm}};
  int failed = 0;
  for (const auto& [name, part] : parts) {
    if (!wanted.empty() && !wanted.contains(name)) continue;
    if (const Status s = part(b); !s) {
      std::printf("%s: %s\n", name, s.error().message().c_str());
      ++failed;
    }
  }
  const Json report = {
      {"device", all[0].name},
      {"multiprocessors", all[0].multiprocessors},
      {"timing", "median of 9 samples, each a graph replayed back to back; cold: weights rotate over 256 MiB"},
      {"rows", b.rows}};
  std::ofstream(argv[1]) << report.dump(1) << "\n";
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lowbit

int main(int argc, char** argv) { return lowbit::run(argc, argv); }
