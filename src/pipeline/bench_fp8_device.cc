#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/float.h"
#include "base/try.h"
#include "kernels/cuda_fp8_api.h"
#include "ops/time_device.h"
#include "pipeline/bench_fp8_rows.h"

namespace lowbit {
namespace {

/// Of products: fp8 tensor cores keep about 14 bits of a sum of 128 columns. docs/numerics.md#fp8-in-blocks.
constexpr double kProductBound = 1e-3;

template <class T>
Result<Buffer> on_device(const std::vector<T>& values) {
  const auto bytes = int64_t(values.size() * sizeof(T));
  LOWBIT_TRY_ASSIGN(Buffer to, cuda::allocate(bytes, "bench fp8"));
  LOWBIT_TRY(cuda::upload(to, values.data(), bytes));
  return to;
}

/// So many copies of the same values, one behind the other.
template <class T>
Result<std::vector<Buffer>> copies_on_device(const std::vector<T>& values, int64_t copies) {
  std::vector<Buffer> all;
  for (int64_t i = 0; i < copies; ++i) {
    LOWBIT_TRY_ASSIGN(Buffer one, on_device(values));
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<uint16_t> in_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float v : values) out.push_back(f32_to_bf16(v));
  return out;
}

/// |got - wanted| / |wanted|.
double distance(const std::vector<float>& wanted, const float* got) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += std::pow(double(got[i]) - wanted[i], 2);
    norm += double(wanted[i]) * wanted[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

class DeviceFp8Bench {
 public:
  DeviceFp8Bench(const Fp8BenchOptions& options, const Engine& engine, cuda::Stream stream)
      : options_(options),
        engine_(engine),
        stream_(std::move(stream)),
        x_(options.m, options.k, 1, 1),
        w_(options.n, options.k, kFp8Block, 2) {}

  Result<std::vector<Fp8BenchRow>> rows() {
    Fp8Operand own = x_;
    const std::vector<float> norm = fp8_bench_norm(options_.k);
    LOWBIT_TRY_ASSIGN(const Buffer device_norm, on_device(norm));
    LOWBIT_TRY(quantize("act_quant", x_));
    LOWBIT_TRY(quantize("norm, act_quant", own, norm.data(), device_norm.as<float>()));
    LOWBIT_TRY(quantize("weight_quant", w_));
    LOWBIT_TRY(product("gemm", 0, 0));
    LOWBIT_TRY(product("contiguous", options_.groups, 0));
    LOWBIT_TRY(product("masked", options_.groups, ceil_div(options_.m, options_.groups) + 1));
    return std::move(rows_);
  }

 private:
  /// Times what has been checked, and appends the row.
  Status time(Fp8BenchRow row, int64_t copies, double bytes, const std::function<Status(int)>& call) {
    constexpr int64_t kLeastCalls = 20, kMostCalls = 2000;
    row.kernel = "cuda";
    if (row.checked) {
      const int calls = int(std::clamp(copies, kLeastCalls, kMostCalls));
      LOWBIT_TRY_ASSIGN(const auto times, time_device_calls(options_.min_seconds, stream_, calls, call));
      row.seconds = times[times.size() / 2];
      row.spread = (times[times.size() * 9 / 10] - times[times.size() / 10]) / row.seconds;
      row.gops *= 1e-9 / row.seconds;
      row.gb_s = 1e-9 * bytes / row.seconds;
    }
    rows_.push_back(std::move(row));
    return {};
  }

  /// bf16 to codes and scales: the CPU's bits.
  Status quantize(const char* what, Fp8Operand& o, const float* norm = nullptr, const float* device_norm = nullptr) {
    LOWBIT_TRY(quantize_fp8(o.normed(norm), engine_.isa, *engine_.pool));
    const std::vector<uint16_t> halves = in_bf16(o.values);
    const int64_t copies = fp8_bench_copies(options_.cold, int64_t(2 * halves.size()));
    LOWBIT_TRY_ASSIGN(const auto values, copies_on_device(halves, copies));
    LOWBIT_TRY_ASSIGN(Buffer codes, cuda::allocate(int64_t(o.codes.size()), "bench codes"));
    LOWBIT_TRY_ASSIGN(Buffer scales, cuda::allocate(int64_t(4 * o.scales.size()), "bench scales"));
    Fp8Quant q = o.normed(device_norm);
    q.element = Fp8Element::kBf16;
    q.codes = codes.as<uint8_t>(), q.scales = scales.as<float>();
    const auto call = [&](int i) {
      q.x = values[size_t(i) % values.size()].data();
      return cuda::quantize_fp8(q, stream_.handle());
    };
    LOWBIT_TRY(call(0));
    LOWBIT_TRY(cuda::synchronize(stream_.handle()));
    std::vector<uint8_t> got_codes(o.codes.size());
    std::vector<float> got_scales(o.scales.size());
    LOWBIT_TRY(cuda::download(got_codes.data(), codes, int64_t(got_codes.size())));
    LOWBIT_TRY(cuda::download(got_scales.data(), scales, int64_t(4 * got_scales.size())));
    Fp8BenchRow row;
    row.what = what;
    row.checked = got_codes == o.codes && got_scales == o.scales;
    return time(std::move(row), copies, double(3 * o.codes.size() + 4 * o.scales.size()), call);
  }

  /// Of group i, all of about the same size.
  int64_t first_row(int64_t i, int64_t count) const { return options_.m * i / count; }

  /// x times w, or in groups, each of which has codes of its own: `room` rows for each (masked), 0: they follow each
  /// other.
  Status product(const char* what, int64_t groups, int64_t room) {
    const int64_t n = options_.n, k = options_.k, count = std::max<int64_t>(groups, 1);
    std::vector<std::vector<uint8_t>> weights;  // each group's from another row on, so that no two are the same
    std::vector<uint8_t> all;
    std::vector<float> b_scales;
    std::vector<int32_t> numbers;
    Fp8Operand placed(room > 0 ? count * room : options_.m, k, 1, 3);
    for (int64_t i = 0; i < count; ++i) {
      weights.push_back(w_.codes);
      std::rotate(weights.back().begin(), weights.back().begin() + i % n * k, weights.back().end());
      all.insert(all.end(), weights.back().begin(), weights.back().end());
      b_scales.insert(b_scales.end(), w_.scales.begin(), w_.scales.end());
      const int64_t begin = first_row(i, count), end = first_row(i + 1, count);
      numbers.push_back(int32_t(room > 0 ? end - begin : end));
      placed.put(x_, begin, end, room > 0 ? i * room : begin);
    }
    const int64_t copies = fp8_bench_copies(options_.cold, int64_t(all.size()));
    LOWBIT_TRY_ASSIGN(const auto b, copies_on_device(all, copies));
    LOWBIT_TRY_ASSIGN(const Buffer device_b_scales, on_device(b_scales));
    LOWBIT_TRY_ASSIGN(const Buffer a, on_device(placed.codes));
    LOWBIT_TRY_ASSIGN(const Buffer a_scales, on_device(placed.scales));
    LOWBIT_TRY_ASSIGN(const Buffer device_numbers, on_device(numbers));
    std::vector<float> c(size_t(placed.rows * n), kUntouched);
    LOWBIT_TRY_ASSIGN(Buffer out, on_device(c));
    Fp8Gemm g = problem(a.as<uint8_t>(), a_scales.as<float>(), nullptr, device_b_scales.as<float>(), placed.rows);
    g.c = out.data();
    const auto* const ends = device_numbers.as<int32_t>();
    const Fp8Groups in{groups, room > 0 ? nullptr : ends, room > 0 ? ends : nullptr, room};
    const auto call = [&](int i) {
      g.b = b[size_t(i) % b.size()].as<uint8_t>();
      return groups > 0 ? cuda::grouped_gemm_fp8(g, in, stream_.handle())
                        : cuda::gemm_fp8(g, stream_.handle(), {.new_weights = false});
    };
    LOWBIT_TRY(call(0));
    LOWBIT_TRY(cuda::synchronize(stream_.handle()));
    LOWBIT_TRY(cuda::download(c.data(), out, int64_t(4 * c.size())));
    Fp8BenchRow row;
    row.what = what;
    LOWBIT_TRY_ASSIGN(row.checked, right(weights, room, c));
    row.gops = 2 * double(options_.m) * double(n) * double(k);
    g.element = Fp8Element::kBf16;  // what networks take
    return time(std::move(row), copies, double(std::min(count, options_.m) * n * k), call);
  }

  Fp8Gemm problem(const uint8_t* a, const float* a_scales, const uint8_t* b, const float* b_scales, int64_t m) const {
    Fp8Gemm g;
    g.m = m, g.n = options_.n, g.k = options_.k;
    g.a = a, g.lda = g.k;
    g.a_scales = a_scales, g.lda_scales = x_.scale_columns();
    g.b = b, g.ldb = g.k;
    g.b_scales = b_scales, g.ldb_scales = w_.scale_columns();
    g.ldc = g.n;
    return g;
  }

  /// First and last row of each group against the CPU's reference, and what lies behind them.
  Result<bool> right(const std::vector<std::vector<uint8_t>>& weights, int64_t room,
                     const std::vector<float>& c) const {
    const int64_t n = options_.n, k = options_.k;
    const auto count = int64_t(weights.size());
    std::vector<float> wanted(static_cast<size_t>(n));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = first_row(i, count), end = first_row(i + 1, count), at = room > 0 ? i * room : begin;
      if (room > 0 && std::any_of(c.begin() + (at + end - begin) * n, c.begin() + (at + room) * n,
                                  [](float v) { return v != kUntouched; }))
        return false;
      if (begin == end) continue;
      for (const int64_t r : {begin, end - 1}) {
        Fp8Gemm g = problem(x_.codes.data() + r * k, x_.scales.data() + r * x_.scale_columns(),
                            weights[size_t(i)].data(), w_.scales.data(), 1);
        g.c = wanted.data();
        LOWBIT_TRY(gemm_fp8(g, Isa::kScalar, *engine_.pool));
        if (!(distance(wanted, c.data() + (at + r - begin) * n) <= kProductBound)) return false;
      }
    }
    return true;
  }

  static constexpr float kUntouched = -7e30f;
  const Fp8BenchOptions& options_;
  const Engine& engine_;
  const cuda::Stream stream_;
  Fp8Operand x_, w_;
  std::vector<Fp8BenchRow> rows_;
};

}  // namespace

Result<std::vector<Fp8BenchRow>> bench_fp8_on_device(const Fp8BenchOptions& options, const Engine& engine) {
  LOWBIT_TRY_ASSIGN(cuda::Stream stream, cuda::Stream::create());
  return DeviceFp8Bench(options, engine, std::move(stream)).rows();
}

}  // namespace lowbit
