#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/try.h"
#include "kernels/registry.h"
#include "lowbit/bench.h"
#include "ops/attention.h"
#include "ops/time_matmul.h"
#include "runtime/engine.h"

namespace lowbit {
namespace {

constexpr int64_t kColdLayersBytes = int64_t{128} << 20;  // layers in turn have as many, more than caches keep
constexpr int64_t kPart = 256;                            // positions that are written at once

Status check_sizes(const AttentionBenchOptions& o) {
  const bool sizes = o.context >= 1 && o.context <= int64_t{1} << 24 && o.heads >= 1 && o.heads <= 1024 &&
                     o.kv_heads >= 1 && o.head_dim >= 1 && o.head_dim <= 1024;
  if (sizes && o.heads % o.kv_heads == 0 && o.min_seconds > 0) return {};
  return fail(ErrorCode::kInvalidArgument, "bench attention",
              fmt::format("{} positions, {} heads, {} kv heads of {}", o.context, o.heads, o.kv_heads, o.head_dim),
              "at most 2^24 positions and 1024 heads of 1024, heads a multiple of kv heads");
}

/// A sequence of `context` random positions.
class Layers {
 public:
  static Result<Layers> make(const AttentionBenchOptions& o, const KvFormat& format, const VectorOps& ops,
                             ThreadPool& pool) {
    // How many: by a pool of one page, which knows what positions take.
    auto groups = uniform_kv_groups(1, o.kv_heads, o.head_dim);
    groups[0].format = format;
    LOWBIT_TRY_ASSIGN(const auto one, KvPool::make(groups, 1));
    Layers made;
    made.count = std::max<int64_t>(1, kColdLayersBytes / bytes_read(*one, o.context));
    groups = uniform_kv_groups(made.count, o.kv_heads, o.head_dim);
    groups[0].format = format;
    LOWBIT_TRY_ASSIGN(auto cache, KvCache::make(groups, o.context));
    made.bytes = bytes_read(cache.pool(), o.context) / made.count;
    made.cache.push_back(std::move(cache));
    LOWBIT_TRY(made.fill(ops, o.context, pool));
    return made;
  }

  int64_t count = 0;  // of layers
  int64_t bytes = 0;  // that a call reads
  std::vector<KvCache> cache;

 private:
  /// Bytes of all layers that the row at the last position reads.
  static int64_t bytes_read(const KvPool& pool, int64_t context) {
    const int64_t packed = pool.groups()[0].format.packed_pages(context - 1);
    return packed * pool.page_bytes(pool.packed_store(0)) + (ceil_div(context, kKvPage) - packed) * pool.page_bytes(0);
  }
  Status fill(const VectorOps& ops, int64_t context, ThreadPool& pool) {
    KvCache& to = cache.front();
    const int64_t width = to.group_of(0).row_elems();
    Rng rng(1);
    std::vector<float> rows(size_t((kPart + 64) * width));  // read from another place each time
    for (float& x : rows) x = float(4.0 * rng.uniform() - 2.0);
    LOWBIT_TRY(to.reserve(context));
    for (int64_t at = 0; at < context; at += kPart) {
      const int64_t n = std::min(kPart, context - at);
      LOWBIT_TRY(to.open(n));
      for (int64_t layer = 0; layer < count; ++layer) {
        const float *k = rows.data() + (layer + at / kPart) % width, *v = k + 31 * width;
        to.store(ops, layer, at, n, k, v, width, pool);
        to.pack(layer, n, pool);
      }
      to.commit(n);
    }
    return {};
  }
};

/// The value below which `share` of them lie.
double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[size_t(share * double(values.size() - 1))];
}

/// One format. Passes through all layers and plain reads of as much other memory take turns, so that each finds caches
/// without what it reads, and both the same machine: of a virtual one memory's rate may double within minutes.
Result<AttentionBenchRow> time_format(const AttentionBenchOptions& o, const std::string& name, Isa isa,
                                      ThreadPool& pool, ReadSweeps& memory) {
  LOWBIT_TRY_ASSIGN(const KvFormat format, parse_kv_format(name, o.kv_residual));
  const VectorOps& ops = vector_ops(isa);
  LOWBIT_TRY_ASSIGN(Layers layers, Layers::make(o, format, ops, pool));
  const AttentionShape shape{o.heads, o.kv_heads, o.head_dim, 0.125f};
  LOWBIT_TRY_ASSIGN(Attention attention, Attention::make(ops, shape, pool));
  LOWBIT_TRY_ASSIGN(Attention reference, Attention::make(vector_ops(Isa::kScalar), shape, pool));
  LOWBIT_TRY(attention.reserve(o.context));
  std::vector<float> q(size_t(o.heads * o.head_dim)), out(q.size()), wanted(q.size());
  Rng rng(2);
  for (float& x : q) x = float(2.0 * rng.uniform() - 1.0);
  KvCache& cache = layers.cache.front();
  const auto run = [&](Attention& by, int64_t layer, std::vector<float>& to) {
    by.run({layer, o.context - 1, 1, q.data(), to.data()}, cache);
  };
  AttentionBenchRow row;
  row.kv = name;
  row.bytes = layers.bytes;
  run(attention, 0, out);
  run(reference, 0, wanted);
  row.checked = std::memcmp(out.data(), wanted.data(), out.size() * sizeof(float)) == 0;
  if (!row.checked) return row;
  std::vector<double> times, rates, shares;  // of a call; GB/s of plain reads; of each such pair
  const auto start = Clock::now();
  for (int pair = 0; pair < 6 || seconds_since(start) < o.min_seconds; ++pair) {
    const auto begin = Clock::now();
    for (int64_t layer = 0; layer < layers.count; ++layer) run(attention, layer, out);
    const double seconds = seconds_since(begin) / double(layers.count), rate = memory.sweep(pool);
    if (pair == 0) continue;
    times.push_back(seconds);
    rates.push_back(rate);
    shares.push_back(1e-9 * double(row.bytes) / seconds / rate);
  }
  row.seconds = quantile(times, 0.5);
  row.spread = (quantile(times, 0.9) - quantile(times, 0.1)) / row.seconds;
  row.gb_s = 1e-9 * double(row.bytes) / row.seconds;
  row.read_gb_s = quantile(rates, 0.5);
  row.share = quantile(shares, 0.5);
  row.share_least = quantile(shares, 0.1);
  row.share_most = quantile(shares, 0.9);
  return row;
}

}  // namespace

Result<AttentionBenchReport> bench_attention(const AttentionBenchOptions& options) {
  LOWBIT_TRY(check_sizes(options));
  LOWBIT_TRY_ASSIGN(Engine engine, Engine::on_cpu(options.compute));
  LOWBIT_TRY_ASSIGN(ReadSweeps memory, ReadSweeps::make(*engine.pool, kColdLayersBytes));
  AttentionBenchReport report{isa_name(engine.isa), engine.threads, 0, {}};
  std::vector<double> rates;
  for (const std::string& kv : options.kv) {
    LOWBIT_TRY_ASSIGN(AttentionBenchRow row, time_format(options, kv, engine.isa, *engine.pool, memory));
    rates.push_back(row.read_gb_s);
    report.rows.push_back(std::move(row));
  }
  if (!rates.empty()) report.bandwidth_gb_s = quantile(rates, 0.5);
  return report;
}

}  // namespace lowbit
