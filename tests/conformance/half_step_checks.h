// Products of few rows with x in 16 bits against sums in double, within the bound of docs/numerics.md. Included by a
// test that has an OnDevice<T>, behind block_checks.h.

#include "base/checked.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"
#include "kernels/cuda/half_step.h"

namespace lowbit {
namespace {

struct HalfStepCase {
  int64_t m = 1, k = 64, group = 0;  // 0: a scale per row
  std::vector<int64_t> n;
  FormatId format = FormatId::kInt4;
  cuda::Element half = cuda::Element::kBf16;
  cuda::ProductEnd end = cuda::ProductEnd::kStore;
  bool norm = false, bias = false, halves = false;  // halves: x comes rounded
  float special = 0;                                // in row 0; 0: nothing is
};

/// A weight's values, and its codes in fragment order: each by its place.
template <int Bits>
std::vector<uint8_t> half_step_tiles(Rng& rng, int64_t n, int64_t k, int zero, std::vector<float>& values) {
  using Order = FragmentOrder<Bits, 2>;
  const int64_t blocks = ceil_div(k, int64_t{Order::kPackK}), packs = ceil_div(n, int64_t{kPanelRows}) * kPanelPacks;
  std::vector<uint32_t> words(static_cast<size_t>(packs * blocks * Order::kPackWords));
  values.assign(static_cast<size_t>(n * k), 0.0f);
  for (int64_t pack = 0; pack < packs; ++pack)
    for (int64_t block = 0; block < blocks; ++block)
      for (int word = 0; word < Order::kPackWords; ++word)
        for (int field = 0; field < Order::kFields; ++field) {
          const auto at = Order::element(word, field);
          const int64_t row = pack * kPackRows + at.row, column = block * Order::kPackK + at.k;
          const bool there = row < n && column < k;
          auto code = there ? static_cast<uint32_t>(rng.below(1u << Order::kWidth)) : static_cast<uint32_t>(zero);
          if (Bits == kE4m3 && (code & 0x7fu) == 0x7fu) code ^= 1;  // NaN is nobody's weight
          if (there)
            values[static_cast<size_t>(row * k + column)] = Bits == kE4m3
                                                                ? e4m3_to_f32(static_cast<uint8_t>(code))
                                                                : static_cast<float>(static_cast<int>(code) - zero);
          words[static_cast<size_t>(pack_index(pack, block, blocks) * Order::kPackWords + word)] |= code << at.shift;
        }
  const auto* const bytes = reinterpret_cast<const uint8_t*>(words.data());
  return {bytes, bytes + words.size() * sizeof(uint32_t)};
}

uint16_t half_step_bits(float v, cuda::Element half) {
  return half == cuda::Element::kBf16 ? f32_to_bf16(v) : f32_to_f16(v);
}
float half_step_value(float v, cuda::Element half) {
  const uint16_t bits = half_step_bits(v, half);
  return half == cuda::Element::kBf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

/// An exact sum, and how far a kernel's may be from it.
struct BoundedSum {
  double sum = 0, bound = 0;
};
double two_last_places(double v) { return std::ldexp(std::fabs(v), -22); }

BoundedSum half_step_gated(const BoundedSum& gate, const BoundedSum& up, cuda::ProductEnd end) {
  BoundedSum out;
  double act = gate.sum / (1.0 + std::exp(-gate.sum)), slope = 1.1;
  if (end == cuda::ProductEnd::kSquaredRelu) {
    const double r = gate.sum < 0 ? 0.0 : gate.sum;
    act = r * r, slope = 2 * (r + gate.bound);
  }
  out.sum = act * up.sum;
  out.bound = slope * gate.bound * (std::fabs(up.sum) + up.bound) + std::fabs(act) * up.bound +
              4 * two_last_places(out.sum) + 1e-30;
  return out;
}

void expect_half_step(float got, const BoundedSum& wanted, const std::string& what) {
  if (std::isfinite(wanted.sum)) {
    ASSERT_LE(std::fabs(double(got) - wanted.sum), wanted.bound) << what << ": " << got << ", not " << wanted.sum;
  } else {
    ASSERT_TRUE(std::isnan(wanted.sum) ? std::isnan(got) : double(got) == wanted.sum) << what << ": " << got;
  }
}

cuda::MatmulKernel half_step_kernel(FormatId format) {
  cuda::MatmulKernel kernel{};
  kernel.format = format;
  kernel.activation = Activation::kF32;
  kernel.instance = [](const cuda::MatmulShape&) { return 0; };
  return kernel;
}

/// x as it is multiplied.
std::vector<float> half_step_rows(const HalfStepCase& c, std::vector<float> x, const std::vector<float>& norm) {
  for (int64_t m = 0; c.norm && m < c.m; ++m)
    ref_table().vector->rms_norm(x.data() + m * c.k, norm.data(), c.k, 1e-5f, x.data() + m * c.k);
  for (float& v : x) v = half_step_value(v, c.half);
  return x;
}

/// y [m, n] before an epilogue: `before` is added.
std::vector<BoundedSum> half_step_sums(const HalfStepCase& c, const std::vector<float>& x,
                                       const std::vector<float>& values, const std::vector<float>& scales,
                                       const std::vector<float>& bias, const std::vector<float>& before) {
  const auto n = static_cast<int64_t>(values.size()) / c.k, pitch = cuda::factor_rows(n);
  const int64_t group = c.group == 0 ? c.k : c.group;
  std::vector<BoundedSum> sums;
  for (int64_t m = 0; m < c.m; ++m)
    for (int64_t r = 0; r < n; ++r) {
      BoundedSum s;
      double magnitude = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const double product = double(values[size_t(r * c.k + k)]) * double(x[size_t(m * c.k + k)]) *
                               double(scales[size_t(k / group * pitch + r)]);
        s.sum += product, magnitude += std::fabs(product);
      }
      if (c.bias) s.sum += double(bias[size_t(r)]);
      s.bound = 1e-6 * magnitude + two_last_places(s.sum);
      if (c.end == cuda::ProductEnd::kAdd) {
        s.sum += double(before[size_t(m * n + r)]);
        s.bound += two_last_places(s.sum);
      }
      sums.push_back(s);
    }
  return sums;
}

void check_half_step(const HalfStepCase& c, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "case " << seed << ": m " << c.m << ", k " << c.k << ", group " << c.group
                                  << ", n " << testing::PrintToString(c.n) << ", format " << int(c.format) << ", half "
                                  << int(c.half) << ", end " << int(c.end) << ", norm " << c.norm << ", bias " << c.bias
                                  << ", halves " << c.halves << ", special " << c.special);
  Rng rng(seed, 23);
  const cuda::MatmulKernel kernel = half_step_kernel(c.format);
  const StoredBits stored = stored_bits(c.format, cuda::GemmActivation::kBf16);
  const int64_t groups = c.group == 0 ? 1 : ceil_div(c.k, c.group), ldx = round_up(c.k, 64);
  std::vector<float> x = random_floats(rng, c.m * c.k), norm = random_floats(rng, c.k);
  if (c.special != 0) x[size_t(rng.below(uint64_t(c.k)))] = c.special;
  std::vector<uint16_t> halves(size_t(c.m * ldx));
  for (int64_t m = 0; m < c.m; ++m)
    for (int64_t k = 0; k < c.k; ++k) halves[size_t(m * ldx + k)] = half_step_bits(x[size_t(m * c.k + k)], c.half);
  const std::vector<float> rows = half_step_rows(c, x, norm);
  const OnDevice<float> device_x(x), device_norm(norm);
  const OnDevice<uint16_t> device_halves(halves);
  std::vector<OnDevice<uint8_t>> tiles;
  std::vector<OnDevice<float>> factors, biases, outputs;
  tiles.reserve(3), factors.reserve(3), biases.reserve(3), outputs.reserve(3);
  std::vector<std::vector<BoundedSum>> wanted;
  cuda::StepProducts call;
  call.kernel = &kernel;
  for (const int64_t n : c.n) {
    std::vector<float> values, scales(size_t(groups * cuda::factor_rows(n)));
    tiles.emplace_back(stored.bits == 2   ? half_step_tiles<2>(rng, n, c.k, stored.zero, values)
                       : stored.bits == 4 ? half_step_tiles<4>(rng, n, c.k, stored.zero, values)
                       : stored.bits == 8 ? half_step_tiles<8>(rng, n, c.k, stored.zero, values)
                                          : half_step_tiles<kE4m3>(rng, n, c.k, stored.zero, values));
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t r = 0; r < n; ++r) scales[size_t(g * cuda::factor_rows(n) + r)] = float(0.1 * rng.normal());
    const std::vector<float> bias = random_floats(rng, n), before = random_floats(rng, c.m * n);
    scales.resize(scales.size() + size_t(cuda::factor_rows(n)), NAN);  // behind the last group
    wanted.push_back(half_step_sums(c, rows, values, scales, bias, before));
    factors.emplace_back(scales), biases.emplace_back(bias), outputs.emplace_back(before);
    cuda::Matmul& part = call.parts[size_t(call.count++)];
    part.w = {tiles.back().data(),          0,     factors.back().data(), nullptr, nullptr, n, c.k,
              c.group == 0 ? c.k : c.group, groups};
    part.bias = c.bias ? biases.back().data() : nullptr;
    part.x = device_halves.data(), part.x_element = c.half, part.m = c.m, part.ldx = ldx;
    part.y = outputs.back().data(), part.ldy = n;
    part.overlap = false;  // what was uploaded may not be there yet
  }
  if (!c.halves) call.rows = device_x.data(), call.norm = c.norm ? device_norm.data() : nullptr;
  call.eps = 1e-5f, call.end = c.end;
  ASSERT_TRUE(cuda::takes_half_step(call));
  ASSERT_TRUE(cuda::half_step_products(call));
  const bool gates = c.end == cuda::ProductEnd::kSilu || c.end == cuda::ProductEnd::kSquaredRelu;
  for (size_t i = 0; i < wanted[0].size() && gates; ++i)
    wanted[0][i] = half_step_gated(wanted[0][i], wanted[1][i], c.end);
  for (size_t part = 0; part < (gates ? 1 : wanted.size()); ++part) {
    const std::vector<float> got = outputs[part].back();
    for (size_t i = 0; i < got.size(); ++i)
      expect_half_step(got[i], wanted[part][i], "product " + std::to_string(part) + ", output " + std::to_string(i));
  }
}

void check_half_step_all(uint64_t cases, int64_t most_columns) {
  using cuda::ProductEnd;
  for (uint64_t seed = 0; seed < cases && !testing::Test::HasFatalFailure(); ++seed) {
    Rng rng(seed, 24);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    HalfStepCase c;
    c.m = seed % 2 == 0 ? 1 : 1 + below(8);
    c.format = std::array{FormatId::kInt4, FormatId::kUint4,  FormatId::kInt3, FormatId::kTernary,
                          FormatId::kInt2, FormatId::kBinary, FormatId::kInt8, FormatId::kFp8}[size_t(below(8))];
    c.half = below(2) == 0 ? cuda::Element::kF16 : cuda::Element::kBf16;
    c.end =
        std::array{ProductEnd::kStore, ProductEnd::kAdd, ProductEnd::kSilu, ProductEnd::kSquaredRelu}[size_t(below(4))];
    c.halves = below(4) == 0;
    c.k = c.halves ? 1 + below(most_columns) : 4 * (1 + below(most_columns / 4));
    if (below(3) != 0) c.group = std::array{16, 32, 48, 64, 96, 128, 256}[size_t(below(7))];
    const bool pairs = c.end == ProductEnd::kSilu || c.end == ProductEnd::kSquaredRelu;
    for (int64_t i = pairs ? 2 : 1 + below(3); i > 0; --i)
      c.n.push_back(pairs && !c.n.empty() ? c.n[0] : 1 + below(below(4) == 0 ? 700 : 90));
    c.norm = !c.halves && below(2) == 0, c.bias = below(2) == 0;
    if (below(4) == 0) c.special = below(2) == 0 ? NAN : below(2) == 0 ? INFINITY : -70000.0f;
    check_half_step(c, seed);
  }
}

}  // namespace
}  // namespace lowbit
