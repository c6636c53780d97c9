#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "base/checked.h"
#include "base/clock.h"
#include "base/float.h"
#include "base/rng.h"
#include "base/try.h"
#include "lowbit/bench.h"
#include "ops/time_matmul.h"
#include "pipeline/bench_fp8_rows.h"

namespace lowbit {

Fp8Operand::Fp8Operand(int64_t n, int64_t k, int64_t block, uint64_t seed) : rows(n), columns(k), row_block(block) {
  Rng rng(seed);
  values.resize(size_t(n * k));
  for (float& v : values) v = bf16_to_f32(f32_to_bf16(float(rng.uniform()) - 0.5f));
  scales.resize(size_t(ceil_div(n, block) * scale_columns()));
  codes.resize(values.size());
}
int64_t Fp8Operand::scale_columns() const { return ceil_div(columns, kFp8Block); }
void Fp8Operand::put(const Fp8Operand& from, int64_t begin, int64_t end, int64_t at) {
  const auto copy = [&](const auto& all, auto& to, int64_t width) {
    std::copy(all.begin() + begin * width, all.begin() + end * width, to.begin() + at * width);
  };
  copy(from.codes, codes, columns);
  copy(from.scales, scales, scale_columns());
}
Fp8Quant Fp8Operand::quant() {
  Fp8Quant q;
  q.x = values.data(), q.rows = rows, q.columns = columns, q.ldx = columns;
  q.row_block = row_block;
  q.codes = codes.data(), q.ldcodes = columns;
  q.scales = scales.data(), q.ldscales = scale_columns();
  return q;
}

Fp8Quant Fp8Operand::normed(const float* weights) {
  Fp8Quant q = quant();
  q.norm_weight = weights, q.norm_eps = 1e-5f;
  return q;
}

namespace {

constexpr int64_t kLargestExtent = int64_t{1} << 20, kMostGroups = 256;

/// Calls `work` for so long, and at least five times; `turn` counts them.
Status time_calls(double seconds, const std::function<Status(size_t turn)>& work, Fp8BenchRow& row) {
  std::vector<double> times;
  for (const auto start = Clock::now();
       times.size() < 5 || (seconds_since(start) < seconds && times.size() < 100000);) {
    const auto begin = Clock::now();
    LOWBIT_TRY(work(times.size()));
    times.push_back(seconds_since(begin));
  }
  std::ranges::sort(times);
  row.seconds = times[times.size() / 2];
  row.spread = (times[times.size() * 9 / 10] - times[times.size() / 10]) / row.seconds;
  return {};
}

/// One run of the bench.
class Fp8Bench {
 public:
  Fp8Bench(const Fp8BenchOptions& options, const Engine& engine)
      : options_(options), engine_(engine), x_(options.m, options.k, 1, 1), w_(options.n, options.k, kFp8Block, 2) {}

  Result<std::vector<Fp8BenchRow>> rows() {
    Fp8Operand own = x_;
    const std::vector<float> norm = fp8_bench_norm(options_.k);
    LOWBIT_TRY(quantize("act_quant", x_));
    LOWBIT_TRY(quantize("norm, act_quant", own, norm.data()));
    LOWBIT_TRY(quantize("weight_quant", w_));
    LOWBIT_TRY(gemm());
    LOWBIT_TRY(grouped("contiguous", 0));
    LOWBIT_TRY(grouped("masked", ceil_div(options_.m, options_.groups) + 1));
    LOWBIT_TRY(in_model("model", FormatId::kFp8, Activation::kFp8));
    LOWBIT_TRY(in_model("model, f32 x", FormatId::kFp8, Activation::kF32));
    LOWBIT_TRY(in_model("bf16, f32 x", FormatId::kBf16, Activation::kF32));
    LOWBIT_TRY(in_model("f32, f32 x", FormatId::kF32, Activation::kF32));
    return std::move(rows_);
  }

 private:
  Status quantize(const char* what, Fp8Operand& o, const float* norm = nullptr) {
    const Fp8Quant q = o.normed(norm);
    Fp8BenchRow row;
    row.what = what;
    row.kernel = fp8_kernels(engine_.isa).name;
    LOWBIT_TRY(quantize_fp8(q, Isa::kScalar, *engine_.pool));
    const auto codes = o.codes;
    const auto scales = o.scales;
    LOWBIT_TRY(time_calls(
        options_.min_seconds, [&](size_t) { return quantize_fp8(q, engine_.isa, *engine_.pool); }, row));
    row.checked = codes == o.codes && scales == o.scales;
    row.gb_s = 1e-9 * double(4 * o.values.size() + o.codes.size() + 4 * o.scales.size()) / row.seconds;
    rows_.push_back(std::move(row));
    return {};
  }

  Fp8Gemm problem(const uint8_t* b, float* c, int64_t first, int64_t m) const {
    Fp8Gemm g;
    g.m = m, g.n = options_.n, g.k = options_.k;
    g.a = x_.codes.data() + first * g.k, g.lda = g.k;
    g.a_scales = x_.scales.data() + first * x_.scale_columns(), g.lda_scales = x_.scale_columns();
    g.b = b, g.ldb = g.k;
    g.b_scales = w_.scales.data(), g.ldb_scales = w_.scale_columns();
    g.c = c, g.ldc = g.n;
    return g;
  }

  Status gemm() {
    const int64_t m = options_.m, n = options_.n;
    Fp8BenchRow row;
    row.what = "gemm";
    row.kernel = fp8_kernels(engine_.isa).name;
    const auto bytes = int64_t(w_.codes.size());
    const int64_t copies = fp8_bench_copies(options_.cold, bytes);
    LOWBIT_TRY_ASSIGN(Buffer all, Buffer::allocate(copies * bytes, "bench weights", Pages::kLarge));
    for (int64_t i = 0; i < copies; ++i) std::memcpy(all.data() + i * bytes, w_.codes.data(), size_t(bytes));
    std::vector<float> c(size_t(m * n)), wanted(static_cast<size_t>(n));
    LOWBIT_TRY(time_calls(
        options_.min_seconds,
        [&](size_t turn) {
          const uint8_t* const b = all.as<uint8_t>() + int64_t(turn) % copies * bytes;
          return gemm_fp8(problem(b, c.data(), 0, m), engine_.isa, *engine_.pool);
        },
        row));
    row.checked = true;
    for (const int64_t r : {int64_t{0}, m - 1}) {
      LOWBIT_TRY(gemm_fp8(problem(w_.codes.data(), wanted.data(), r, 1), Isa::kScalar, *engine_.pool));
      row.checked = row.checked && std::memcmp(wanted.data(), c.data() + r * n, size_t(n) * 4) == 0;
    }
    row.gops = 2e-9 * double(m) * double(n) * double(options_.k) / row.seconds;
    row.gb_s = 1e-9 * double(bytes) / row.seconds;
    rows_.push_back(std::move(row));
    return {};
  }

  /// Weights of all groups: those of the product, each group's from another row on, so that no two are the same.
  Result<Buffer> group_weights(int64_t copies) const {
    const int64_t n = options_.n, k = options_.k, bytes = n * k;
    LOWBIT_TRY_ASSIGN(Buffer all, Buffer::allocate(copies * options_.groups * bytes, "bench weights", Pages::kLarge));
    for (int64_t i = 0; i < copies * options_.groups; ++i) {
      const int64_t first = i % options_.groups % n * k;
      std::memcpy(all.data() + i * bytes, w_.codes.data() + first, size_t(bytes - first));
      std::memcpy(all.data() + (i + 1) * bytes - first, w_.codes.data(), size_t(first));
    }
    return all;
  }

  /// The product's rows in groups, `room` apart: masked. 0: they follow each other.
  Status grouped(const char* what, int64_t room) {
    const int64_t n = options_.n, k = options_.k, count = options_.groups, bytes = count * n * k;
    const int64_t copies = fp8_bench_copies(options_.cold, bytes);
    LOWBIT_TRY_ASSIGN(const Buffer weights, group_weights(copies));
    std::vector<float> b_scales;
    std::vector<int32_t> numbers;
    Fp8Operand placed(room > 0 ? count * room : options_.m, room > 0 ? k : 0, 1, 3);  // 0: x_ is as it should be
    for (int64_t i = 0; i < count; ++i) {
      b_scales.insert(b_scales.end(), w_.scales.begin(), w_.scales.end());
      numbers.push_back(int32_t(room > 0 ? first_row(i + 1) - first_row(i) : first_row(i + 1)));
      if (room > 0) placed.put(x_, first_row(i), first_row(i + 1), i * room);
    }
    std::vector<float> c(size_t(placed.rows * n), -1.0f);
    Fp8Gemm g = problem(nullptr, c.data(), 0, placed.rows);
    if (room > 0) g.a = placed.codes.data(), g.a_scales = placed.scales.data();
    g.b_scales = b_scales.data();
    const Fp8Groups groups{count, room > 0 ? nullptr : numbers.data(), room > 0 ? numbers.data() : nullptr, room};
    Fp8BenchRow row;
    row.what = what;
    row.kernel = fp8_kernels(engine_.isa).name;
    LOWBIT_TRY(time_calls(
        options_.min_seconds,
        [&](size_t turn) {
          g.b = weights.as<uint8_t>() + int64_t(turn) % copies * bytes;
          return grouped_gemm_fp8(g, groups, engine_.isa, *engine_.pool);
        },
        row));
    LOWBIT_TRY_ASSIGN(row.checked, right(groups, weights.as<uint8_t>(), c));
    row.gops = 2e-9 * double(options_.m) * double(n) * double(k) / row.seconds;
    row.gb_s = 1e-9 * double(std::min(count, options_.m) * n * k) / row.seconds;
    rows_.push_back(std::move(row));
    return {};
  }

  /// The last row of each group, and what lies behind it.
  Result<bool> right(const Fp8Groups& groups, const uint8_t* weights, const std::vector<float>& c) const {
    const int64_t n = options_.n, rows = int64_t(c.size()) / n;
    std::vector<float> wanted(static_cast<size_t>(n));
    for (int64_t i = 0; i < groups.count; ++i) {
      const auto [first, last] = fp8_group_range(groups, i, rows);
      const int64_t end = groups.rows != nullptr ? (i + 1) * groups.rows_of_group : last;
      if (std::any_of(c.begin() + last * n, c.begin() + end * n, [](float v) { return v != -1; })) return false;
      if (first == last) continue;
      LOWBIT_TRY(gemm_fp8(problem(weights + i * n * options_.k, wanted.data(), first_row(i + 1) - 1, 1), Isa::kScalar,
                          *engine_.pool));
      if (std::memcmp(wanted.data(), c.data() + (last - 1) * n, size_t(n) * 4) != 0) return false;
    }
    return true;
  }

  /// Of group i, all of about the same size.
  int64_t first_row(int64_t i) const { return options_.m * i / options_.groups; }

  Status in_model(const char* what, FormatId format, Activation activation) {
    TimedMatmul timed;
    timed.format = format;
    timed.group = kFp8Block;
    timed.m = options_.m, timed.n = options_.n, timed.k = options_.k;
    timed.activation = activation;
    timed.activation_group = activation == Activation::kFp8 ? kFp8Block : 0;
    timed.cold = options_.cold;
    timed.isa = engine_.isa;
    timed.seconds = options_.min_seconds;
    LOWBIT_TRY_ASSIGN(const MatmulTiming t, time_matmul(timed, *engine_.pool));
    const double spread = t.seconds > 0 ? (t.seconds_p90 - t.seconds_p10) / t.seconds : 0;
    rows_.push_back({what, t.kernel, t.checked, t.seconds, spread, t.gops, t.gb_s, 0});
    return {};
  }

  const Fp8BenchOptions& options_;
  const Engine& engine_;
  Fp8Operand x_, w_;
  std::vector<Fp8BenchRow> rows_;
};

}  // namespace

Result<Fp8BenchReport> bench_fp8(const Fp8BenchOptions& options) {
  for (const auto& [name, extent] : {std::pair{"-M", options.m}, {"-N", options.n}, {"-K", options.k}})
    if (extent < 1 || extent > kLargestExtent)
      return fail(ErrorCode::kInvalidArgument, std::string("bench fp8 ") + name, std::to_string(extent),
                  "1 to " + std::to_string(kLargestExtent));
  if (options.groups < 1 || options.groups > kMostGroups)
    return fail(ErrorCode::kInvalidArgument, "bench fp8 --groups", std::to_string(options.groups),
                "1 to " + std::to_string(kMostGroups));
  LOWBIT_TRY_ASSIGN(const Engine engine, Engine::make(options.compute));
  Fp8BenchReport r;
  r.isa = engine.gpu >= 0 ? "cuda" : isa_name(engine.isa);
  r.m = options.m, r.n = options.n, r.k = options.k, r.groups = options.groups;
  r.threads = engine.threads;
  r.cold = options.cold;
  if (engine.gpu >= 0) {
    LOWBIT_TRY_ASSIGN(r.rows, bench_fp8_on_device(options, engine));
    return r;
  }
  LOWBIT_TRY_ASSIGN(r.rows, Fp8Bench(options, engine).rows());
  if (!options.cold) return r;
  LOWBIT_TRY_ASSIGN(const ReadBandwidth rate, measure_read_bandwidth(*engine.pool));
  r.bandwidth_gb_s = rate.median;
  for (Fp8BenchRow& row : r.rows) row.percent_of_peak = 100 * row.gb_s / rate.median;
  return r;
}

}  // namespace lowbit
