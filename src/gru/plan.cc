#include "gru/plan.h"

#include <algorithm>

#include "base/rounding.h"
#include "base/try.h"

namespace lowbit {
namespace {

using Wide = __int128;

Wide magnitude(Wide v) { return v < 0 ? -v : v; }

/// Bits of a two's complement number that holds +-m.
int width_of(Wide m) {
  int bits = 1;
  for (; m > 0; m >>= 1) ++bits;
  return bits;
}

/// The largest intermediate of rs(x, k) for |x| <= m: the rounding term, or the number shifted left.
Wide shift_peak(Wide m, int k) {
  if (k > 0) return m + (Wide{1} << std::min(k, 62) >> 1);
  return k < -64 && m > 0 ? Wide{1} << 100 : m << std::min(-k, 64);
}

/// The largest |rs(x, k)|.
Wide shift_result(Wide m, int k) {
  if (k <= 0) return shift_peak(m, k);
  return k >= 63 ? 0 : (m >> k) + 1;
}

Wide reach(const GruGrid& g) { return std::max(magnitude(Wide{g.hi} - g.zp), magnitude(Wide{g.lo} - g.zp)); }

/// Collects the peaks of a stage.
class Stage {
 public:
  Stage(const char* name, int& width) : name_(name), width_(width) { width_ = 1; }
  void peak(Wide m) {
    width_ = std::max(width_, width_of(m));
    operand_ = std::max(operand_, m);
  }
  /// rs(x, k); returns the largest result.
  Wide shift(Wide m, int k) {
    peak(m);
    width_ = std::max(width_, width_of(shift_peak(m, k)));
    result_ = std::max(result_, shift_result(m, k));
    return shift_result(m, k);
  }
  /// Floats of `digits` binary digits hold all operands; adding 1.5 * 2^(digits - 1) rounds all results.
  bool exact_in(int digits) const { return operand_ <= Wide{1} << digits && result_ <= Wide{1} << (digits - 2); }
  Status check(const std::string& more = "") const {
    if (width_ <= 63) return {};
    return fail(ErrorCode::kUnsupported, std::string("gru plan, ") + name_ + more,
                "a number of " + std::to_string(width_) + " bits", "at most 63",
                "scales that differ this much come from ranges that do not belong together");
  }

 private:
  const char* name_;
  int& width_;
  Wide operand_ = 0, result_ = 0;
};

Status check_param(const GruParam& p, const char* name) {
  const auto bad = [&](const std::string& got, const std::string& wanted) {
    return fail(ErrorCode::kCorrupt, std::string("gru ") + name, got, wanted);
  };
  if (p.format.bits < 1 || p.format.bits > 16) return bad(std::to_string(p.format.bits) + " bits", "1 to 16");
  if (p.scale.shift < -kMaxShift || p.scale.shift > kMaxShift)
    return bad("shift " + std::to_string(p.scale.shift), "-31 to 31");
  if (p.scale.zp < p.lo() || p.scale.zp > p.hi())
    return bad("zero point " + std::to_string(p.scale.zp), std::to_string(p.lo()) + " to " + std::to_string(p.hi()));
  if (p.format.symmetric && p.scale.zp != 0)
    return bad("zero point " + std::to_string(p.scale.zp), "0: it is symmetric");
  return {};
}

template <class T>
Status check_codes(const std::vector<T>& q, int64_t count, const GruFormat& f, const char* name) {
  if (static_cast<int64_t>(q.size()) != count)
    return fail(ErrorCode::kCorrupt, std::string("gru ") + name, std::to_string(q.size()) + " numbers",
                std::to_string(count));
  for (const T v : q)
    if (v < f.q_min() || v > f.q_max())
      return fail(ErrorCode::kCorrupt, std::string("gru ") + name, std::to_string(v),
                  std::to_string(f.q_min()) + " to " + std::to_string(f.q_max()));
  return {};
}

Status check_zero_points(const std::vector<int32_t>& zp, int64_t count, const GruFormat& f, const char* name) {
  if (zp.empty()) return {};
  LOWBIT_TRY(check_codes(zp, count, f, name));
  const bool zero = std::all_of(zp.begin(), zp.end(), [](int32_t z) { return z == 0; });
  if (zero || !f.symmetric) return {};
  return fail(ErrorCode::kCorrupt, std::string("gru ") + name, "zero points", "none: it is symmetric");
}

/// Codes minus their rows' zero points, and the bits that these need.
std::vector<int32_t> centred_weights(const std::vector<int32_t>& q, const std::vector<int32_t>& zp, int& bits) {
  std::vector<int32_t> out = q;
  const size_t k = zp.empty() ? 1 : q.size() / zp.size();
  int32_t low = 0, high = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (!zp.empty()) out[i] -= zp[i / k];
    low = std::min(low, out[i]);
    high = std::max(high, out[i]);
  }
  bits = 1;
  while (low < -(1 << (bits - 1)) || high >= 1 << (bits - 1)) ++bits;
  return out;
}

Status check_shifts(const std::vector<int32_t>& s, int64_t count, int reach, const char* name) {
  const bool inside = std::all_of(s.begin(), s.end(), [&](int32_t v) { return v >= -reach && v <= reach; });
  if (static_cast<int64_t>(s.size()) == count && inside) return {};
  return fail(ErrorCode::kCorrupt, std::string("gru shifts of ") + name,
              inside ? std::to_string(s.size()) + " shifts" : "one out of range",
              std::to_string(count) + " from -" + std::to_string(reach) + " to " + std::to_string(reach));
}

Status check_table(const GruTable& t, const GruParam& in, const GruParam& out, const char* name) {
  const auto bad = [&](const std::string& got, const std::string& wanted) {
    return fail(ErrorCode::kCorrupt, std::string("gru table ") + name, got, wanted);
  };
  if (t.mode == GruTableMode::kDirect) {
    if (t.direct.size() != size_t{1} << in.format.bits)
      return bad(std::to_string(t.direct.size()) + " entries", std::to_string(1 << in.format.bits));
    for (const int32_t v : t.direct)
      if (v < out.lo() || v > out.hi()) return bad("entry " + std::to_string(v), "codes of its output");
    return {};
  }
  const size_t n = t.slope.size();
  if (n < 1 || n > kMaxSegments || t.threshold.size() != n - 1 || t.shift.size() != n || t.intercept.size() != n)
    return bad(std::to_string(n) + " segments", "1 to 1024, with a threshold between each two");
  for (size_t i = 1; i < t.threshold.size(); ++i)
    if (t.threshold[i] <= t.threshold[i - 1]) return bad("thresholds that do not ascend", "ascending ones");
  for (const int32_t k : t.shift)
    if (k < -31 || k > 62) return bad("shift " + std::to_string(k), "-31 to 62");
  return {};
}

Status check_cell(const GruCell& c) {
  if (c.input < 1 || c.hidden < 1 || c.input > kMaxGruSize || c.hidden > kMaxGruSize)
    return fail(ErrorCode::kCorrupt, "gru cell",
                std::to_string(c.input) + " inputs, " + std::to_string(c.hidden) + " hidden",
                "1 to " + std::to_string(kMaxGruSize));
  for (int i = 0; i < kGruTensors; ++i)
    LOWBIT_TRY(check_param(c.tensors[static_cast<size_t>(i)], gru_tensor_name(static_cast<GruTensor>(i))));
  const int64_t rows = 3 * c.hidden;
  LOWBIT_TRY(check_codes(c.w, rows * c.input, c.w_format, "weight.W"));
  LOWBIT_TRY(check_codes(c.r, rows * c.hidden, c.r_format, "weight.R"));
  LOWBIT_TRY(check_codes(c.bw, rows, c.bw_format, "weight.bw"));
  LOWBIT_TRY(check_codes(c.br, rows, c.br_format, "weight.br"));
  LOWBIT_TRY(check_zero_points(c.w_zp, rows, c.w_format, "weight.W"));
  LOWBIT_TRY(check_zero_points(c.r_zp, rows, c.r_format, "weight.R"));
  LOWBIT_TRY(check_shifts(c.w_shift, rows, kMaxShift, "weight.W"));
  LOWBIT_TRY(check_shifts(c.r_shift, rows, kMaxShift, "weight.R"));
  LOWBIT_TRY(check_shifts(c.bw_shift, rows, 2 * kMaxShift, "weight.bw"));
  LOWBIT_TRY(check_shifts(c.br_shift, rows, 2 * kMaxShift, "weight.br"));
  for (size_t i = 0; i < 3; ++i)
    LOWBIT_TRY(check_table(c.tables[i], c[kGateInputs[i]], c[kGateOutputs[i]], gru_tensor_name(kGateOutputs[i])));
  if (c[GruTensor::kU].scale.shift < 0)
    return fail(ErrorCode::kCorrupt, "gru gate.update_output", "shift " + std::to_string(c[GruTensor::kU].scale.shift),
                "0 or more: 1.0 must be a whole number of steps");
  return {};
}

/// One product's folded biases and shifts, and the peak of its sums.
struct Fold {
  const std::vector<int32_t>& w;
  const std::vector<int32_t>&bias, &w_shift, &bias_shift;
  const GruGrid &in, &out;
  int64_t k;
};

Status fold_product(const Fold& f, std::vector<int64_t>& folded, std::vector<int32_t>& shift, Stage& stage) {
  const Wide largest = std::max(magnitude(f.in.lo), magnitude(f.in.hi));
  for (size_t c = 0; c < f.bias.size(); ++c) {
    int64_t sum = 0, absolute = 0;
    for (int64_t i = 0; i < f.k; ++i) {
      const int64_t v = f.w[c * static_cast<size_t>(f.k) + static_cast<size_t>(i)];
      sum += v;
      absolute += v < 0 ? -v : v;
    }
    // Beyond 62 places to the left only zeros pass the proof; the shift itself must stay defined for them.
    const int to_product = std::max(f.bias_shift[c] - (f.w_shift[c] + f.in.shift), -62);
    const Wide bias_peak = stage.shift(magnitude(f.bias[c]), to_product);
    stage.peak(bias_peak + magnitude(Wide{f.in.zp} * sum));
    LOWBIT_TRY(stage.check(" bias of row " + std::to_string(c)));
    folded.push_back(rounding_shift(f.bias[c], to_product) - int64_t{f.in.zp} * sum);
    shift.push_back(std::max(f.w_shift[c] + f.in.shift - f.out.shift, -62));
    const Wide rounded = stage.shift(largest * absolute + magnitude(folded.back()), shift.back());
    stage.peak(rounded + magnitude(f.out.zp));
    LOWBIT_TRY(stage.check(" of row " + std::to_string(c)));
  }
  return {};
}

GruTableView view_of(const GruTable& t) {
  GruTableView v;
  v.kind = t.mode == GruTableMode::kDirect ? GruTableView::kDirect
           : t.mode == GruTableMode::kSeed ? GruTableView::kSeed
                                           : GruTableView::kFused;
  v.segments = static_cast<int>(t.slope.size());
  v.threshold = t.threshold.data();
  v.slope = t.slope.data();
  v.intercept = t.intercept.data();
  v.shift = t.shift.data();
  v.direct = t.direct.data();
  return v;
}

}  // namespace

Status GruPlan::fold() {
  spec_.c = cell_.input;
  spec_.h = cell_.hidden;
  for (size_t i = 0; i < kGruTensors; ++i) {
    const GruParam& p = cell_.tensors[i];
    spec_.grid[i] = {p.lo(), p.hi(), p.scale.zp, p.scale.shift};
  }
  const GruGrid* g = spec_.grid;
  w_ = centred_weights(cell_.w, cell_.w_zp, spec_.w_bits);
  r_ = centred_weights(cell_.r, cell_.r_zp, spec_.r_bits);
  Stage input("the input product", widths_.input_product), state("the state product", widths_.state_product);
  LOWBIT_TRY(fold_product({w_, cell_.bw, cell_.w_shift, cell_.bw_shift, g[kSlotX], g[kSlotIh], cell_.input}, x_bias_,
                          x_shift_, input));
  LOWBIT_TRY(fold_product({r_, cell_.br, cell_.r_shift, cell_.br_shift, g[kSlotH], g[kSlotHh], cell_.hidden}, h_bias_,
                          h_shift_, state));
  spec_.input_f64 = input.exact_in(53);
  spec_.state_f32 = state.exact_in(24);
  spec_.state_f64 = state.exact_in(53);
  spec_.w = w_.data();
  spec_.r = r_.data();
  spec_.x_bias = x_bias_.data();
  spec_.h_bias = h_bias_.data();
  spec_.x_shift = x_shift_.data();
  spec_.h_shift = h_shift_.data();
  for (size_t i = 0; i < 3; ++i) spec_.table[i] = view_of(cell_.tables[i]);
  return {};
}

Status GruPlan::prove() {
  const GruGrid* g = spec_.grid;
  const Wide ih = reach(g[kSlotIh]), hh = reach(g[kSlotHh]), r = reach(g[kSlotR]), n = reach(g[kSlotN]);
  Stage gate("a gate's sum", widths_.gate_sum), candidate("the candidate's sum", widths_.candidate);
  Stage state("the new state", widths_.state), table("a table", widths_.table);
  for (const int slot : {kSlotUi, kSlotRi})
    gate.peak(gate.shift(ih, g[kSlotIh].shift - g[slot].shift) + gate.shift(hh, g[kSlotHh].shift - g[slot].shift) +
              magnitude(g[slot].zp));
  LOWBIT_TRY(gate.check());
  candidate.peak(candidate.shift(ih, g[kSlotIh].shift - g[kSlotNi].shift) +
                 candidate.shift(r * hh, g[kSlotR].shift + g[kSlotHh].shift - g[kSlotNi].shift) +
                 magnitude(g[kSlotNi].zp));
  LOWBIT_TRY(candidate.check());
  const Wide aligned = state.shift(n, g[kSlotN].shift - g[kSlotH].shift);
  LOWBIT_TRY(state.check());
  const Wide one = (Wide{1} << g[kSlotU].shift) + g[kSlotU].zp;
  const Wide rest = std::max(magnitude(one - g[kSlotU].lo), magnitude(one - g[kSlotU].hi));
  state.peak(rest);
  state.peak(state.shift(reach(g[kSlotU]) * reach(g[kSlotH]) + rest * aligned, g[kSlotU].shift) +
             magnitude(g[kSlotH].zp));
  LOWBIT_TRY(state.check());
  for (size_t i = 0; i < 3; ++i) {
    const GruTable& t = cell_.tables[i];
    const GruGrid& in = g[static_cast<size_t>(kGateInputs[i])];
    const GruGrid& out = g[static_cast<size_t>(kGateOutputs[i])];
    for (size_t s = 0; s < t.slope.size(); ++s) {
      const Wide intercept = magnitude(t.intercept[s]), product = magnitude(t.slope[s]) * reach(in);
      const bool fused = t.mode == GruTableMode::kFused;
      table.peak(table.shift(fused ? product + intercept : product, t.shift[s]) + magnitude(out.zp) +
                 (fused ? 0 : intercept));
      LOWBIT_TRY(table.check());
    }
  }
  spec_.input32 = widths_.input_product <= 32;
  spec_.state32 = widths_.state_product <= 32;
  spec_.elements_f32 = gate.exact_in(24) && candidate.exact_in(24) && state.exact_in(24);
  spec_.elements_f64 = gate.exact_in(53) && candidate.exact_in(53) && state.exact_in(53);
  spec_.elements32 = std::max({widths_.gate_sum, widths_.candidate, widths_.state}) <= 32;
  return {};
}

Result<std::shared_ptr<const GruPlan>> GruPlan::make(GruCell cell) {
  LOWBIT_TRY(check_cell(cell));
  std::shared_ptr<GruPlan> plan(new GruPlan());
  plan->cell_ = std::move(cell);
  LOWBIT_TRY(plan->fold());
  LOWBIT_TRY(plan->prove());
  return std::shared_ptr<const GruPlan>(plan);
}

std::vector<int32_t> GruPlan::derived_shifts() const {
  const GruGrid* g = spec_.grid;
  const auto s = [&](int slot) { return g[slot].shift; };
  std::vector<int32_t> out = {s(kSlotIh) - s(kSlotUi), s(kSlotHh) - s(kSlotUi),
                              s(kSlotIh) - s(kSlotRi), s(kSlotHh) - s(kSlotRi),
                              s(kSlotIh) - s(kSlotNi), s(kSlotR) + s(kSlotHh) - s(kSlotNi),
                              s(kSlotN) - s(kSlotH),   s(kSlotU)};
  out.insert(out.end(), x_shift_.begin(), x_shift_.end());
  out.insert(out.end(), h_shift_.begin(), h_shift_.end());
  return out;
}

}  // namespace lowbit
