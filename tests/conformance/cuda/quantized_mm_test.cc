// quantized_mm<BITS> against double arithmetic: every width, scale kind, type, alignment and shape.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/float.h"
#include "base/rng.h"
#include "format/registry.h"
#include "kernels/cuda_api.h"
#include "tests/conformance/cuda/on_device.h"

namespace lowbit {
namespace {

using conformance::on_device;
using cuda::Element;

constexpr double kScale = 0.75;
constexpr uint8_t kUntouched = 0x5b;  // between rows of the output
constexpr FormatId kFormatOf[] = {FormatId::kBinary, FormatId::kInt2, FormatId::kInt4, FormatId::kInt8};

struct QuantizedCase {
  int log_bits = 0;
  int64_t m = 1, n = 1, k = 1, extra_input = 0, extra_weight = 0, extra_output = 0,
          shift = 0;  // shift: bytes of misalignment
  int64_t group = 0, ranges = 0;
  bool row_scales = false, bias = false, overlap = true;
  Element input = Element::kF32, output = Element::kF32;
  uint64_t seed = 0;
};

QuantizedCase random_quantized_case(uint64_t seed) {
  Rng rng(seed, 9);
  QuantizedCase c;
  c.seed = seed;
  c.log_bits = int(rng.below(4));
  const int64_t ms[] = {1, 1, 1, 2, 3, 5, 16, 17, 33, 64, 65, 70};
  c.m = ms[rng.below(12)];
  c.n = 1 + int64_t(rng.below(90));
  const int64_t ks[] = {1 + int64_t(rng.below(100)), 1 + int64_t(rng.below(3000)), 512, 1024, 4096};
  c.k = ks[rng.below(5)];
  if (rng.below(3) == 0) c.extra_input = int64_t(rng.below(5));
  if (rng.below(3) == 0) c.extra_weight = int64_t(rng.below(20));
  if (rng.below(3) == 0) c.extra_output = int64_t(rng.below(5));
  if (rng.below(4) == 0) c.shift = int64_t(rng.below(16));
  const uint64_t kind = rng.below(5);
  c.row_scales = kind == 1;
  const int64_t groups[] = {32, 64, 512, 1024, 40, 7};
  if (kind == 2) c.group = groups[rng.below(6)];
  if (kind == 3) c.ranges = 1 + int64_t(rng.below(uint64_t(std::min<int64_t>(c.n, 5))));
  c.bias = rng.below(2) == 0;
  c.overlap = rng.below(2) == 0;
  c.input = Element(rng.below(3));
  c.output = rng.below(2) == 0 ? Element::kF32 : Element(rng.below(3));
  return c;
}

void store(std::vector<uint8_t>& to, size_t i, float v, Element e) {
  const uint16_t half = e == Element::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
  if (e == Element::kF32) {
    std::memcpy(to.data() + 4 * i, &v, 4);
  } else {
    std::memcpy(to.data() + 2 * i, &half, 2);
  }
}
float load(const std::vector<uint8_t>& from, size_t i, Element e) {
  float f;
  uint16_t h;
  std::memcpy(&f, from.data() + (e == Element::kF32 ? 4 * i : 0), 4);
  std::memcpy(&h, from.data() + (e == Element::kF32 ? 0 : 2 * i), 2);
  return e == Element::kF32 ? f : e == Element::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/// Operands of a case. Weights and inputs are exactly as long as the arguments say: a byte read behind the end is
/// seen by compute-sanitizer.
struct Operands {
  int bits = 0;
  int64_t weight_stride = 0, input_stride = 0, output_stride = 0, groups = 1;
  bool has_scales = false;
  std::vector<uint8_t> weight, input, output;
  std::vector<float> scales, bias;
  std::vector<int32_t> ends;
};

Operands operands_of(const QuantizedCase& c) {
  Rng rng(c.seed, 10);
  Operands o;
  o.bits = 1 << c.log_bits;
  o.weight_stride = ceil_div(c.k * o.bits, 8) + c.extra_weight;
  o.input_stride = c.k + c.extra_input, o.output_stride = c.n + c.extra_output;
  o.weight.resize(size_t((c.n - 1) * o.weight_stride + ceil_div(c.k * o.bits, 8) + c.shift));
  for (auto& b : o.weight) b = uint8_t(rng.next());
  const auto inputs = size_t((c.m - 1) * o.input_stride + c.k);
  o.input.resize(inputs * size_t(cuda::element_bytes(c.input)) + 4);
  o.output.assign(size_t(c.m * o.output_stride) * size_t(cuda::element_bytes(c.output)) + 4, kUntouched);
  for (size_t i = 0; i < inputs; ++i) store(o.input, i, float(rng.normal()), c.input);
  o.groups = c.group > 0 ? ceil_div(c.k, c.group) : 1;
  o.has_scales = c.row_scales || c.group > 0 || c.ranges > 0;
  const int64_t scale_count = c.ranges > 0 ? c.ranges : c.n * o.groups;
  for (int64_t i = 0; i < scale_count; ++i) o.scales.push_back(0.5f + float(rng.uniform()));
  for (int64_t i = 0; i < c.n; ++i) o.bias.push_back(float(rng.normal()));
  for (int64_t r = 0; r < c.ranges; ++r) o.ends.push_back(int32_t(r + 1 == c.ranges ? c.n : (r + 1) * c.n / c.ranges));
  return o;
}

void run_on_device(const QuantizedCase& c, Operands& o) {
  Buffer w = on_device(o.weight.data(), o.weight.size()), x = on_device(o.input.data(), o.input.size() - 4),
         y = on_device(o.output.data(), o.output.size()), s = on_device(o.scales.data(), 4 * o.scales.size()),
         b = on_device(o.bias.data(), 4 * o.bias.size()), e = on_device(o.ends.data(), 4 * o.ends.size());
  cuda::QuantizedMm call;
  call.input = x.data();
  call.weight = w.as<uint8_t>() + c.shift;
  call.output = y.data();
  call.m = c.m;
  call.n = c.n;
  call.k = c.k;
  call.input_stride = o.input_stride;
  call.weight_stride = o.weight_stride;
  call.output_stride = o.output_stride;
  call.scale = float(kScale);
  call.scales = o.has_scales ? s.as<float>() : nullptr;
  call.group = c.group;
  call.row_ends = c.ranges > 0 ? e.as<int32_t>() : nullptr;
  call.ranges = c.ranges;
  call.bias = c.bias ? b.as<float>() : nullptr;
  call.input_element = c.input;
  call.output_element = c.output;
  call.overlap = c.overlap;
  const Status status = cuda::quantized_mm(o.bits, call);
  EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message());
  const Status done = cuda::synchronize(nullptr);
  EXPECT_TRUE(done.has_value()) << (done ? "" : done.error().message());
  EXPECT_TRUE(cuda::download(o.output.data(), y, int64_t(o.output.size())));
}

double scale_of(const QuantizedCase& c, const Operands& o, int64_t n, int64_t k) {
  if (c.ranges > 0)
    return kScale * double(o.scales[size_t(std::upper_bound(o.ends.begin(), o.ends.end(), n) - o.ends.begin())]);
  return o.has_scales ? kScale * double(o.scales[size_t(n * o.groups + (c.group > 0 ? k / c.group : 0))]) : kScale;
}

/// The largest error relative to the sum of magnitudes of an output's terms, in units of what its type allows.
double worst_error(const QuantizedCase& c) {
  Operands o = operands_of(c);
  run_on_device(c, o);
  const FormatOps& ops = format_ops(kFormatOf[c.log_bits]);
  const double unit = c.output == Element::kF32 ? 0x1p-24 : c.output == Element::kF16 ? 0x1p-11 : 0x1p-8;
  double worst = 0;
  std::vector<uint8_t> codes(static_cast<size_t>(c.k));
  for (int64_t n = 0; n < c.n; ++n) {
    ops.unpack(o.weight.data() + c.shift + n * o.weight_stride, 0, c.k, codes.data());
    for (int64_t m = 0; m < c.m; ++m) {
      double sum = c.bias ? double(o.bias[size_t(n)]) : 0, size = std::fabs(sum);
      for (int64_t k = 0; k < c.k; ++k) {
        const double term = scale_of(c, o, n, k) * double(ops.values[codes[size_t(k)]]) *
                            double(load(o.input, size_t(m * o.input_stride + k), c.input));
        sum += term;
        size += std::fabs(term);
      }
      const double error = std::fabs(double(load(o.output, size_t(m * o.output_stride + n), c.output)) - sum);
      const double allowed = 1e-6 * size + 2 * unit * std::fabs(sum) + (c.output == Element::kF16 ? 0x1p-24 : 0);
      worst = std::max(worst, error == error ? error / allowed : 1e9);
    }
  }
  const auto bytes = size_t(cuda::element_bytes(c.output));
  for (int64_t m = 0; m < c.m; ++m)
    for (size_t i = size_t(m * o.output_stride + c.n) * bytes; i < size_t((m + 1) * o.output_stride) * bytes; ++i)
      if (o.output[i] != kUntouched) worst = 1e9;
  return worst;
}

TEST(QuantizedMm, AgreesWithDoubleArithmetic) {
  LOWBIT_NEEDS_GPU();
  const char* wanted = std::getenv("LOWBIT_CONFORMANCE_CASES");
  const int64_t count = wanted != nullptr ? std::atoll(wanted) / 3 : 1500;
  int bad = 0;
  for (int64_t i = 0; i < count && bad < 5; ++i) {
    const QuantizedCase c = random_quantized_case(uint64_t(i));
    const double worst = worst_error(c);
    EXPECT_LE(worst, 1) << "bits " << (1 << c.log_bits) << " m " << c.m << " n " << c.n << " k " << c.k << " group "
                        << c.group << " ranges " << c.ranges << " rows " << c.row_scales << " shift " << c.shift
                        << " types " << int(c.input) << int(c.output) << " seed " << c.seed;
    bad += !(worst <= 1);
  }
}

TEST(QuantizedMm,
     OneAlignedRow) {  // weights by the copy engine: tails of a line, of 32 rows, and rows that fill shared memory
  LOWBIT_NEEDS_GPU();
  uint64_t seed = 900;
  for (const int64_t n : {1, 31, 32, 33, 63, 1000, 4300})
    for (const int64_t k : {1, 16, 100, 128, 136, 2048, 2064, 4096, 5003, 14336, 40000}) {
      if (n > 1000 && k > 5003) continue;
      QuantizedCase c;
      c.seed = ++seed;
      c.log_bits = int(seed % 5 == 0 ? seed / 5 % 4 : 3);
      c.n = n;
      c.k = k;
      c.extra_weight = (16 - ceil_div(k << c.log_bits, 8) % 16) % 16 + (seed % 3 == 0 ? 16 : 0);
      c.bias = seed % 4 == 0;
      c.overlap = seed / 2 % 2 == 0;
      c.row_scales = seed % 6 == 0;
      c.ranges = seed % 7 == 0 ? 1 : 0;
      c.input = Element(seed % 3);
      c.output = seed % 2 == 0 ? Element::kF32 : Element(seed % 3);
      EXPECT_LE(worst_error(c), 1) << "bits " << (1 << c.log_bits) << " n " << n << " k " << k << " seed " << c.seed;
    }
}

TEST(QuantizedMm, MoreRowsThanAGridIsHigh) {
  LOWBIT_NEEDS_GPU();
  for (const auto& [m, n] :
       {std::pair{1, 1200000}, std::pair{3, 1200000}, std::pair{70000, 3}, std::pair{1100000, 2}}) {
    QuantizedCase c;
    c.seed = uint64_t(m + n);
    c.log_bits = m % 4;
    c.m = m;
    c.n = n;
    c.k = 13;
    c.row_scales = true;
    EXPECT_LE(worst_error(c), 1) << "m " << m << " n " << n;
  }
}

TEST(QuantizedMm, NothingToDoIsNoError) {
  LOWBIT_NEEDS_GPU();
  cuda::QuantizedMm call;
  EXPECT_TRUE(cuda::quantized_mm(2, call));
  call.m = call.n = 1;
  EXPECT_FALSE(cuda::quantized_mm(2, call));
  EXPECT_FALSE(cuda::quantized_mm(3, call));
}

}  // namespace
}  // namespace lowbit
