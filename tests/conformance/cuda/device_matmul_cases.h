#pragma once
// A product on a GPU beside the CPU reference: cases, how they run, and the bounds of docs/numerics.md.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/registry.h"
#include "ops/device_matmul.h"
#include "ops/matmul.h"
#include "tests/conformance/cuda/on_device.h"
#include "tests/conformance/exact_codes.h"
#include "tests/conformance/matmul_cases.h"

namespace lowbit::device_cases {

using conformance::Case;
using conformance::Fill;
using conformance::on_device;
using conformance::pick;
using cuda::Element;

inline ThreadPool& pool() {
  static ThreadPool one(1);
  return one;
}

/// `values` as the element type stores them.
inline std::vector<uint8_t> stored(const std::vector<float>& values, Element e) {
  std::vector<uint8_t> out(values.size() * size_t(cuda::element_bytes(e)));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = e == Element::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
    if (e == Element::kF32) std::memcpy(out.data() + 4 * i, &values[i], 4);
    if (e != Element::kF32) std::memcpy(out.data() + 2 * i, &half, 2);
  }
  return out;
}
inline float read_stored(const std::vector<uint8_t>& bytes, Element e, size_t i) {
  if (e == Element::kF32) {
    float f;
    std::memcpy(&f, bytes.data() + 4 * i, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, bytes.data() + 2 * i, 2);
  return e == Element::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
}
inline float rounded(float v, Element e) { return read_stored(stored({v}, e), e, 0); }

constexpr uint8_t kPoison = 0x5b;

/// A case on the device.
struct DeviceCase {
  Case c;
  Activation activation = Activation::kInt8;
  Element x = Element::kF32, y = Element::kF32;
  bool quantized_x = false;  // int8 codes come in, made by the CPU
  bool fallback = false, overlap = true;
  int64_t most_rows = 0;
  bool exact_scales = false;
};

inline std::vector<float> random_bias(const Case& c) {
  std::vector<float> bias(size_t(c.n));
  Rng rng(c.seed, 4);
  for (float& b : bias) b = float(rng.normal());
  return bias;
}

/// x as int8 codes with scales, by the CPU's quantizer.
struct Codes {
  std::vector<int8_t> values;
  std::vector<float> scales;
};
inline Codes quantize(const Case& c, const std::vector<float>& x, int64_t group, int64_t groups,
                      bool exact_scales = false) {
  Codes q{std::vector<int8_t>(size_t(c.m * c.ldx + 1)), std::vector<float>(size_t(c.m * groups + 1))};
  if (exact_scales) {
    for (int64_t m = 0; m < c.m; ++m)
      conformance::exact_codes(x.data() + m * c.ldx, c.k, c.k, q.values.data() + m * c.ldx,
                               &q.scales[size_t(m * groups)]);
    return q;
  }
  for (int64_t m = 0; m < c.m; ++m)
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * group, n = std::min(group, c.k - first);
      int32_t sum = 0;
      vector_ops(Isa::kScalar)
          .quantize_groups_int8(x.data() + m * c.ldx + first, nullptr, 1.0f, n, n, n, false,
                                q.values.data() + m * c.ldx + first, &q.scales[size_t(m * groups + g)], &sum);
    }
  return q;
}

struct Outcome {
  std::vector<uint8_t> y;
  std::string kernel;
};

inline Outcome run_on_device(const DeviceCase& d, const DeviceMatmulPlan& plan, const std::vector<float>& x) {
  const Case& c = d.c;
  Outcome out;
  out.kernel = plan.kernel_name(c.m, d.quantized_x ? Element::kInt8 : d.x);
  out.y.assign(size_t((c.m * c.ldy + 1) * cuda::element_bytes(d.y)), kPoison);
  Buffer y = on_device(out.y.data(), out.y.size()), scales, rows_buffer;
  DeviceRows rows{nullptr, d.x, c.m, c.ldx, nullptr};
  if (d.quantized_x) {
    const bool grouped = plan.x_groups();
    const Codes q =
        quantize(c, x, grouped ? plan.group() : std::max<int64_t>(c.k, 1), grouped ? plan.groups() : 1, d.exact_scales);
    rows_buffer = on_device(q.values.data(), q.values.size());
    scales = on_device(q.scales.data(), 4 * q.scales.size());
    rows.element = Element::kInt8;
    rows.scales = scales.as<float>();
  } else {
    const auto bytes = stored(x, d.x);
    rows_buffer = on_device(bytes.data(), bytes.size());
  }
  rows.x = rows_buffer.data();
  const auto bias_values = random_bias(c);
  Buffer bias = on_device(bias_values.data(), 4 * bias_values.size()), workspace;
  const int64_t bytes = plan.workspace_bytes(c.m, rows.element);
  if (bytes > 0) workspace = *cuda::allocate(bytes, "test");
  const Status status = plan.run(rows, c.bias ? bias.as<float>() : nullptr, y.data(), d.y, c.ldy,
                                 bytes > 0 ? workspace.as<uint8_t>() : nullptr, nullptr, d.overlap);
  EXPECT_TRUE(status.has_value()) << c.name() << ": " << (status ? "" : status.error().message());
  const Status done = cuda::synchronize(nullptr);
  EXPECT_TRUE(done.has_value()) << c.name() << " " << out.kernel << ": " << (done ? "" : done.error().message());
  EXPECT_TRUE(cuda::download(out.y.data(), y, int64_t(out.y.size())));
  return out;
}

inline std::vector<float> run_reference(const DeviceCase& d, const QTensor& w, const std::vector<float>& x) {
  const Case& c = d.c;
  std::vector<float> y(size_t(c.m * c.ldy + 1));
  MatmulOptions options{d.activation, Isa::kScalar, true, d.exact_scales ? kExactScaleColumns : c.activation_group};
  options.exact_scales = d.exact_scales;
  auto plan = MatmulPlan::make(w, options, pool());
  EXPECT_TRUE(plan.has_value()) << c.name();
  if (!plan) return y;
  ActivationRows rows;
  EXPECT_TRUE(rows.prepare(plan->activation(), x.data(), c.m, c.k, c.ldx, Isa::kScalar, pool()));
  const auto bias = random_bias(c);
  EXPECT_TRUE(plan->run(rows, c.bias ? bias.data() : nullptr, y.data(), c.ldy, pool()));
  return y;
}

/// Each output in double arithmetic, and the sum of its terms' magnitudes: what float sums are compared with.
struct Exact {
  std::vector<double> values, magnitudes;
};
inline Exact exact_outputs(const DeviceCase& d, const QTensor& w, const std::vector<float>& x,
                           const DeviceMatmulPlan& plan) {
  const Case& c = d.c;
  std::vector<float> real(size_t(c.n * c.k));
  dequantize_rows(w, 0, c.n, real.data());
  std::vector<double> xs(x.begin(), x.end());
  if (d.activation == Activation::kInt8) {
    const int64_t group = plan.x_groups() ? plan.group() : std::max<int64_t>(c.k, 1),
                  groups = plan.x_groups() ? plan.groups() : 1;
    const Codes q = quantize(c, x, group, groups);
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t k = 0; k < c.k; ++k)
        xs[size_t(m * c.ldx + k)] =
            double(q.values[size_t(m * c.ldx + k)]) * double(q.scales[size_t(m * groups + k / group)]);
  }
  const auto bias = random_bias(c);
  Exact e{std::vector<double>(size_t(c.m * c.n)), std::vector<double>(size_t(c.m * c.n))};
  for (int64_t m = 0; m < c.m; ++m)
    for (int64_t n = 0; n < c.n; ++n) {
      double sum = c.bias ? double(bias[size_t(n)]) : 0, size = std::fabs(sum);
      for (int64_t k = 0; k < c.k; ++k) {
        const double term = xs[size_t(m * c.ldx + k)] * double(real[size_t(n * c.k + k)]);
        sum += term;
        size += std::fabs(term);
      }
      e.values[size_t(m * c.n + n)] = sum;
      e.magnitudes[size_t(m * c.n + n)] = size;
    }
  return e;
}

inline bool same_float(float a, float b) {
  return (a != a && b != b) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

/// Differences: bit for bit from the reference, or, given exact outputs, by more than 1e-6 of the terms' magnitudes
/// (the zero points' rounding included) and two units of y's type.
inline int compare(const DeviceCase& d, const std::vector<float>& want, const Outcome& got, const Exact* exact) {
  const Case& c = d.c;
  const double unit = d.y == Element::kF32 ? 0x1p-23 : d.y == Element::kF16 ? 0x1p-10 : 0x1p-7;
  int bad = 0;
  const auto report = [&](int64_t m, int64_t n, float g, double r) {
    if (bad++ == 0)
      ADD_FAILURE() << got.kernel << " at [" << m << ", " << n << "]: " << g << " wanted " << r << "\n"
                    << c.name() << " x " << int(d.x) << (d.quantized_x ? " int8" : "") << " y " << int(d.y);
  };
  for (int64_t m = 0; m < c.m; ++m) {
    for (int64_t n = 0; n < c.n; ++n) {
      const float g = read_stored(got.y, d.y, size_t(m * c.ldy + n)), full = want[size_t(m * c.ldy + n)];
      const float r = rounded(full, d.y);
      if (same_float(g, r)) continue;
      if (exact == nullptr) {
        report(m, n, g, double(r));
        continue;
      }
      const double value = exact->values[size_t(m * c.n + n)], size = exact->magnitudes[size_t(m * c.n + n)];
      if (c.activations == Fill::kNormal && std::isnan(value) && !std::isnan(g)) report(m, n, g, value);
      if (!(size < 1e37)) continue;  // sums of another order may overflow elsewhere
      const double bound = 1e-6 * size + 2 * unit * std::fabs(value) + (d.y == Element::kF16 ? 0x1p-24 : 0x1p-133);
      if (d.y == Element::kF16 && std::isinf(g) && std::isinf(r)) continue;
      if (!(std::fabs(double(g) - value) <= bound)) report(m, n, g, value);
    }
    const size_t element = size_t(cuda::element_bytes(d.y));
    for (size_t i = size_t(m * c.ldy + c.n) * element; i < size_t((m + 1) * c.ldy) * element; ++i)
      if (got.y[i] != kPoison && bad++ == 0) ADD_FAILURE() << got.kernel << " wrote beside y: " << c.name();
  }
  return bad;
}

struct Counts {
  int64_t compared = 0, gemv = 0, tensor = 0;
};

inline int compare_case(DeviceCase d, Counts& counts) {
  const QTensor w = conformance::random_weights(d.c);
  std::vector<float> x = conformance::random_activations(d.c);
  const FormatInfo& info = format_info(d.c.format);
  if (d.x != Element::kF32)
    for (float& v : x) v = rounded(v, d.x);
  if (info.kind == ValueKind::kDense) d.activation = Activation::kF32;
  d.quantized_x = d.quantized_x && d.activation == Activation::kInt8;
  auto plan = DeviceMatmulPlan::make(w, {.activation = d.activation,
                                         .activation_group = d.c.activation_group,
                                         .fallback = d.fallback,
                                         .most_rows = d.most_rows,
                                         .exact_scales = d.exact_scales});
  EXPECT_TRUE(plan.has_value()) << d.c.name() << ": " << (plan ? "" : plan.error().message());
  if (!plan) return 1;
  const auto want = run_reference(d, w, x);
  const Outcome got = run_on_device(d, *plan, x);
  ++counts.compared;
  counts.gemv += got.kernel.find("gemv") != std::string::npos;
  counts.tensor += got.kernel.find("tensor") != std::string::npos;
  if (d.activation == Activation::kInt8 && why_float_sums(w, d.c.activation_group).empty())
    return compare(d, want, got, nullptr);
  const Exact exact = exact_outputs(d, w, x, *plan);
  return compare(d, want, got, &exact);
}

inline DeviceCase random_device_case(uint64_t seed) {
  DeviceCase d;
  d.c = conformance::random_case(seed);
  Rng rng(seed, 77);
  d.activation = pick(rng, {Activation::kInt8, Activation::kInt8, Activation::kF32});
  d.x = pick(rng, {Element::kF32, Element::kF16, Element::kBf16});
  d.y = pick(rng, {Element::kF32, Element::kF32, Element::kF16, Element::kBf16});
  d.quantized_x = rng.below(3) == 0;
  d.fallback = rng.below(4) == 0;
  d.overlap = rng.below(2) == 0;
  d.most_rows = d.c.m == 1 && rng.below(2) == 0 ? 1 : 0;
  return d;
}

}  // namespace lowbit::device_cases
