// Runs the float network and watches its tensors.

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "gru/float_forward.h"
#include "gru/ranges.h"

namespace lowbit {
namespace {

constexpr std::array<const char*, 5> kMethods = {"minmax", "ema", "percentile", "mse", "sqnr"};

/// One tensor under one method.
class TensorObserver {
 public:
  TensorObserver(const GruCalibrateOptions& options, GruTensor tensor)
      : method_(options.method), percentile_(options.percentile) {
    if (method_ == GruMethod::kEma && tensor != GruTensor::kX && tensor != GruTensor::kH) method_ = GruMethod::kMinMax;
  }
  void observe(std::span<const float> values) {
    switch (method_) {
      case GruMethod::kMinMax:
        min_max_.observe(values);
        return;
      case GruMethod::kEma:
        ema_.observe(values);
        return;
      case GruMethod::kPercentile:
        percentile_.observe(values);
        return;
      case GruMethod::kMse:
      case GruMethod::kSqnr:
        histogram_.observe(values);
        return;
    }
  }
  Range range() const {
    switch (method_) {
      case GruMethod::kMinMax:
        return min_max_.range();
      case GruMethod::kEma:
        return ema_.range();
      case GruMethod::kPercentile:
        return percentile_.range();
      default:
        return histogram_.range();
    }
  }
  const Histogram& histogram() const { return histogram_; }

 private:
  GruMethod method_;
  MinMaxObserver min_max_;
  EmaObserver ema_;
  PercentileObserver percentile_;
  Histogram histogram_;
};

/// The observers of one cell.
using CellObservers = std::vector<TensorObserver>;

TensorObserver& of(CellObservers& c, GruTensor t) { return c[static_cast<size_t>(t)]; }

void observe_step(CellObservers& c, const GruTap& tap) {
  using enum GruTensor;
  of(c, kIh).observe(tap.ih);
  of(c, kHh).observe(tap.hh);
  of(c, kUi).observe(tap.ui);
  of(c, kU).observe(tap.u);
  of(c, kRi).observe(tap.ri);
  of(c, kR).observe(tap.r);
  of(c, kNi).observe(tap.ni);
  of(c, kN).observe(tap.n);
}

/// x and h are shared by both directions and are watched in the order of time, one observation a time step.
void observe_layer(CellObservers& c, const GruLayerTap& tap) {
  const bool zero_start = std::all_of(tap.h0.begin(), tap.h0.end(), [](float v) { return v == 0; });
  if (!zero_start) of(c, GruTensor::kH).observe(tap.h0);
  std::vector<float> x, y;
  for (int64_t t = 0; t < tap.schedule->steps(); ++t) {
    x.clear();
    y.clear();
    for (int64_t i = 0; i < tap.schedule->active(t); ++i) {
      const int64_t row = tap.schedule->row(0, t, i);
      x.insert(x.end(), tap.x.begin() + row * tap.x_columns, tap.x.begin() + (row + 1) * tap.x_columns);
      y.insert(y.end(), tap.y.begin() + row * tap.y_columns, tap.y.begin() + (row + 1) * tap.y_columns);
    }
    of(c, GruTensor::kX).observe(x);
    of(c, GruTensor::kH).observe(y);
  }
}

Status check_options(std::span<const GruInput> inputs, const GruCalibrateOptions& options) {
  if (inputs.empty()) return fail(ErrorCode::kInvalidArgument, "gru calibration", "no inputs", "at least one sequence");
  if (options.method == GruMethod::kPercentile && !(options.percentile > 0.5 && options.percentile <= 1))
    return fail(ErrorCode::kInvalidArgument, "gru calibration", "percentile " + std::to_string(options.percentile),
                "more than 0.5, at most 1");
  return {};
}

/// Adds the outer product of (row, 1) to a [(k + 1), (k + 1)] sum.
void add_outer(std::span<const float> row, std::vector<double>& sum) {
  const size_t n = row.size() + 1;
  const auto at = [&](size_t i) { return i < row.size() ? static_cast<double>(row[i]) : 1.0; };
  for (size_t i = 0; i < n; ++i) {
    const double a = at(i);
    if (a == 0) continue;
    for (size_t j = 0; j < row.size(); ++j) sum[i * n + j] += a * static_cast<double>(row[j]);
    sum[i * n + n - 1] += a;
  }
}

int bounded_shift(int shift) { return std::min(shift, kMaxShift); }

Result<GruParam> choose_scale(const GruCellRanges& cell, GruTensor tensor, const GruFormat& format, GruMethod method,
                              const Range* fixed) {
  const auto i = static_cast<size_t>(tensor);
  const IntGrid grid{format.bits, format.is_unsigned, format.symmetric};
  const Range range = fixed != nullptr ? *fixed : cell.range[i];
  const bool search = fixed == nullptr && (method == GruMethod::kMse || method == GruMethod::kSqnr);
  IntParams p = search && cell.histogram[i].count() > 0
                    ? search_pow2_params(cell.histogram[i], grid, method == GruMethod::kMse ? 1 : 3)
                    : pow2_params(range, grid, format.saturate);
  if (p.shift > kMaxShift) {  // a tensor that is almost 0: its zero point is that of the largest shift
    p.shift = bounded_shift(p.shift);
    const double low = std::floor(std::ldexp(static_cast<double>(range.min), p.shift));
    if (!grid.symmetric)
      p.zero = static_cast<int>(std::clamp(grid.q_min() - low, double(grid.q_min()), double(grid.q_max())));
  }
  if (p.shift < -kMaxShift || !std::isfinite(range.min) || !std::isfinite(range.max))
    return fail(ErrorCode::kInvalidArgument, std::string("gru range of ") + gru_tensor_name(tensor),
                std::to_string(range.min) + " to " + std::to_string(range.max), "what 16 bits at a scale of 2^31 hold");
  return GruParam{format, {p.shift, p.zero}};
}

}  // namespace

const char* gru_method_name(GruMethod method) { return kMethods[static_cast<size_t>(method)]; }

Result<GruMethod> parse_gru_method(const std::string& name) {
  for (size_t i = 0; i < kMethods.size(); ++i)
    if (name == kMethods[i]) return static_cast<GruMethod>(i);
  return fail(ErrorCode::kInvalidArgument, "gru calibration method", name, "minmax, ema, percentile, mse or sqnr");
}

Result<GruRanges> GruRanges::measure(const GruNetwork& network, std::span<const GruInput> inputs,
                                     const GruCalibrateOptions& options) {
  LOWBIT_TRY(check_options(inputs, options));
  const auto directions = static_cast<size_t>(network.directions());
  std::vector<CellObservers> observers(network.cells.size());
  for (auto& cell : observers)
    for (int t = 0; t < kGruTensors; ++t) cell.emplace_back(options, static_cast<GruTensor>(t));
  auto impl = std::make_shared<Impl>();
  GruTaps taps;
  taps.step = [&](const GruTap& tap) {
    observe_step(observers[static_cast<size_t>(tap.cell)], tap);
    impl->steps += tap.cell == 0 ? tap.rows : 0;
  };
  taps.layer = [&](const GruLayerTap& tap) {
    observe_layer(observers[static_cast<size_t>(tap.layer) * directions], tap);
  };
  for (const GruInput& input : inputs) LOWBIT_TRY(forward_gru(network, input, false, taps));
  if (impl->steps == 0)
    return fail(ErrorCode::kInvalidArgument, "gru calibration", "no steps", "at least one step of one sequence");
  impl->method = options.method;
  impl->percentile = options.percentile;
  impl->bidirectional = network.bidirectional;
  for (size_t i = 0; i < network.cells.size(); ++i) {
    GruCellRanges cell;
    cell.input = network.cells[i].input;
    cell.hidden = network.cells[i].hidden;
    for (size_t t = 0; t < kGruTensors; ++t) {
      const bool shared = t == static_cast<size_t>(GruTensor::kX) || t == static_cast<size_t>(GruTensor::kH);
      const TensorObserver& seen = observers[shared ? i / directions * directions : i][t];
      cell.range[t] = seen.range();
      cell.histogram[t] = seen.histogram();
    }
    impl->cells.push_back(std::move(cell));
  }
  return GruRanges(impl);
}

GruMethod GruRanges::method() const { return impl_->method; }
int GruRanges::cells() const { return static_cast<int>(impl_->cells.size()); }
int64_t GruRanges::steps_seen() const { return impl_->steps; }
std::array<float, 2> GruRanges::range(int cell, GruTensor tensor) const {
  const Range r = impl_->cells[static_cast<size_t>(cell)].range[static_cast<size_t>(tensor)];
  return {r.min, r.max};
}
void GruRanges::set_range(int cell, GruTensor tensor, float min, float max) {
  auto copy = std::make_shared<Impl>(*impl_);
  GruCellRanges& c = copy->cells[static_cast<size_t>(cell)];
  c.range[static_cast<size_t>(tensor)] = {std::min(min, 0.0f), std::max(max, 0.0f)};
  c.histogram[static_cast<size_t>(tensor)] = {};
  impl_ = std::move(copy);
}

Result<std::vector<std::array<GruParam, kGruTensors>>> choose_gru_scales(const GruNetwork& network,
                                                                         const GruRanges& ranges,
                                                                         const GruConfig& config) {
  using enum GruTensor;
  const GruRanges::Impl& seen = ranges.impl();
  const auto directions = static_cast<size_t>(network.directions());
  bool same = seen.cells.size() == network.cells.size() && seen.bidirectional == network.bidirectional;
  for (size_t i = 0; same && i < network.cells.size(); ++i)
    same = seen.cells[i].input == network.cells[i].input && seen.cells[i].hidden == network.cells[i].hidden;
  if (!same)
    return fail(ErrorCode::kShapeMismatch, "gru ranges", "ranges of another network",
                std::to_string(network.cells.size()) + " cells like this network's",
                "calibrate and quantize must be given the same network");
  std::vector<std::array<GruParam, kGruTensors>> out;
  for (size_t i = 0; i < network.cells.size(); ++i) {
    std::array<GruParam, kGruTensors> cell;
    for (size_t t = 0; t < kGruTensors; ++t) {
      const auto tensor = static_cast<GruTensor>(t);
      const bool gate = tensor == kU || tensor == kR || tensor == kN;
      const Range fixed = tensor == kN ? Range{-1, 1} : Range{0, 1};
      LOWBIT_TRY_ASSIGN(cell[t], choose_scale(seen.cells[i], tensor, config.tensors[t], seen.method,
                                              gate && config.fixed_gate_ranges ? &fixed : nullptr));
    }
    if (i >= directions) cell[static_cast<size_t>(kX)] = out[i - directions][static_cast<size_t>(kH)];
    out.push_back(cell);
  }
  return out;
}

Result<std::vector<GruHessian>> measure_hessians(const GruNetwork& network, std::span<const GruInput> inputs) {
  std::vector<GruHessian> hessians(network.cells.size());
  for (size_t i = 0; i < hessians.size(); ++i) {
    const auto x = static_cast<size_t>(network.cells[i].input + 1),
               h = static_cast<size_t>(network.cells[i].hidden + 1);
    hessians[i].x.assign(x * x, 0);
    hessians[i].h.assign(h * h, 0);
  }
  GruTaps taps;
  taps.step = [&](const GruTap& tap) {
    GruHessian& m = hessians[static_cast<size_t>(tap.cell)];
    const size_t c = tap.x.size() / static_cast<size_t>(tap.rows), h = tap.h.size() / static_cast<size_t>(tap.rows);
    for (size_t row = 0; row < static_cast<size_t>(tap.rows); ++row) {
      add_outer(tap.x.subspan(row * c, c), m.x);
      add_outer(tap.h_old.subspan(row * h, h), m.h);
    }
  };
  for (const GruInput& input : inputs) LOWBIT_TRY(forward_gru(network, input, false, taps));
  return hessians;
}

}  // namespace lowbit
