// Scales by what they do to the outputs: a coordinate search over shifts and zero points, tensor by tensor.

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/try.h"
#include "gru/output_sqnr.h"
#include "gru/ranges.h"

namespace lowbit {
namespace {

using Scales = std::vector<std::array<GruParam, kGruTensors>>;

/// Beyond this, sigmoid or tanh gives its last code: half a step from 1.
float useful_input(GruTensor tensor, const GruConfig& config) {
  const bool tanh = tensor == GruTensor::kNi;
  const GruFormat& out = config[tanh ? GruTensor::kN : tensor == GruTensor::kUi ? GruTensor::kU : GruTensor::kR];
  const double steps = tanh ? out.bits : out.bits + 1;  // 1 - f(x) is 2^-steps there
  return static_cast<float>(tanh ? (steps + 1) * std::log(2.0) / 2 : steps * std::log(2.0));
}

class Tuner {
 public:
  Tuner(const GruNetwork& network, const GruRanges& ranges, const GruTuneOptions& options)
      : network_(network), options_(options), sqnr_(network, options.inputs), report_{ranges, 0, 0, 0, {}} {}

  Result<GruTuneReport> run() {
    LOWBIT_TRY_ASSIGN(report_.start, value_of(report_.ranges));
    report_.value = report_.start;
    LOWBIT_TRY(limit_gate_inputs());
    for (int pass = 0; pass < options_.passes; ++pass) {
      const double before = report_.value;
      for (const GruTensor t : tensors())
        for (int cell = 0; cell < cells_of(t); ++cell) LOWBIT_TRY(tune(cell, t));
      if (report_.value < before + 10 * options_.gain) break;
    }
    return std::move(report_);
  }

 private:
  std::vector<GruTensor> tensors() const {
    using enum GruTensor;
    if (!options_.tensors.empty()) return options_.tensors;
    std::vector<GruTensor> all = {kHh, kIh, kUi, kRi, kNi, kX, kH};
    if (!options_.config.fixed_gate_ranges) all.insert(all.end(), {kU, kR, kN});
    return all;
  }
  /// x and h are one tensor for both directions of a layer, and x of further layers is the h below.
  bool by_layer(GruTensor t) const { return t == GruTensor::kX || t == GruTensor::kH; }
  int cells_of(GruTensor t) const {
    return t == GruTensor::kX ? 1 : by_layer(t) ? network_.layers() : static_cast<int>(network_.cells.size());
  }
  int first_cell(int cell, GruTensor t) const { return by_layer(t) ? cell * network_.directions() : cell; }
  bool has_zero_point(GruTensor t) const {
    return !options_.config[t].symmetric && t != GruTensor::kU && t != GruTensor::kR && t != GruTensor::kN;
  }

  Result<double> value_of(const GruRanges& ranges) {
    ++report_.tried;
    const auto model = GruModel::quantize(network_, ranges, options_.config, {options_.inputs});
    // A plan that would overflow, or a scale beyond any shift, is no candidate.
    if (!model && report_.tried > 1) return -std::numeric_limits<double>::infinity();
    if (!model) return tl::unexpected(model.error());
    return options_.metric ? options_.metric(*model) : sqnr_(*model);
  }
  Result<GruScale> scale(int cell, GruTensor t) const {
    LOWBIT_TRY_ASSIGN(const Scales scales, choose_gru_scales(network_, report_.ranges, options_.config));
    return scales[static_cast<size_t>(first_cell(cell, t))][static_cast<size_t>(t)].scale;
  }
  void set_range(GruRanges& ranges, int cell, GruTensor t, float low, float high) const {
    const int first = first_cell(cell, t);
    for (int i = first; i < first + (by_layer(t) ? network_.directions() : 1); ++i) ranges.set_range(i, t, low, high);
  }
  /// The range that gives this scale.
  GruRanges with(int cell, GruTensor t, const GruScale& s) const {
    const GruFormat& f = options_.config[t];
    const auto real = [&](int64_t q) {
      return static_cast<float>(std::ldexp(static_cast<double>(q - s.zp), -s.shift));
    };
    GruRanges ranges = report_.ranges;
    set_range(ranges, cell, t, real(f.q_min()), real(f.q_max() + f.saturate));
    return ranges;
  }
  Result<bool> keep_if_better(GruRanges candidate) {
    LOWBIT_TRY_ASSIGN(const double value, value_of(candidate));
    if (!(value >= report_.value + options_.gain)) return false;
    report_.value = value;
    report_.ranges = std::move(candidate);
    return true;
  }

  Status limit_gate_inputs() {
    using enum GruTensor;
    for (const GruTensor t : {kUi, kRi, kNi}) {
      if (!options_.tensors.empty() &&
          std::find(options_.tensors.begin(), options_.tensors.end(), t) == options_.tensors.end())
        continue;
      const float most = useful_input(t, options_.config);
      for (int cell = 0; cell < cells_of(t); ++cell) {
        const auto [low, high] = report_.ranges.range(cell, t);
        LOWBIT_TRY_ASSIGN(const GruScale before, scale(cell, t));
        GruRanges limited = report_.ranges;
        limited.set_range(cell, t, std::max(low, -most), std::min(high, most));
        LOWBIT_TRY_ASSIGN(const bool kept, keep_if_better(std::move(limited)));
        if (kept) LOWBIT_TRY(note(cell, t, before));
      }
    }
    return {};
  }
  Status note(int cell, GruTensor t, const GruScale& before) {
    LOWBIT_TRY_ASSIGN(const GruScale after, scale(cell, t));
    report_.changes.push_back({first_cell(cell, t), t, before, after, report_.value});
    return {};
  }

  Status tune(int cell, GruTensor t) {
    const GruFormat& f = options_.config[t];
    LOWBIT_TRY_ASSIGN(const GruScale before, scale(cell, t));
    GruScale now = before;
    const auto attempt = [&](int shift, int64_t zp) -> Status {
      const GruScale s{shift, static_cast<int32_t>(std::clamp(zp, f.q_min(), f.q_max()))};
      if (s == now || std::abs(shift) > kMaxShift) return {};
      LOWBIT_TRY_ASSIGN(const bool kept, keep_if_better(with(cell, t, s)));
      if (kept) now = s;
      return {};
    };
    const bool moves = has_zero_point(t);
    for (const int by : {-1, 1}) {
      const int shift = before.shift + by;
      LOWBIT_TRY(attempt(shift, by > 0 ? int64_t{2} * before.zp : before.zp / 2));
      if (moves && before.zp != 0) LOWBIT_TRY(attempt(shift, 0));
    }
    if (moves)
      for (int64_t step = int64_t{1} << std::max(f.bits - 2, 0);
           step >= std::max<int64_t>(1, (int64_t{1} << f.bits) / 64); step /= 2)
        for (const int64_t by : {step, -step}) LOWBIT_TRY(attempt(now.shift, now.zp + by));
    if (!(now == before)) LOWBIT_TRY(note(cell, t, before));
    return {};
  }

  const GruNetwork& network_;
  const GruTuneOptions& options_;
  OutputSqnr sqnr_;
  GruTuneReport report_;
};

}  // namespace

Result<GruTuneReport> tune_gru_ranges(const GruNetwork& network, const GruRanges& ranges,
                                      const GruTuneOptions& options) {
  if (options.inputs.empty() && (!options.metric || options.config.rounding == GruRounding::kFeedback))
    return fail(ErrorCode::kInvalidArgument, "gru tune", "no inputs", "inputs to compare with the float network on");
  return Tuner(network, ranges, options).run();
}

}  // namespace lowbit
