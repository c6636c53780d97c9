// Products of few rows with their norm, their rounding and what becomes of them, against plain loops. Included by a
// test that has an OnDevice<T>, behind block_checks.h.

#include "kernels/fp8_math.h"

namespace lowbit {
namespace {

struct ExactProductCase {
  int64_t m = 1, k = 64, group = 0;  // 0: no scales
  std::vector<int64_t> n;
  cuda::ValueType type = cuda::ValueType::kF32;
  cuda::RowRounding rounding = cuda::RowRounding::kNone;
  cuda::ProductEnd end = cuda::ProductEnd::kStore;
  bool norm = false, bias = false, special = false;
};

float exact_product_value(Rng& rng, const ExactProductCase& c, std::vector<uint8_t>& to) {
  using cuda::ValueType;
  const auto put = [&](auto bits, float value) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&bits);
    to.insert(to.end(), bytes, bytes + sizeof(bits));
    return value;
  };
  const float v = c.special && rng.below(400) == 0 ? NAN : float(rng.normal());
  if (c.type == ValueType::kInt8) {
    const auto code = int8_t(int64_t(rng.below(256)) - 128);
    return put(code, float(code));
  }
  if (c.type == ValueType::kE4m3) return put(f32_to_e4m3(v), e4m3_to_f32(f32_to_e4m3(v)));
  if (c.type == ValueType::kF16) return put(f32_to_f16(v), f16_to_f32(f32_to_f16(v)));
  if (c.type == ValueType::kBf16) return put(f32_to_bf16(v), bf16_to_f32(f32_to_bf16(v)));
  return put(v, v);
}

/// A row as it is multiplied, and with codes its scales.
std::vector<float> exact_product_x(const ExactProductCase& c, std::vector<float> row, const std::vector<float>& norm,
                                   std::vector<float>& scales) {
  if (c.norm) ref_table().vector->rms_norm(row.data(), norm.data(), c.k, 1e-5f, row.data());
  for (int64_t first = 0; first < c.k; first += 128) {
    const auto begin = row.begin() + first, end = row.begin() + std::min(c.k, first + 128);
    float largest = 0;
    for (auto v = begin; v != end; ++v) largest = std::isnan(*v) ? *v : std::max(largest, std::fabs(*v));
    for (auto v = begin; v != end; ++v) largest = std::isnan(*v) ? *v : largest;
    const float scale = fp8_scale(largest, false);
    scales.push_back(scale);
    for (auto v = begin; v != end; ++v) {
      if (c.rounding == cuda::RowRounding::kE4m3)
        *v = fp8_has_codes(scale) ? e4m3_to_f32(f32_to_e4m3(*v / scale)) : 0.0f;
      if (c.rounding == cuda::RowRounding::kF16) *v = f16_to_f32(f32_to_f16(*v));
      if (c.rounding == cuda::RowRounding::kBf16) *v = bf16_to_f32(f32_to_bf16(*v));
    }
  }
  return row;
}

void check_exact_products(const ExactProductCase& c, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "case " << seed << ": m " << c.m << ", k " << c.k << ", group " << c.group
                                  << ", n " << testing::PrintToString(c.n) << ", type " << int(c.type) << ", rounding "
                                  << int(c.rounding) << ", end " << int(c.end) << ", norm " << c.norm << ", bias "
                                  << c.bias << ", special " << c.special);
  Rng rng(seed, 21);
  const bool coded = c.rounding == cuda::RowRounding::kE4m3;
  const int64_t group = c.group == 0 ? c.k : c.group, groups = (c.k + group - 1) / group;
  const int64_t row_bytes = cuda::value_row_bytes(c.type, c.k);
  const std::vector<float> x = random_floats(rng, c.m * c.k), norm = random_floats(rng, c.k);
  std::vector<std::vector<float>> y, rows, x_scales;
  for (int64_t m = 0; m < c.m; ++m)
    rows.push_back(exact_product_x(c, {x.begin() + m * c.k, x.begin() + (m + 1) * c.k}, norm, x_scales.emplace_back()));
  cuda::ExactProducts call;
  std::vector<OnDevice<uint8_t>> values;
  std::vector<OnDevice<float>> factors, biases, outputs;
  values.reserve(3), factors.reserve(3), biases.reserve(3), outputs.reserve(3);
  const OnDevice<float> device_x(x), device_norm(norm);
  for (const int64_t n : c.n) {
    std::vector<uint8_t> bytes;
    std::vector<float> plain, scales = random_floats(rng, n * groups), bias = random_floats(rng, n);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t k = 0; k < c.k; ++k) plain.push_back(exact_product_value(rng, c, bytes));
      bytes.resize(size_t((r + 1) * row_bytes));
    }
    std::vector<float>& to = y.emplace_back(random_floats(rng, c.m * n));
    outputs.emplace_back(to);
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t r = 0; r < n; ++r) {
        float acc = 0;
        for (int64_t g = 0; g < groups; ++g) {
          float s = 0;
          for (int64_t k = g * group; k < std::min(c.k, (g + 1) * group); ++k)
            s = std::fma(plain[size_t(r * c.k + k)], rows[size_t(m)][size_t(k)], s);
          acc = std::fma(coded ? s * x_scales[size_t(m)][size_t(g)] : s,
                         c.group == 0 ? 1.0f : scales[size_t(r * groups + g)], acc);
        }
        float& out = to[size_t(m * n + r)];
        const float sum = acc + (c.bias ? bias[size_t(r)] : 0.0f);
        out = c.end == cuda::ProductEnd::kAdd ? out + sum : sum;
      }
    values.emplace_back(bytes), factors.emplace_back(scales), biases.emplace_back(bias);
    call.parts[size_t(call.count++)] = {values.back().data(),
                                        row_bytes,
                                        n,
                                        c.group == 0 ? nullptr : factors.back().data(),
                                        1,
                                        groups,
                                        1,
                                        c.bias ? biases.back().data() : nullptr,
                                        outputs.back().data(),
                                        n};
  }
  if (c.end == cuda::ProductEnd::kSilu)
    ref_table().vector->silu_mul(y[0].data(), y[1].data(), c.m * c.n[0], y[0].data());
  call.type = c.type, call.m = c.m, call.k = c.k, call.group = group;
  call.rows = device_x.data(), call.norm = c.norm ? device_norm.data() : nullptr, call.eps = 1e-5f;
  call.rounding = c.rounding, call.end = c.end;
  ASSERT_TRUE(cuda::takes_exact_products(call)) << seed;
  ASSERT_TRUE(cuda::exact_products(call));
  for (size_t i = 0; i < (c.end == cuda::ProductEnd::kSilu ? 1 : y.size()); ++i)
    expect_same(outputs[i].back(), y[i], "case " + std::to_string(seed) + ", product " + std::to_string(i));
}

void check_exact_product_all(uint64_t cases, int64_t most_columns) {
  using cuda::ProductEnd, cuda::RowRounding, cuda::ValueType;
  for (uint64_t seed = 0; seed < cases && !testing::Test::HasFatalFailure(); ++seed) {
    Rng rng(seed, 22);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    ExactProductCase c;
    c.m = seed % 2 == 0 ? 1 : 1 + below(8);
    c.type = ValueType(below(5));
    c.rounding = c.type == ValueType::kE4m3 && below(3) != 0 ? RowRounding::kE4m3 : RowRounding(below(3));
    c.end = std::array{ProductEnd::kStore, ProductEnd::kAdd, ProductEnd::kSilu}[size_t(below(3))];
    c.k = 1 + below(most_columns);
    if (below(2) == 0) c.group = std::array{32, 64, 128}[size_t(below(3))];
    if (c.rounding == RowRounding::kE4m3) c.group = 128;
    for (int64_t i = c.end == ProductEnd::kSilu ? 2 : 1 + below(3); i > 0; --i)
      c.n.push_back(c.end == ProductEnd::kSilu && !c.n.empty() ? c.n[0] : 1 + below(below(4) == 0 ? 700 : 90));
    c.norm = below(2) == 0, c.bias = below(2) == 0, c.special = below(4) == 0;
    check_exact_products(c, seed);
  }
}

}  // namespace
}  // namespace lowbit
