// Products of few rows with int8 x that has a scale per 32 columns, or an exact one per 128, bit for bit against the
// loops of docs/numerics.md. Included by a test that has an OnDevice<T>, behind float_checks.h.

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"
#include "kernels/cuda/gemm/weight_order/trellis_order.h"
#include "kernels/cuda_product_api.h"
#include "kernels/registry.h"
#include "kernels/tables.h"
#include "tests/conformance/exact_codes.h"

namespace lowbit {
namespace {

struct Int8StepCase {
  int64_t m = 1, k = 64, group = 64;  // group 0: a scale per row
  std::vector<int64_t> n;
  FormatId format = FormatId::kInt4;
  cuda::ProductEnd end = cuda::ProductEnd::kStore;
  bool norm = false, bias = false, codes = false;  // codes: x comes rounded
  bool leaves = false;                             // codes of a gated product, of which some are no numbers
  bool exact = false;                              // exact scales of x: group is 128
};

/// A weight's values, and its codes in fragment order.
struct Int8StepWeight {
  std::vector<int8_t> values;  // [n, k]
  std::vector<uint8_t> tiles;
};

/// fn(row, column, word of all, shift) for every field of a weight in fragment order, also beyond n and k.
template <int Bits, class Fn>
void for_each_field(int64_t n, int64_t k, const Fn& fn) {
  using Order = FragmentOrder<Bits, 1>;
  const int64_t blocks = ceil_div(k, int64_t{Order::kPackK}), packs = ceil_div(n, int64_t{kPanelRows}) * kPanelPacks;
  for (int64_t pack = 0; pack < packs; ++pack)
    for (int64_t block = 0; block < blocks; ++block)
      for (int word = 0; word < Order::kPackWords; ++word)
        for (int field = 0; field < (Bits == kTrellis ? 32 : Order::kFields); ++field) {
          const auto at = Bits == kTrellis ? Order::trellis_element(word, field) : Order::element(word, field);
          fn(pack * kPackRows + at.row, block * Order::kPackK + at.k,
             pack_index(pack, block, blocks) * Order::kPackWords + word, at.shift);
        }
}

/// `stored`: [n, k]; others are zeros.
template <int Bits>
std::vector<uint8_t> int8_step_tiles(int64_t n, int64_t k, const std::vector<uint8_t>& stored) {
  using Order = FragmentOrder<Bits, 1>;
  const int64_t count = round_up(n, int64_t{kPanelRows}) / kPackRows * ceil_div(k, int64_t{Order::kPackK});
  std::vector<uint32_t> words(static_cast<size_t>(count * Order::kPackWords));
  for_each_field<Bits>(n, k, [&](int64_t row, int64_t column, int64_t word, int shift) {
    uint32_t code = row < n && column < k ? stored[static_cast<size_t>(row * k + column)] : 0u;
    if (Bits == kTrellis) code = trellis_planes(code) >> word % 2 & 1u;
    words[static_cast<size_t>(word)] |= code << shift;
  });
  const auto* const bytes = reinterpret_cast<const uint8_t*>(words.data());
  return {bytes, bytes + words.size() * sizeof(uint32_t)};
}

Int8StepWeight int8_step_weight(Rng& rng, const Int8StepCase& c, int64_t n, const std::array<int8_t, 16>& table) {
  const int bits = stored_bits(c.format, cuda::GemmActivation::kInt8).bits, width = stored_width(bits);
  Int8StepWeight w;
  std::vector<uint8_t> stored(static_cast<size_t>(n * c.k));
  w.values.resize(stored.size());
  for (int64_t r = 0; r < n; ++r) {
    unsigned window = 0;
    for (int64_t k = 0; k < c.k; ++k) {
      const auto at = static_cast<size_t>(r * c.k + k);
      const auto code = static_cast<uint8_t>(rng.below(1u << width));
      stored[at] = code;
      window = Trellis<2>::next(window, code);
      if (bits == kTable) stored[at] = static_cast<uint8_t>(cuda::stored_index(code));
      w.values[at] = bits == kTrellis ? table[kTrellisCodes<2>[window]]
                     : bits == kTable ? table[code]
                                      : static_cast<int8_t>(static_cast<int8_t>(code << (8 - width)) >> (8 - width));
    }
  }
  w.tiles = bits == kTrellis ? int8_step_tiles<kTrellis>(n, c.k, stored)
            : bits == kTable ? int8_step_tiles<kTable>(n, c.k, stored)
            : bits == 2      ? int8_step_tiles<2>(n, c.k, stored)
            : bits == 4      ? int8_step_tiles<4>(n, c.k, stored)
                             : int8_step_tiles<8>(n, c.k, stored);
  return w;
}

/// x as it is multiplied.
struct Int8StepRows {
  std::vector<int8_t> codes;  // [m, ld], zeros behind column k
  std::vector<float> scales;  // [m, groups]
  int64_t ld = 0, groups = 0;
};
Int8StepRows int8_step_rows(const Int8StepCase& c, std::vector<float> x, const std::vector<float>& norm) {
  Int8StepRows rows;
  rows.ld = round_up(c.k, int64_t{64}), rows.groups = ceil_div(c.k, int64_t{32});
  rows.codes.resize(static_cast<size_t>(c.m * rows.ld)), rows.scales.resize(static_cast<size_t>(c.m * rows.groups));
  std::vector<int32_t> sums(static_cast<size_t>(rows.groups));
  const auto& ops = *ref_table().vector;
  for (int64_t m = 0; m < c.m; ++m) {
    float* const row = x.data() + m * c.k;
    if (c.norm) ops.rms_norm(row, norm.data(), c.k, 1e-5f, row);
    int8_t* const codes = rows.codes.data() + m * rows.ld;
    float* const scales = rows.scales.data() + m * rows.groups;
    if (c.exact)
      conformance::exact_codes(row, c.k, rows.ld, codes, scales);
    else
      ops.quantize_groups_int8(row, nullptr, 1.0f, c.k, 32, rows.ld, false, codes, scales, sums.data());
  }
  return rows;
}

/// y [m, n] before an epilogue: docs/numerics.md#matmul. Exact scales: of one integer per scale, as no kernel of few
/// rows adds up.
std::vector<float> int8_step_sums(const Int8StepCase& c, const Int8StepRows& x, const std::vector<int8_t>& values,
                                  const std::vector<float>& scales, const std::vector<float>& bias) {
  const int64_t n = static_cast<int64_t>(values.size()) / c.k, pitch = cuda::factor_rows(n);
  const int64_t per_scale = c.group == 0 ? x.groups : c.group / 32;
  std::vector<float> y;
  for (int64_t m = 0; m < c.m; ++m)
    for (int64_t r = 0; r < n; ++r) {
      float acc = 0, part = 0;
      int32_t whole = 0;
      for (int64_t g = 0; g < x.groups; ++g) {
        int32_t sum = 0;
        for (int64_t k = 32 * g; k < std::min(c.k, 32 * g + 32); ++k)
          sum += int{values[size_t(r * c.k + k)]} * x.codes[size_t(m * x.ld + k)];
        const float x_scale = x.scales[size_t(m * x.groups + g)];
        whole += sum;
        part = c.exact ? static_cast<float>(whole) * x_scale : std::fmaf(static_cast<float>(sum), x_scale, part);
        if ((g + 1) % per_scale != 0 && g + 1 != x.groups) continue;
        acc = std::fmaf(part, scales[size_t(g * pitch + r)], acc);
        part = 0, whole = 0;
      }
      y.push_back(acc + (c.bias ? bias[size_t(r)] : 0.0f));
    }
  return y;
}

void check_int8_step(const Int8StepCase& c, uint64_t seed) {
  using cuda::ProductEnd;
  SCOPED_TRACE(testing::Message() << "case " << seed << ": m " << c.m << ", k " << c.k << ", group " << c.group
                                  << ", n " << testing::PrintToString(c.n) << ", format " << int(c.format) << ", end "
                                  << int(c.end) << ", norm " << c.norm << ", bias " << c.bias << ", codes " << c.codes
                                  << ", exact " << c.exact);
  Rng rng(seed, 41);
  cuda::MatmulKernel kernel{};
  kernel.name = "matmul_int8_steps";
  kernel.format = c.format;
  kernel.activation = Activation::kInt8;
  kernel.instance = [](const cuda::MatmulShape&) { return 0; };
  const std::vector<float> x = random_floats(rng, c.m * c.k), norm = random_floats(rng, c.k);
  const Int8StepRows rows = int8_step_rows(c, x, norm);
  const OnDevice<float> device_x(x), device_norm(norm), device_scales(rows.scales);
  const OnDevice<int8_t> device_codes(rows.codes);
  std::vector<OnDevice<uint8_t>> tiles;
  std::vector<OnDevice<float>> factors, biases, outputs;
  tiles.reserve(3), factors.reserve(3), biases.reserve(3), outputs.reserve(3);
  std::vector<std::vector<float>> wanted;
  cuda::StepProducts call;
  call.kernel = &kernel;
  for (const int64_t n : c.n) {
    std::array<int8_t, 16> table{};
    for (int8_t& entry : table) entry = static_cast<int8_t>(static_cast<int>(rng.below(256)) - 128);
    if (c.format != FormatId::kTrellis2) std::ranges::sort(table);  // as kernels get codebooks
    const Int8StepWeight w = int8_step_weight(rng, c, n, table);
    const int64_t pitch = cuda::factor_rows(n), per_scale = c.group == 0 ? rows.groups : c.group / 32;
    std::vector<float> scales(static_cast<size_t>(rows.groups * pitch));
    for (int64_t g = 0; g < rows.groups; ++g)
      for (int64_t r = 0; r < n; ++r)
        scales[size_t(g * pitch + r)] = g % per_scale == 0 ? static_cast<float>(0.1 * rng.normal())
                                                           : scales[size_t((g - g % per_scale) * pitch + r)];
    std::vector<float> bias = random_floats(rng, n);
    if (c.leaves && !wanted.empty())
      bias[3] = INFINITY, bias[size_t(n / 2)] = NAN, bias[size_t(n - 1)] = -INFINITY, bias[size_t(n - 33)] = 1e30f;
    const std::vector<float> before = random_floats(rng, c.m * n);
    wanted.push_back(int8_step_sums(c, rows, w.values, scales, bias));
    if (c.end == ProductEnd::kAdd)
      for (size_t i = 0; i < before.size(); ++i) wanted.back()[i] = before[i] + wanted.back()[i];
    tiles.emplace_back(w.tiles), factors.emplace_back(scales), biases.emplace_back(bias), outputs.emplace_back(before);
    cuda::Matmul& part = call.parts[size_t(call.count++)];
    part.w = {tiles.back().data(), 0, factors.back().data(), nullptr, nullptr, n, c.k, 32, rows.groups, per_scale};
    part.bias = c.bias ? biases.back().data() : nullptr;
    part.x_groups = true, part.exact_scales = c.exact, part.m = c.m, part.ldx = rows.ld;
    if (c.codes) part.x = device_codes.data(), part.x_scales = device_scales.data();
    part.x_element = cuda::Element::kInt8;
    for (size_t i = 0; i < 16; ++i) part.table[i / 4] |= uint32_t{static_cast<uint8_t>(table[i])} << (8 * (i % 4));
    part.y = outputs.back().data(), part.ldy = n;
    part.overlap = false;  // what was uploaded may not be there yet
  }
  if (!c.codes) call.rows = device_x.data(), call.norm = c.norm ? device_norm.data() : nullptr;
  call.eps = 1e-5f, call.end = c.end;
  OnDevice<int8_t> y_codes(std::vector<int8_t>(c.leaves ? size_t(c.n[0]) : 1, 55));
  OnDevice<float> y_scales(std::vector<float>(c.leaves ? size_t(c.n[0] / 32) : 1, -1.0f));
  if (c.leaves) {
    ASSERT_TRUE(cuda::leaves_codes(call));
    call.y_codes = y_codes.data(), call.y_scales = y_scales.data();
  }
  if (c.exact) {
    EXPECT_FALSE(cuda::leaves_codes(call));  // a block has 32 outputs
  }
  // A warp makes the codes of 128 columns, of one row.
  const bool takes = !c.exact || c.codes || c.m == 1 || c.k % kExactScaleColumns == 0;
  ASSERT_EQ(cuda::takes_step_products(call), takes);
  if (!takes) return;
  ASSERT_TRUE(cuda::step_products(call));
  const bool gates = c.end == ProductEnd::kSilu || c.end == ProductEnd::kSquaredRelu;
  const auto& ops = *ref_table().vector;
  if (gates)
    (c.end == ProductEnd::kSilu ? ops.silu_mul : ops.squared_relu_mul)(wanted[0].data(), wanted[1].data(), c.m * c.n[0],
                                                                       wanted[0].data());
  for (size_t part = 0; part < (gates ? 1 : wanted.size()); ++part)
    expect_same(outputs[part].back(), wanted[part], "product " + std::to_string(part));
  if (!c.leaves) return;
  const Int8StepRows left = int8_step_rows({.k = c.n[0], .n = {}}, wanted[0], {});
  ASSERT_EQ(y_codes.back(), left.codes);
  expect_same(y_scales.back(), left.scales, "scales of what was left");
}

/// Gated products of `n` outputs, which are enough for two teams of a thread block.
void check_int8_step_codes(const std::vector<int64_t>& n, const std::vector<FormatId>& formats) {
  using cuda::ProductEnd;
  uint64_t seed = 0;
  for (const int64_t outputs : n)
    for (const FormatId format : formats)
      for (const auto end : {ProductEnd::kSilu, ProductEnd::kSquaredRelu})
        check_int8_step({.k = 100 + 500 * int64_t(seed % 4),
                         .group = 32 << seed % 3,
                         .n = {outputs, outputs},
                         .format = format,
                         .end = end,
                         .norm = seed % 2 == 0,
                         .bias = true,
                         .leaves = true},
                        ++seed);
}

/// Elements of x that a thread block has room for with any format and group; more are for other kernels.
inline constexpr int64_t kMostStepElements = 12000;

/// Exact scales: a row and several, floats with a norm and without and codes, rows that end within a scale.
void check_int8_step_exact(uint64_t cases, int64_t most_columns) {
  using cuda::ProductEnd;
  for (uint64_t seed = 0; seed < cases && !testing::Test::HasFatalFailure(); ++seed) {
    Rng rng(seed, 43);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    Int8StepCase c;
    c.exact = true, c.group = 128;
    c.m = seed % 2 == 0 ? 1 : 2 + below(7);
    c.format = seed % 4 < 2 ? FormatId::kInt4 : FormatId::kInt2;
    c.end =
        std::array{ProductEnd::kStore, ProductEnd::kAdd, ProductEnd::kSilu, ProductEnd::kSquaredRelu}[size_t(below(4))];
    const int64_t most = std::min(most_columns, kMostStepElements / c.m);
    c.k = below(2) == 0 ? 128 * (2 + below(most / 128 - 1)) : 4 * (33 + below(most / 4 - 32));
    const bool pairs = c.end == ProductEnd::kSilu || c.end == ProductEnd::kSquaredRelu;
    for (int64_t i = pairs ? 2 : 1 + below(3); i > 0; --i)
      c.n.push_back(pairs && !c.n.empty() ? c.n[0] : pairs && below(2) == 0 ? 64 : 1 + below(90));
    c.codes = below(3) == 0, c.norm = !c.codes && below(2) == 0, c.bias = below(2) == 0;
    check_int8_step(c, seed);
  }
}

/// `trellis`: of this format alone.
void check_int8_step_all(uint64_t cases, int64_t most_columns, bool trellis) {
  using cuda::ProductEnd;
  for (uint64_t seed = 0; seed < cases && !testing::Test::HasFatalFailure(); ++seed) {
    Rng rng(seed, 42);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    Int8StepCase c;
    c.m = seed % 2 == 0 ? 1 : 1 + below(8);
    c.format =
        trellis ? FormatId::kTrellis2
                : std::array{FormatId::kInt2, FormatId::kInt4, FormatId::kInt8, FormatId::kCodebook4}[size_t(below(4))];
    c.end =
        std::array{ProductEnd::kStore, ProductEnd::kAdd, ProductEnd::kSilu, ProductEnd::kSquaredRelu}[size_t(below(4))];
    const int64_t most = std::min(most_columns, kMostStepElements / c.m);
    c.k = 4 * (9 + below(most / 4 - 8));  // two activation groups and more
    c.group = std::array{32, 64, 128, 256}[size_t(below(4))];
    while (c.group > c.k) c.group /= 2;  // five activation groups to a scale are for other kernels
    if (c.m == 1 && c.format != FormatId::kCodebook4 && c.format != FormatId::kTrellis2 && c.k > 256 && below(4) == 0)
      c.group = 0;
    const bool pairs = c.end == ProductEnd::kSilu || c.end == ProductEnd::kSquaredRelu;
    for (int64_t i = pairs ? 2 : 1 + below(3); i > 0; --i)
      c.n.push_back(pairs && !c.n.empty() ? c.n[0] : 1 + below(below(4) == 0 ? 300 : 90));
    c.codes = below(3) == 0, c.norm = !c.codes && below(2) == 0, c.bias = below(2) == 0;
    check_int8_step(c, seed);
  }
}

}  // namespace
}  // namespace lowbit
