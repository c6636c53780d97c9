// Times attention of one new row per sequence behind a long context on a GPU, pages as f16 and packed: 32 heads, 8 KV
// heads of 128. Graphs that go through at least 512 MiB of pages. Usage: lowbit_packed_attention_bench
// [teams, 0: as the library chooses] [format [sequences [positions [heads]]]]: those alone.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/float.h"
#include "base/rng.h"
#include "kernels/cuda_api.h"
#include "kernels/cuda_packed_api.h"
#include "ops/kv_pool.h"

namespace lowbit {
namespace {

int64_t heads = 32;
constexpr int64_t kKvHeads = 8, kHeadDim = 128, kLeastBytes = int64_t{512} << 20, kSourcePages = 8;
constexpr int64_t kRoomFloats = int64_t{16} << 20;  // for results of the fast kernel
constexpr int kReplays = 2;
constexpr int64_t kF16Page = 2 * 2 * kKvPage * kKvHeads * kHeadDim;  // bytes, of one layer

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

/// The queries that all formats share: a row of each sequence.
struct Rows {
  int64_t sequences, position;
  int tile_queries;
  Buffer q, out, of_batch, tiles, results, arrived;
};
Rows make_rows(int64_t sequences, int64_t length, int tile_queries) {
  Rng rng(1);
  std::vector<float> q(size_t(sequences * heads * kHeadDim));
  for (float& v : q) v = float(rng.normal());
  std::vector<cuda::BatchSequence> of_batch;
  std::vector<cuda::QueryTile> tiles;
  for (int64_t s = 0; s < sequences; ++s) {
    of_batch.push_back({int32_t(s), 1, int32_t(length - 1)});
    for (int64_t first = 0; first < heads / kKvHeads; first += tile_queries)
      tiles.push_back({int32_t(s), int32_t(first)});
  }
  const auto floats =
      cuda::attend_results_floats(int64_t(tiles.size()), tile_queries, length / kAttentionSpan, kKvHeads, kHeadDim);
  return {sequences,
          length - 1,
          tile_queries,
          on_device(q),
          on_device(q),
          on_device(of_batch),
          on_device(tiles),
          must(cuda::allocate(floats * 4, "results")),
          on_device(std::vector<uint32_t>(tiles.size() * size_t(kKvHeads)))};
}
cuda::AttendPages call_of(const Rows& rows, const cuda::PagedKv& kv, bool apart, void* stream) {
  cuda::AttendPages call;
  call.q = rows.q.as<float>();
  call.out = const_cast<float*>(rows.out.as<float>());
  call.sequences = rows.of_batch.as<cuda::BatchSequence>();
  call.tiles = rows.tiles.as<cuda::QueryTile>();
  call.tile_count = rows.tiles.size() / int64_t{sizeof(cuda::QueryTile)};
  call.tile_queries = rows.tile_queries;
  call.kv = kv;
  call.heads = heads;
  call.scale = 1.0f / std::sqrt(float(kHeadDim));
  call.results = apart ? const_cast<float*>(rows.results.as<float>()) : nullptr;
  call.spans = (rows.position + 1) / kAttentionSpan;
  call.stream = stream;
  return call;
}

/// Some f16 pages of random numbers, which stand for all where the packed ones are timed.
Buffer source_pages() {
  Rng rng(2);
  std::vector<uint16_t> values(size_t(kSourcePages * kF16Page / 2));
  for (uint16_t& v : values) v = f32_to_f16(float(rng.normal()));
  return on_device(values);
}

/// The best of some graphs' times, in microseconds of one call; call(i) enqueues number i.
template <class Call>
double time_calls(void* stream, int64_t count, const Call& call) {
  for (int64_t i = 0; i < count; ++i) call(i);
  must(cuda::synchronize(stream));
  must(cuda::Graph::begin(stream));
  for (int64_t i = 0; i < count; ++i) call(i);
  const cuda::Graph graph = must(cuda::Graph::end(stream));
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(must(graph.time(stream, kReplays)));
  std::ranges::sort(times);
  return 1e6 * times[2] / double(kReplays * count);
}

/// Spans of a tile by one thread block, or apart, both with the CPU's bits; or the kernel that models take without
/// --exact.
enum class Way { kTogether, kApart, kFast };

void time_packed(const std::string& name, int64_t sequences, int64_t length, Way way, int teams, void* stream) {
  const KvFormat format = must(parse_kv_format(name, kDefaultResidual));
  const PackedHeadBytes head = packed_head_bytes(format, kHeadDim);
  const int64_t page_bytes = kKvHeads * (head.codes() + head.sides()), pages = length / kKvPage;
  const int64_t packed = format.packed_pages(length - 1), bytes = sequences * packed * page_bytes;
  const int64_t layers = std::max<int64_t>(1, kLeastBytes / bytes);
  Buffer memory = must(cuda::allocate(layers * bytes, "packed pages"));
  const Buffer source = source_pages();
  std::vector<uint64_t> f16(size_t(sequences * pages)), tables(f16.size() * size_t(layers));
  std::vector<cuda::PackTask> tasks;
  for (int64_t s = 0; s < sequences; ++s)
    for (int64_t p = 0; p < pages; ++p) {
      f16[size_t(s * pages + p)] =
          reinterpret_cast<uint64_t>(source.data()) + uint64_t((s + p) % kSourcePages * kF16Page);
      if (p >= packed) continue;
      tasks.push_back({int32_t(s), int32_t(p + 1)});
      for (int64_t l = 0; l < layers; ++l)
        tables[size_t((l * sequences + s) * pages + p)] =
            reinterpret_cast<uint64_t>(memory.data()) + uint64_t(l * bytes + (s * packed + p) * page_bytes);
    }
  const Buffer f16_d = on_device(f16), tables_d = on_device(tables), tasks_d = on_device(tasks);
  const Rows rows = make_rows(sequences, length, cuda::packed_tile_queries(heads / kKvHeads, !format.fp8));
  Buffer room = must(cuda::allocate(kRoomFloats * 4, "results"));
  const auto kv_of = [&](int64_t layer) {
    cuda::PackedKv kv;
    kv.pages = {f16_d.as<uint64_t>(), pages, 0, kKvHeads, kHeadDim};
    kv.packed = {tables_d.as<uint64_t>() + layer * sequences * pages,
                 format.key_bits,
                 format.value_bits,
                 format.fp8,
                 format.residual / kKvPage,
                 head.codes(),
                 head.key_codes,
                 head.sides(),
                 head.key_side,
                 kKvHeads * head.codes()};
    return kv;
  };
  const double pack_us = time_calls(stream, layers, [&](int64_t i) {
    must(cuda::pack_pages({kv_of(i), tasks_d.as<cuda::PackTask>(), int64_t(tasks.size()), stream}));
  });
  const double us = time_calls(stream, layers, [&](int64_t i) {
    const cuda::PackedKv kv = kv_of(i);
    cuda::AttendPacked call = {call_of(rows, kv.pages, way != Way::kTogether, stream), kv, teams,
                               const_cast<uint32_t*>(rows.arrived.as<uint32_t>())};
    call.attend.exact = way != Way::kFast;
    if (way == Way::kFast) call.room = room.as<float>(), call.room_floats = kRoomFloats;
    call.overlap = true;
    must(cuda::attend_packed(call));
  });
  const char* const name_of_way = way == Way::kTogether ? "together" : way == Way::kApart ? "apart" : "fast";
  std::printf("%-5s B=%-2d L=%-6d %-8s teams %d: %8.2f us %6.0f GB/s, packing %.2f us per 64 positions\n", name.c_str(),
              int(sequences), int(length), name_of_way, teams, us, 1e-3 * double(bytes) / us,
              pack_us / double(packed * sequences));
  std::fflush(stdout);
}

void run(int teams, const std::string& format, int64_t only_sequences, int64_t only_length) {
  must(cuda::use_device(0));
  const cuda::Stream stream = must(cuda::Stream::create());
  for (const char* kv : {"int4", "int2", "int8", "k4v2", "int3", "fp8"}) {
    if (!format.empty() && format != kv) continue;
    for (const auto& [sequences, length] :
         {std::pair<int64_t, int64_t>{1, 4096}, {1, 16384}, {1, 65536}, {16, 4096}, {16, 16384}, {16, 65536}}) {
      if ((only_sequences > 0 && sequences != only_sequences) || (only_length > 0 && length != only_length)) continue;
      for (const Way way : {Way::kFast, Way::kApart, Way::kTogether}) {
        if (way == Way::kApart ? sequences > 1 && length > 4096 : way == Way::kTogether && sequences == 1) continue;
        time_packed(kv, sequences, length, way, teams, stream.handle());
      }
    }
  }
}

}  // namespace
}  // namespace lowbit

int main(int argc, char** argv) {
  if (argc > 5) lowbit::heads = std::atoi(argv[5]);
  lowbit::run(argc > 1 ? std::atoi(argv[1]) : 0, argc > 2 ? argv[2] : "", argc > 3 ? std::atoi(argv[3]) : 0,
              argc > 4 ? std::atoi(argv[4]) : 0);
  return 0;
}
