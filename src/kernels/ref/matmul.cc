// y[m, n] = sum_k x[m, k] * real(w)[n, k] + bias[n]: the normative loops, one kernel per (format, activation).
// Rows stay in canonical packing; behind a row's codes lie its scales and offsets in f32. Never optimised: the numerics
// comment at MatmulArgs (kernels/api.h) in code. Source: seed 000 section 2.1.

#include <array>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/float.h"
#include "format/formats.h"
#include "format/registry.h"
#include "kernels/kernel_name.h"
#include "kernels/tables.h"

namespace lowbit {
namespace {

// Dense formats in the shape of a list entry.
struct DenseF32 {
  static constexpr FormatId kId = FormatId::kF32;
  static constexpr const char* kName = "f32";
  using Element = float;
  static float value(float v) { return v; }
};
struct DenseF16 {
  static constexpr FormatId kId = FormatId::kF16;
  static constexpr const char* kName = "f16";
  using Element = uint16_t;
  static float value(uint16_t v) { return f16_to_f32(v); }
};
struct DenseBf16 {
  static constexpr FormatId kId = FormatId::kBf16;
  static constexpr const char* kName = "bf16";
  using Element = uint16_t;
  static float value(uint16_t v) { return bf16_to_f32(v); }
};

template <class F>
concept Dense = requires {
  typename F::Element;
};
template <class F>
constexpr bool kIntegerValues = false;
template <class F>
requires requires { F::Codec::kKind; }
constexpr bool kIntegerValues<F> = F::Codec::kKind == CodecKind::kInteger;

struct RowLayout {
  int64_t scales, offsets, bytes;  // byte positions of f32 arrays behind the codes
};
RowLayout row_layout(FormatId id, const PanelShape& s) {
  const int64_t scales = round_up(row_bytes(id, s.k), 4), offsets = scales + 4 * s.groups;
  return {scales, offsets, round_up(offsets + (s.offsets ? 4 * s.groups : 0), 64)};
}

template <class F>
int64_t panel_bytes(const PanelShape& s) {
  return row_layout(F::kId, s).bytes;
}

template <class F>
void relayout(const CanonicalRows& rows, const PanelShape& s, uint8_t* panel, uint8_t*) {
  const RowLayout at = row_layout(F::kId, s);
  std::memcpy(panel, rows.codes, size_t(row_bytes(F::kId, s.k)));
  for (int64_t g = 0; g < s.groups; ++g) {
    const float scale = rows.scales == nullptr ? 1.0f : rows.scales[g];
    std::memcpy(panel + at.scales + 4 * g, &scale, 4);
    if (s.offsets) std::memcpy(panel + at.offsets + 4 * g, &rows.offsets[g], 4);
  }
}

int64_t scratch_bytes(int64_t, const PanelShape& s) { return round_up(4 * s.k, 64) + round_up(s.k, 64); }

/// values[0..k) = what the codes of one row mean.
template <class F>
void decode_row(const uint8_t* row, const float* table, int64_t k, float* values, uint8_t* codes) {
  if constexpr (Dense<F>) {
    for (int64_t i = 0; i < k; ++i) {
      typename F::Element e;
      std::memcpy(&e, row + i * int64_t(sizeof e), sizeof e);
      values[i] = F::value(e);
    }
  } else {
    const FormatOps& ops = format_ops(F::kId);
    ops.unpack(row, 0, k, codes);
    const float* meaning = F::Codec::kKind == CodecKind::kTable ? table : ops.values;
    for (int64_t i = 0; i < k; ++i) values[i] = meaning[codes[i]];
  }
}

template <class F>
float group_sum_int8(const float* values, const int8_t* xq, int64_t begin, int64_t end) {
  if constexpr (kIntegerValues<F>) {
    int32_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += int32_t(values[i]) * xq[i];
    return float(sum);
  } else {
    float sum = 0;
    for (int64_t i = begin; i < end; ++i) sum = std::fma(values[i], float(xq[i]), sum);
    return sum;
  }
}

float group_sum_f32(const float* values, const float* x, int64_t begin, int64_t end) {
  float sum = 0;
  for (int64_t i = begin; i < end; ++i) sum = std::fma(values[i], x[i], sum);
  return sum;
}

template <class F, Activation A>
void run(const MatmulArgs& a) {
  const PanelShape& s = a.shape;
  const RowLayout at = row_layout(F::kId, s);
  float* values = reinterpret_cast<float*>(a.scratch);  // [k]
  uint8_t* codes = a.scratch + round_up(4 * s.k, 64);   // [k]
  for (int64_t n = a.n0; n < a.n1; ++n) {
    const uint8_t* row = a.w + n * at.bytes;
    const float* scales = reinterpret_cast<const float*>(row + at.scales);    // [groups]
    const float* offsets = reinterpret_cast<const float*>(row + at.offsets);  // [groups]
    decode_row<F>(row, a.table, s.k, values, codes);
    for (int64_t m = 0; m < a.m; ++m) {
      float acc = 0;
      for (int64_t g = 0; g < s.groups; ++g) {
        const int64_t begin = g * s.group, end = begin + s.group < s.k ? begin + s.group : s.k;
        float sum = 0;
        if constexpr (A == Activation::kF32) {
          sum = group_sum_f32(values, a.x + m * a.ldx, begin, end);
        } else if constexpr (A == Activation::kFp8) {
          for (int64_t j = begin / s.x_group; j * s.x_group < end; ++j) {
            const int64_t stop = (j + 1) * s.x_group < end ? (j + 1) * s.x_group : end;
            const float part = group_sum_f32(values, a.x + m * a.ldx, j * s.x_group, stop);
            sum = std::fma(part, a.x_group_scale[m * s.x_groups + j], sum);
          }
        } else if (a.x_group_scale == nullptr) {
          sum = group_sum_int8<F>(values, a.xq + m * a.ldxq, begin, end);
        } else {
          for (int64_t j = begin / s.x_group; j * s.x_group < end; ++j) {
            const int64_t stop = (j + 1) * s.x_group < end ? (j + 1) * s.x_group : end;
            const float part = group_sum_int8<F>(values, a.xq + m * a.ldxq, j * s.x_group, stop);
            sum = std::fma(part, a.x_group_scale[m * s.x_groups + j], sum);
          }
        }
        acc = std::fma(sum, scales[g], acc);
        if (s.offsets) acc = std::fma(a.x_sums[m * s.groups + g], offsets[g], acc);
      }
      const float bias = a.bias == nullptr ? 0.0f : a.bias[n];
      a.y[m * a.ldy + n] = a.x_scale != nullptr ? std::fma(acc, a.x_scale[m], bias) : acc + bias;
    }
  }
}

template <class F, Activation A>
constexpr KernelName kNameOf = matmul_name(F::kName, A, "ref");

template <class F, Activation A>
struct KernelOf {
  static constexpr MatmulKernel value{kNameOf<F, A>.text,
                                      "docs/kernels.md#reference",
                                      F::kId,
                                      A,
                                      0,
                                      1,
                                      1,
                                      &panel_bytes<F>,
                                      &relayout<F>,
                                      &scratch_bytes,
                                      &run<F, A>};
};
template <class F>
using Int8KernelOf = KernelOf<F, Activation::kInt8>;
template <class F>
using F32KernelOf = KernelOf<F, Activation::kF32>;

template <size_t A, size_t B>
constexpr auto join(const std::array<MatmulKernel, A>& a, const std::array<MatmulKernel, B>& b) {
  std::array<MatmulKernel, A + B> all{};
  for (size_t i = 0; i < A; ++i) all[i] = a[i];
  for (size_t i = 0; i < B; ++i) all[A + i] = b[i];
  return all;
}

template <template <class> class Kernel>
constexpr auto kernels_of() {
  return join(std::array{Kernel<DenseF32>::value, Kernel<DenseF16>::value, Kernel<DenseBf16>::value},
              make_table<Kernel>(FormatList{}));
}
constexpr auto kKernels = join(join(kernels_of<Int8KernelOf>(), kernels_of<F32KernelOf>()),
                               std::array{KernelOf<Fp8, Activation::kFp8>::value});

}  // namespace

constinit const KernelTable kRefTable = {"ref", kKernels.data(), int(kKernels.size()), &kRefVectorOps};

}  // namespace lowbit
