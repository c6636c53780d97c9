#include "gru/cell.h"

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "gru/table.h"
#include "quantize/observer.h"

namespace lowbit {
namespace {

constexpr int kExtraShifts = 3;  // that feedback rounding tries beyond the covering one

/// The rows that share a shift with row c.
std::array<int64_t, 2> sharing_rows(GruGranularity granularity, int64_t hidden, int64_t c) {
  if (granularity == GruGranularity::kRow) return {c, c + 1};
  if (granularity == GruGranularity::kGate) return {c / hidden * hidden, (c / hidden + 1) * hidden};
  return {0, 3 * hidden};
}

Range range_of(std::span<const float> values) {
  MinMaxObserver observer;
  observer.observe(values);
  return observer.range();
}

int covering_shift(std::span<const float> values, const GruFormat& f) {
  // pow2_params knows up to 16 bits; a symmetric grid of more bits is the same shift plus the missing bits.
  const int bits = std::min(f.bits, 16);
  const int shift = pow2_params(range_of(values), {bits, f.is_unsigned, f.symmetric}, f.saturate).shift + f.bits - bits;
  return std::min(shift, kMaxShift);
}

/// Largest shift of the weights for which |bias| 2^(shift + input shift) stays below 2^30.
int bias_cap(float bias, int input_shift) {
  if (bias == 0) return kMaxShift;
  return std::min(kMaxShift, 29 - std::ilogb(bias) - input_shift);
}

template <class T>
T round_to(double v, const GruFormat& f) {
  return static_cast<T>(std::clamp(std::nearbyint(v), static_cast<double>(f.q_min()), static_cast<double>(f.q_max())));
}

/// One of a cell's two products: weights and bias in, integers out.
struct Product {
  std::span<const float> w, bias;
  int64_t hidden, k;
  int input_shift;
  const GruFormat &format, &bias_format;
  const GruConfig& config;
  std::span<const double> hessian;  // [k + 1, k + 1] or empty
  const char* name;
};

struct ProductIntegers {
  std::vector<int32_t> q, zp, shift, bias, bias_shift;
};

Status choose_shifts(const Product& p, std::vector<int32_t>& shift) {
  shift.resize(static_cast<size_t>(3 * p.hidden));
  for (int64_t c = 0; c < 3 * p.hidden; ++c) {
    const auto [first, last] = sharing_rows(p.config.granularity, p.hidden, c);
    int& s = shift[static_cast<size_t>(c)];
    if (c > first) {
      s = shift[static_cast<size_t>(first)];
      continue;
    }
    s = covering_shift(p.w.subspan(static_cast<size_t>(first * p.k), static_cast<size_t>((last - first) * p.k)),
                       p.format);
    for (int64_t i = first; i < last; ++i) s = std::min(s, bias_cap(p.bias[static_cast<size_t>(i)], p.input_shift));
    if (s < -kMaxShift)
      return fail(ErrorCode::kUnsupported, std::string("gru ") + p.name + " row " + std::to_string(c),
                  "weights or a bias that need the scale 2^" + std::to_string(-s), "at most 2^31",
                  "a number of 10^9 in a network is usually a damaged one");
  }
  return {};
}

/// Asymmetric rows: the least code is the least weight, at the shift that was chosen.
void choose_zero_points(const Product& p, ProductIntegers& out) {
  out.zp.assign(static_cast<size_t>(3 * p.hidden), 0);
  if (p.format.symmetric) return;
  const auto low = static_cast<double>(p.format.q_min()), high = static_cast<double>(p.format.q_max());
  for (int64_t c = 0; c < 3 * p.hidden; ++c) {
    const auto [first, last] = sharing_rows(p.config.granularity, p.hidden, c);
    const float least =
        range_of(p.w.subspan(static_cast<size_t>(first * p.k), static_cast<size_t>((last - first) * p.k))).min;
    const double lowest = std::floor(std::ldexp(static_cast<double>(least), out.shift[static_cast<size_t>(c)]));
    out.zp[static_cast<size_t>(c)] = static_cast<int32_t>(std::clamp(low - lowest, low, high));
  }
}

void round_nearest(const Product& p, ProductIntegers& out) {
  for (size_t i = 0; i < p.w.size(); ++i)
    out.q[i] = round_to<int32_t>(
        std::nearbyint(std::ldexp(static_cast<double>(p.w[i]), out.shift[i / static_cast<size_t>(p.k)])) +
            out.zp[i / static_cast<size_t>(p.k)],
        p.format);
}

Result<ProductIntegers> quantize_product(const Product& p) {
  ProductIntegers out;
  LOWBIT_TRY(choose_shifts(p, out.shift));
  choose_zero_points(p, out);
  const auto rows = static_cast<size_t>(3 * p.hidden);
  out.q.resize(p.w.size());
  std::vector<float> bias(p.bias.begin(), p.bias.end());
  if (p.hessian.empty()) {
    round_nearest(p, out);
  } else {
    round_with_feedback(
        // A finer shift would need another zero point: only symmetric rows try them.
        {p.w, p.k, p.hessian, p.format,
         p.config.granularity == GruGranularity::kRow && p.format.symmetric ? kExtraShifts : 0, p.input_shift, out.zp},
        out.shift, out.q, bias);
  }
  out.bias.resize(rows);
  out.bias_shift.resize(rows);
  for (size_t c = 0; c < rows; ++c) {
    const auto [first, last] = sharing_rows(p.config.granularity, p.hidden, static_cast<int64_t>(c));
    int& s = out.bias_shift[c];
    s = p.config.bias_at_product_scale
            ? out.shift[c] + p.input_shift
            : covering_shift(std::span(bias).subspan(static_cast<size_t>(first), static_cast<size_t>(last - first)),
                             p.bias_format);
    out.bias[c] = round_to<int32_t>(std::ldexp(static_cast<double>(bias[c]), s), p.bias_format);
  }
  return out;
}

}  // namespace

Result<GruCell> build_gru_cell(const GruWeights& weights, const std::array<GruParam, kGruTensors>& tensors,
                               const GruConfig& config, const GruHessian& hessian) {
  LOWBIT_TRY(check_gru_config(config));
  GruCell cell;
  cell.input = weights.input;
  cell.hidden = weights.hidden;
  cell.tensors = tensors;
  cell.w_format = config.w;
  cell.r_format = config.r;
  cell.bw_format = config.bw;
  cell.br_format = config.br;
  LOWBIT_TRY_ASSIGN(ProductIntegers w,
                    quantize_product({weights.w, weights.bw, weights.hidden, weights.input,
                                      cell[GruTensor::kX].scale.shift, config.w, config.bw, config, hessian.x, "W"}));
  LOWBIT_TRY_ASSIGN(ProductIntegers r,
                    quantize_product({weights.r, weights.br, weights.hidden, weights.hidden,
                                      cell[GruTensor::kH].scale.shift, config.r, config.br, config, hessian.h, "R"}));
  cell.w = std::move(w.q);
  cell.w_zp = std::move(w.zp);
  cell.r_zp = std::move(r.zp);
  cell.w_shift = std::move(w.shift);
  cell.bw = std::move(w.bias);
  cell.bw_shift = std::move(w.bias_shift);
  cell.r = std::move(r.q);
  cell.r_shift = std::move(r.shift);
  cell.br = std::move(r.bias);
  cell.br_shift = std::move(r.bias_shift);
  for (size_t i = 0; i < 3; ++i) {
    const GruParam& out = cell[kGateOutputs[i]];
    const int segments = config.segments != 0 ? config.segments : default_segments(out.format.bits);
    cell.tables[i] = make_table(i == 2 ? GruFunction::kTanh : GruFunction::kSigmoid, cell[kGateInputs[i]], out,
                                config.table, segments);
  }
  return cell;
}

}  // namespace lowbit
