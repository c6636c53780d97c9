#include "ops/time_matmul.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/checked.h"
#include "base/clock.h"
#include "base/float.h"
#include "base/rng.h"
#include "base/try.h"
#include "format/registry.h"

namespace lowbit {

Result<QTensor> random_weight(const TimedMatmul& o, ThreadPool& pool) {
  const FormatInfo& info = format_info(o.format);
  QTensor w;
  w.format = o.format;
  w.n = o.n;
  w.k = o.k;
  const int64_t stride = row_bytes(o.format, o.k);
  LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(o.n * stride, "bench weight"));
  const bool dense = info.kind == ValueKind::kDense;
  if (!dense) {
    w.scaling.n_block = o.group_rows, w.scaling.k_block = o.group;
    LOWBIT_TRY_ASSIGN(w.scales, Buffer::allocate(2 * w.scale_rows() * w.scale_cols(), "bench scales"));
    if (info.kind == ValueKind::kTable)
      for (int i = 0; i < 1 << info.code_bits; ++i) w.codebook.push_back(float(i) - float(1 << info.code_bits) / 2);
  }
  const uint64_t codes = dense ? 0 : o.format == FormatId::kFp8 ? 0x7f : format_ops(o.format).codes;  // no NaN
  pool.parallel_for(o.n, 16, [&](int64_t begin, int64_t end, int) {
    std::vector<uint8_t> row(static_cast<size_t>(o.k));
    for (int64_t r = begin; r < end; ++r) {
      Rng rng(1, static_cast<uint64_t>(r));
      uint8_t* to = w.codes.as<uint8_t>() + r * stride;
      if (dense) {
        for (int64_t i = 0; i < o.k; ++i) {
          const float v = float(rng.uniform()) - 0.5f;
          const uint16_t half = o.format == FormatId::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
          if (o.format == FormatId::kF32) std::memcpy(to + 4 * i, &v, 4);
          if (o.format != FormatId::kF32) std::memcpy(to + 2 * i, &half, 2);
        }
        continue;
      }
      for (auto& c : row) c = static_cast<uint8_t>(rng.below(codes));
      make_storable(o.format, row.data(), o.k);
      format_ops(o.format).pack(row.data(), o.k, to);
      for (int64_t g = 0; r % o.group_rows == 0 && g < w.scale_cols(); ++g)
        w.scales.as<uint16_t>()[r / o.group_rows * w.scale_cols() + g] =
            f32_to_f16(0.01f + 0.01f * float(rng.uniform()));
    }
  });
  return w;
}

namespace {

struct Inputs {
  Buffer x, y;  // as a model's workspace has them
};

/// First and last token through the reference, against the rows of y.
Result<bool> answer_is_right(const QTensor& w, const MatmulPlan& plan, const TimedMatmul& o, const Inputs& io,
                             ThreadPool& pool) {
  LOWBIT_TRY_ASSIGN(const MatmulPlan reference,
                    MatmulPlan::make(w, {plan.activation(), Isa::kScalar, true, o.activation_group}, pool));
  std::vector<float> y(static_cast<size_t>(o.n));
  for (const int64_t row : {int64_t{0}, o.m - 1}) {
    ActivationRows x;
    x.set_rounding({.halves = o.halves});
    LOWBIT_TRY(x.prepare(plan.activation(), io.x.as<float>() + row * o.k, 1, o.k, o.k, Isa::kScalar, pool));
    LOWBIT_TRY(reference.run(x, nullptr, y.data(), o.n, pool));
    if (std::memcmp(y.data(), io.y.as<float>() + row * o.n, size_t(o.n) * 4) != 0) return false;
  }
  return true;
}

}  // namespace

Status check_options(const TimedMatmul& o) {
  constexpr int64_t kLargest = int64_t{1} << 20;
  for (const auto& [name, value] : {std::pair{"m", o.m}, std::pair{"n", o.n}, std::pair{"k", o.k}})
    if (value < 1 || value > kLargest)
      return fail(ErrorCode::kInvalidArgument, std::string("bench matmul ") + name, std::to_string(value),
                  "1 to " + std::to_string(kLargest));
  if (o.group < 0)
    return fail(ErrorCode::kInvalidArgument, "bench matmul group", std::to_string(o.group), "columns per scale, or 0");
  if (!format_info(o.format).canonical)
    return fail(ErrorCode::kInvalidArgument, "bench matmul format", format_info(o.format).name,
                "a format of checkpoints");
  return {};
}

Result<MatmulTiming> time_matmul(const TimedMatmul& o, ThreadPool& pool) {
  LOWBIT_TRY(check_options(o));
  LOWBIT_TRY_ASSIGN(const QTensor w, random_weight(o, pool));
  std::vector<MatmulPlan> plans;
  LOWBIT_TRY_ASSIGN(MatmulPlan first,
                    MatmulPlan::make(w, {o.activation, o.isa, o.reference, o.activation_group}, pool));
  MatmulTiming result;
  result.weight_bytes = first.resident_bytes();
  result.kernel = first.kernel_name();
  result.reason = first.reason();
  result.threads = pool.size();
  result.cold = o.cold;

  Inputs io;
  LOWBIT_TRY_ASSIGN(io.x, Buffer::allocate(4 * o.m * o.k, "bench x", Pages::kLarge));
  LOWBIT_TRY_ASSIGN(io.y, Buffer::allocate(4 * o.m * o.n, "bench y", Pages::kLarge));
  Rng rng(2);
  for (int64_t i = 0; i < o.m * o.k; ++i) io.x.as<float>()[i] = float(rng.uniform()) - 0.5f;
  ActivationRows x;
  x.set_rounding({.halves = o.halves});
  const auto call = [&](const MatmulPlan& plan) -> Status {
    LOWBIT_TRY(x.prepare(plan.activation(), io.x.as<float>(), o.m, o.k, o.k, o.isa, pool));
    return plan.run(x, nullptr, io.y.as<float>(), o.n, pool);
  };
  LOWBIT_TRY(call(first));
  LOWBIT_TRY_ASSIGN(result.checked, answer_is_right(w, first, o, io, pool));
  if (!result.checked) return result;

  const int64_t copies =
      o.cold ? std::max<int64_t>(1, ceil_div(o.cold_bytes, std::max<int64_t>(result.weight_bytes, 1))) : 1;
  plans.push_back(std::move(first));
  while (int64_t(plans.size()) < copies) {
    LOWBIT_TRY_ASSIGN(MatmulPlan next, plans.front().copy(pool));
    plans.push_back(std::move(next));
  }
  std::vector<double> times;
  size_t turn = 0;
  for (const auto start = Clock::now();
       times.size() < 5 || (seconds_since(start) < o.seconds && times.size() < 100000);) {
    const auto begin = Clock::now();
    LOWBIT_TRY(call(plans[turn++ % plans.size()]));
    times.push_back(seconds_since(begin));
  }
  std::sort(times.begin(), times.end());
  result.runs = static_cast<int64_t>(times.size());
  result.seconds = times[times.size() / 2];
  result.seconds_p10 = times[times.size() / 10];
  result.seconds_p90 = times[times.size() * 9 / 10];
  result.gops = 2e-9 * double(o.m) * double(o.n) * double(o.k) / result.seconds;
  result.gb_s = 1e-9 * double(result.weight_bytes) / result.seconds;
  return result;
}

namespace {

constexpr int64_t kReadAhead = 8192;

/// The sum of all words, prefetched as the kernels do: what reading them takes.
uint64_t sum_words(const std::byte* p, int64_t bytes) {
  uint64_t sum[8] = {};
  for (const std::byte* end = p + bytes; p < end; p += sizeof sum) {
    __builtin_prefetch(p + kReadAhead);
    for (size_t j = 0; j < 8; ++j) {
      uint64_t word;
      std::memcpy(&word, p + 8 * j, 8);
      sum[j] += word;
    }
  }
  return std::accumulate(sum, sum + 8, uint64_t{0});
}

#if defined(__x86_64__)
/// In whole vectors: a core has so many loads in flight, whatever their width.
__attribute__((target("avx2"))) uint64_t sum_vectors(const std::byte* p, int64_t bytes) {
  __m256i sum[2] = {};
  for (const std::byte* end = p + bytes; p < end; p += sizeof sum) {
    __builtin_prefetch(p + kReadAhead);
    for (int j = 0; j < 2; ++j)
      sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + j));
  }
  uint64_t words[8];
  std::memcpy(words, sum, sizeof sum);
  return std::accumulate(words, words + 8, uint64_t{0});
}
#endif

}  // namespace

uint64_t read_once(const std::byte* p, int64_t bytes) {
#if defined(__x86_64__)
  if (isa_available(Isa::kAvx2)) return sum_vectors(p, bytes);
#endif
  return sum_words(p, bytes);
}

constexpr int64_t kSweepChunk = int64_t{1} << 20;

Result<ReadSweeps> ReadSweeps::make(ThreadPool& pool, int64_t bytes) {
  ReadSweeps sweeps;
  bytes = std::max(bytes / kSweepChunk, int64_t{1}) * kSweepChunk;
  LOWBIT_TRY_ASSIGN(sweeps.buffer_, Buffer::allocate(bytes, "bandwidth measurement", Pages::kLarge));
  sweeps.sums_.resize(static_cast<size_t>(8 * pool.size()));
  // Written first, so that each page is one of its own and not the shared page of zeros.
  pool.parallel_for(bytes / kSweepChunk, 1, [&](int64_t b, int64_t e, int) {
    for (int64_t c = b; c < e; ++c)
      std::memset(sweeps.buffer_.data() + c * kSweepChunk, int(c & 0x7f), size_t(kSweepChunk));
  });
  return sweeps;
}

double ReadSweeps::sweep(ThreadPool& pool) {
  const auto start = Clock::now();
  pool.parallel_for(buffer_.size() / kSweepChunk, 4, [&](int64_t begin, int64_t end, int worker) {
    sums_[static_cast<size_t>(8 * worker)] +=
        read_once(buffer_.data() + begin * kSweepChunk, (end - begin) * kSweepChunk);
  });
  const double rate = 1e-9 * double(buffer_.size()) / seconds_since(start);
  volatile uint64_t keep = 0;  // the sums are used, so the reads happen
  for (uint64_t s : sums_) keep = keep + s;
  return rate;
}

Result<ReadBandwidth> measure_read_bandwidth(ThreadPool& pool, int64_t bytes, int sweeps) {
  LOWBIT_TRY_ASSIGN(ReadSweeps memory, ReadSweeps::make(pool, bytes));
  std::vector<double> rates;
  for (int r = 0; r <= std::max(sweeps, 1); ++r) {
    const double rate = memory.sweep(pool);
    if (r > 0) rates.push_back(rate);
  }
  std::sort(rates.begin(), rates.end());
  return ReadBandwidth{rates[rates.size() / 2], rates.front(), rates.back()};
}

}  // namespace lowbit
