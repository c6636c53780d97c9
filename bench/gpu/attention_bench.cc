// Times attention on f16 pages on a GPU: prompts, and one new row per sequence with its rotation. Every answer is first
// compared with the CPU's, bit for bit, on a short sequence, and with another kernel's at the size that is timed.
// Usage: lowbit_attention_bench [prompt | decode [SHAPE [sequences positions]]]: those alone.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/float.h"
#include "base/rng.h"
#include "kernels/cuda_api.h"
#include "kernels/cuda_step_api.h"
#include "kernels/registry.h"
#include "ops/attention.h"

namespace lowbit {
namespace {

constexpr int64_t kMostLayers = 24, kMostBytes = int64_t{2} << 30;  // of the pages that decoding goes through
constexpr int kReplays = 3;

struct Shape {
  const char* name;
  int64_t heads, kv_heads, head_dim;
  int64_t group() const { return heads / kv_heads; }
  float scale() const { return 1.0f / std::sqrt(float(head_dim)); }
};
constexpr Shape kShapes[] = {{"SmolLM2", 9, 3, 64}, {"2B-4T", 20, 5, 128}, {"8B", 32, 8, 128}};

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s\n", result.error().message().c_str());
  std::exit(1);
}
void must(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().message().c_str());
  std::exit(1);
}

template <class T>
Buffer on_device(const std::vector<T>& values) {
  Buffer buffer = must(cuda::allocate(int64_t(values.size() * sizeof(T)), "bench"));
  must(cuda::upload(buffer, values.data(), buffer.size()));
  return buffer;
}
std::vector<float> normal_floats(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = float(rng.normal());
  return v;
}

/// Sequences of so many positions behind `position`, their pages full of random numbers.
struct Case {
  Shape shape;
  int64_t sequences, position, rows, layers, pages;
  Buffer memory, tables, of_batch, of_rows, q, k, v, cos, sin, out, results, arrived;

  Case(const Shape& s, int64_t count, int64_t behind, int64_t m, int64_t layers_of_page)
      : shape(s),
        sequences(count),
        position(behind),
        rows(m),
        layers(layers_of_page),
        pages((behind + m + kKvPage - 1) / kKvPage) {
    const int64_t halves = layers * 2 * s.kv_heads * kKvPage * s.head_dim, width = s.heads * s.head_dim;
    const std::vector<float> some = normal_floats(1 << 16, 1);
    std::vector<uint16_t> page(size_t(sequences * pages * halves));
    for (size_t i = 0; i < page.size(); ++i) page[i] = f32_to_f16(some[(i + i / 65521) % some.size()]);
    memory = on_device(page);
    std::vector<uint64_t> addresses;
    for (int64_t i = 0; i < sequences * pages; ++i)
      addresses.push_back(reinterpret_cast<uint64_t>(memory.as<uint16_t>() + i * halves));
    tables = on_device(addresses);
    std::vector<cuda::BatchSequence> batch;
    std::vector<cuda::BatchRow> batch_rows;
    for (int64_t i = 0; i < sequences; ++i) {
      batch.push_back({int32_t(i * m), int32_t(m), int32_t(behind)});
      for (int64_t r = 0; r < m; ++r) batch_rows.push_back({int32_t(i), int32_t(behind + r)});
    }
    of_batch = on_device(batch);
    of_rows = on_device(batch_rows);
    q = on_device(normal_floats(sequences * m * width, 2));
    k = on_device(normal_floats(sequences * m * s.kv_heads * s.head_dim, 3));
    v = on_device(normal_floats(sequences * m * s.kv_heads * s.head_dim, 4));
    cos = on_device(normal_floats((behind + m) * s.head_dim / 2, 5));
    sin = on_device(normal_floats((behind + m) * s.head_dim / 2, 6));
    out = must(cuda::allocate(sequences * m * width * 4, "out"));
    arrived = on_device(std::vector<uint32_t>(size_t(sequences * s.kv_heads)));
  }
  cuda::PagedKv kv(int64_t layer) const {
    return {tables.as<uint64_t>(), pages, layer, shape.kv_heads, shape.head_dim};
  }
  std::vector<float> output() const {
    std::vector<float> host(size_t(out.size() / 4));
    must(cuda::download(host.data(), out, out.size()));
    return host;
  }
};

/// A case's queries in tiles of so many.
struct Tiles {
  Buffer tiles, results;
  int64_t count = 0;
  int queries;
  Tiles(const Case& c, int queries_of_tile, bool apart) : queries(queries_of_tile) {
    std::vector<cuda::QueryTile> all;
    for (int64_t s = 0; s < c.sequences; ++s)
      for (int64_t first = 0; first < c.rows * c.shape.group(); first += queries)
        all.push_back({int32_t(s), int32_t(first)});
    tiles = on_device(all);
    count = int64_t(all.size());
    if (!apart) return;
    const int64_t floats = cuda::attend_results_floats(count, queries, spans(c), c.shape.kv_heads, c.shape.head_dim);
    results = must(cuda::allocate(floats * 4, "results"));
  }
  static int64_t spans(const Case& c) { return (c.position + c.rows - 1) / kAttentionSpan + 1; }
  cuda::AttendPages call(const Case& c, int64_t layer, void* stream) const {
    cuda::AttendPages a;
    a.q = c.q.as<float>();
    a.out = const_cast<float*>(c.out.as<float>());
    a.sequences = c.of_batch.as<cuda::BatchSequence>();
    a.tiles = tiles.as<cuda::QueryTile>();
    a.tile_count = count;
    a.tile_queries = queries;
    a.kv = c.kv(layer);
    a.heads = c.shape.heads;
    a.scale = c.shape.scale();
    a.results = results.empty() ? nullptr : const_cast<float*>(results.as<float>());
    a.spans = spans(c);
    a.stream = stream;
    return a;
  }
};

void expect_same(const std::vector<float>& got, const std::vector<float>& wanted, const char* what) {
  if (got.size() == wanted.size() && std::memcmp(got.data(), wanted.data(), got.size() * 4) == 0) return;
  std::printf("WRONG: %s\n", what);
  std::exit(1);
}

/// The median of some graphs' times, in microseconds of one call; call(i) enqueues number i.
template <class Call>
double time_calls(void* stream, int64_t count, const Call& call) {
  for (int64_t i = 0; i < count; ++i) call(i);
  must(cuda::synchronize(stream));
  must(cuda::Graph::begin(stream));
  for (int64_t i = 0; i < count; ++i) call(i);
  const cuda::Graph graph = must(cuda::Graph::end(stream));
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) times.push_back(must(graph.time(stream, kReplays)));
  std::ranges::sort(times);
  return 1e6 * times[3] / double(kReplays * count);
}

/// A short prompt against the CPU.
void check_prompt(const Shape& shape, ThreadPool& pool, void* stream) {
  const VectorOps& ops = *ref_table().vector;
  const Case c(shape, 1, 150, 170, 1);
  auto cache = must(KvCache::make(uniform_kv_groups(1, shape.kv_heads, shape.head_dim, 0), c.pages * kKvPage));
  must(cache.reserve(c.position + c.rows));
  must(cache.open(c.position + c.rows));
  const int64_t bytes = c.memory.size() / c.pages;
  for (int64_t p = 0; p < c.pages; ++p) {
    const Buffer page = Buffer::borrow({const_cast<std::byte*>(c.memory.as<std::byte>()) + p * bytes, size_t(bytes)},
                                       nullptr, Device::kCuda);
    must(cuda::download(const_cast<uint16_t*>(cache.keys_f16(0, 0, p)), page, bytes));
  }
  auto attention = must(Attention::make(ops, {shape.heads, shape.kv_heads, shape.head_dim, shape.scale()}, pool));
  must(attention.reserve(c.position + c.rows));
  std::vector<float> q(size_t(c.q.size() / 4)), wanted(q.size());
  must(cuda::download(q.data(), c.q, c.q.size()));
  attention.run({0, c.position, c.rows, q.data(), wanted.data(), 0}, cache);
  for (const bool apart : {false, true}) {
    const Tiles tiles(c, cuda::kPromptQueries, apart);
    must(cuda::attend_pages(tiles.call(c, 0, stream)));
    must(cuda::synchronize(stream));
    expect_same(c.output(), wanted, shape.name);
  }
}

/// The largest distance of two rows of a head, relative to its length.
double distance(const std::vector<float>& got, const std::vector<float>& wanted, int64_t d) {
  double most = 0;
  for (size_t i = 0; i < wanted.size(); i += size_t(d)) {
    double apart = 0, length = 0;
    for (size_t e = i; e < i + size_t(d); ++e) {
      apart += (double(got[e]) - wanted[e]) * (double(got[e]) - wanted[e]);
      length += double(wanted[e]) * wanted[e];
    }
    most = std::max(most, std::sqrt(apart / length));
    if (!(apart >= 0)) return INFINITY;
  }
  return most;
}

cuda::AttendPages on_tensor_cores(cuda::AttendPages call) {
  call.exact = false;
  return call;
}

void time_prompt(const Shape& shape, int64_t rows, int64_t position, void* stream) {
  const Case c(shape, 1, position, rows, 1);
  const Tiles few(c, 16, false), many(c, cuda::kPromptQueries, false), apart(c, cuda::kPromptQueries, true);
  const auto output = [&](const cuda::AttendPages& call) {
    must(cuda::attend_pages(call));
    must(cuda::synchronize(stream));
    return c.output();
  };
  const std::vector<float> wanted = output(few.call(c, 0, stream));
  expect_same(output(many.call(c, 0, stream)), wanted, "tiles of a prompt");
  expect_same(output(apart.call(c, 0, stream)), wanted, "spans apart");
  const std::vector<float> got = output(on_tensor_cores(many.call(c, 0, stream)));
  const double error = distance(got, wanted, shape.head_dim);
  expect_same(output(on_tensor_cores(few.call(c, 0, stream))), got, "tiles on tensor cores");
  expect_same(output(on_tensor_cores(apart.call(c, 0, stream))), got, "spans apart on tensor cores");
  const double seen = double(rows) * double(position) + double(rows) * double(rows + 1) / 2;
  const double flop = 4.0 * seen * double(shape.heads * shape.head_dim);
  std::printf("prompt %-8s %5d rows behind %5d:", shape.name, int(rows), int(position));
  for (const bool exact : {true, false})
    for (const Tiles* tiles : {&many, &apart}) {
      cuda::AttendPages call = tiles->call(c, 0, stream);
      call.exact = exact;
      const double us = time_calls(stream, exact ? 2 : 4, [&](int64_t) { must(cuda::attend_pages(call)); });
      std::printf("  %s%s %8.1f us %5.1f TFLOP/s", exact ? "exact" : "tensor", tiles == &apart ? ", apart" : "", us,
                  1e-6 * flop / us);
    }
  std::printf("  relative %.1e\n", error);
  std::fflush(stdout);
}

void time_decode(const Shape& shape, int64_t sequences, int64_t position, void* stream) {
  const double bytes = 4.0 * double(sequences * position * shape.kv_heads * shape.head_dim);
  const int64_t layers = std::clamp(int64_t(double(kMostBytes) / bytes), int64_t{2}, kMostLayers);
  const Case c(shape, sequences, position, 1, layers);
  const int64_t spans = Tiles::spans(c);
  const Tiles tiles(c, cuda::attention_tile_queries(shape.group()), spans > 1), alone(c, 16, false);
  std::printf("decode %-8s B=%-2d behind %5d:", shape.name, int(sequences), int(position));
  std::vector<float> results[2];
  for (const bool exact : {true, false}) {
    const auto step = [&](int64_t layer) {
      cuda::AttendPages call = tiles.call(c, layer, stream);
      call.exact = exact;
      must(cuda::attend_step({call, c.k.as<float>(), c.v.as<float>(), c.cos.as<float>(), c.sin.as<float>(), true,
                              const_cast<uint32_t*>(c.arrived.as<uint32_t>())}));
    };
    step(1);
    must(cuda::synchronize(stream));
    results[exact ? 0 : 1] = c.output();
    const double us = time_calls(stream, layers, step);
    std::printf("  %s %7.2f us %6.0f GB/s", exact ? "exact" : "tensor", us, 1e-3 * bytes / us);
  }
  std::printf("  relative %.1e\n", distance(results[1], results[0], shape.head_dim));
  std::fflush(stdout);
  must(cuda::rotate_and_store({const_cast<float*>(c.q.as<float>()), c.k.as<float>(), c.v.as<float>(), c.cos.as<float>(),
                               c.sin.as<float>(), c.of_rows.as<cuda::BatchRow>(), c.kv(1), sequences, shape.heads,
                               stream}));
  for (const bool exact : {true, false}) {
    cuda::AttendPages call = alone.call(c, 1, stream);
    call.exact = exact;
    must(cuda::attend_pages(call));
    must(cuda::synchronize(stream));
    expect_same(results[exact ? 0 : 1], c.output(), "a row of each sequence");
  }
}

void run(const std::string& only, const std::string& of_shape, int64_t only_sequences, int64_t only_position) {
  must(cuda::use_device(0));
  const cuda::Stream stream = must(cuda::Stream::create());
  ThreadPool pool(4);
  for (const Shape& shape : kShapes) {
    if (only == "decode" || (!of_shape.empty() && of_shape != shape.name)) continue;
    check_prompt(shape, pool, stream.handle());
    for (const auto& [rows, position] :
         {std::pair<int64_t, int64_t>{512, 1536}, {512, 0}, {2048, 0}, {512, 4096}, {64, 4096}, {7, 520}})
      time_prompt(shape, rows, position, stream.handle());
  }
  for (const Shape& shape : kShapes) {
    if (only == "prompt" || (!of_shape.empty() && of_shape != shape.name)) continue;
    for (const auto& [sequences, position] : {std::pair<int64_t, int64_t>{1, 200},
                                              {1, 520},
                                              {1, 2060},
                                              {1, 4090},
                                              {1, 8200},
                                              {1, 16380},
                                              {1, 65520},
                                              {16, 520},
                                              {32, 520},
                                              {16, 4100},
                                              {4, 16380}})
      if (only_sequences == 0 || (sequences == only_sequences && position == only_position))
        time_decode(shape, sequences, position, stream.handle());
  }
}

}  // namespace
}  // namespace lowbit

int main(int argc, char** argv) {
  lowbit::run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "", argc > 3 ? std::atoi(argv[3]) : 0,
              argc > 4 ? std::atoi(argv[4]) : 0);
  return 0;
}
