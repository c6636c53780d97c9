// Every kernel against the reference bit for bit; the integers against floats, tensor by tensor.

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "gru/float_forward.h"
#include "gru/model.h"

namespace lowbit {
namespace {

constexpr double kMaxDb = 200;

/// Sums of one comparison.
struct Difference {
  double reference = 0, error = 0, max = 0;
  void add(double wanted, double got) {
    const double d = got - wanted;
    reference += wanted * wanted;
    error += d * d;
    max = std::max(max, std::fabs(d));
  }
  void add(const Difference& d) {
    reference += d.reference;
    error += d.error;
    max = std::max(max, d.max);
  }
  double db() const {
    if (error == 0) return kMaxDb;
    return reference == 0 ? -kMaxDb : std::clamp(10 * std::log10(reference / error), -kMaxDb, kMaxDb);
  }
};

/// The difference of one tensor, as a whole and by step.
struct TensorDifference {
  Difference whole;
  std::vector<double> steps;
};

using Tensors = std::array<std::vector<float>, kGruTensors>;

/// All tensors of one cell, step after step.
struct Recorder {
  std::vector<Tensors> cells;
  void add(int cell, GruTensor t, std::span<const float> v) {
    auto& to = cells[static_cast<size_t>(cell)][static_cast<size_t>(t)];
    to.insert(to.end(), v.begin(), v.end());
  }
};

void record(Recorder& r, const GruTap& tap) {
  using enum GruTensor;
  const std::pair<GruTensor, std::span<const float>> parts[] = {
      {kX, tap.x}, {kH, tap.h},   {kIh, tap.ih}, {kHh, tap.hh}, {kUi, tap.ui},
      {kU, tap.u}, {kRi, tap.ri}, {kR, tap.r},   {kNi, tap.ni}, {kN, tap.n}};
  for (const auto& [tensor, values] : parts) r.add(tap.cell, tensor, values);
}

/// The integers in the same order, compared as they come.
class Comparer {
 public:
  Comparer(const GruModel::Impl& model, const Recorder& floats)
      : model_(model), floats_(floats), sums_(model.cells.size()), at_(model.cells.size()) {}

  void compare(const GruCodesTap& tap) {
    const GruCell& cell = model_.cells[static_cast<size_t>(tap.cell)]->cell();
    const auto rows = static_cast<size_t>(tap.rows), h = static_cast<size_t>(cell.hidden),
               c = static_cast<size_t>(cell.input);
    using enum GruTensor;
    const auto codes = [&](GruTensor t, const auto* q, size_t columns, int64_t to_q) {
      const GruScale& scale = cell[t].scale;
      auto& sum = sums_[static_cast<size_t>(tap.cell)][static_cast<size_t>(t)];
      size_t& at = at_[static_cast<size_t>(tap.cell)][static_cast<size_t>(t)];
      const auto& wanted = floats_.cells[static_cast<size_t>(tap.cell)][static_cast<size_t>(t)];
      Difference step;
      for (size_t i = 0; i < rows * columns; ++i, ++at)
        step.add(static_cast<double>(wanted[at]), dequantize_value(int64_t{q[i]} + to_q, scale));
      sum.steps.push_back(step.db());
      sum.whole.add(step);
    };
    codes(kX, tap.x, c, cell[kX].lo());
    codes(kH, tap.h, h, cell[kH].lo());
    codes(kIh, tap.ih, 3 * h, cell[kIh].scale.zp);
    codes(kHh, tap.trace.hh, 3 * h, 0);
    codes(kUi, tap.trace.ui, h, 0);
    codes(kU, tap.trace.u, h, 0);
    codes(kRi, tap.trace.ri, h, 0);
    codes(kR, tap.trace.r, h, 0);
    codes(kNi, tap.trace.ni, h, 0);
    codes(kN, tap.trace.n, h, 0);
  }

  std::vector<GruTensorError> errors() const {
    std::vector<GruTensorError> out;
    for (size_t cell = 0; cell < sums_.size(); ++cell)
      for (size_t t = 0; t < kGruTensors; ++t)
        out.push_back({static_cast<int>(cell), static_cast<GruTensor>(t), sums_[cell][t].whole.db(),
                       sums_[cell][t].whole.max, sums_[cell][t].steps});
    return out;
  }

 private:
  const GruModel::Impl& model_;
  const Recorder& floats_;
  std::vector<std::array<TensorDifference, kGruTensors>> sums_;
  std::vector<std::array<size_t, kGruTensors>> at_;
};

int64_t count_different(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  int64_t n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += a[i] != b[i];
  return n;
}

/// y of a stream fed step by step, as codes in the input's layout. Sequences of unequal length are not streamed.
Result<std::vector<int32_t>> stream_codes(const GruModel& model, const GruInput& in, size_t size) {
  LOWBIT_TRY_ASSIGN(GruStream stream, model.stream(in.batch, "scalar"));
  if (!in.h0.empty()) LOWBIT_TRY(stream.set_state(in.h0));
  const GruParam& h = model.impl().cells.back()->cell()[GruTensor::kH];
  std::vector<int32_t> out(size);
  std::vector<float> x(static_cast<size_t>(in.batch * model.input())),
      y(static_cast<size_t>(in.batch * model.output()));
  const auto row_of = [&](int64_t t, int64_t n) { return in.batch_first ? n * in.steps + t : t * in.batch + n; };
  for (int64_t t = 0; t < in.steps; ++t) {
    for (int64_t n = 0; n < in.batch; ++n)
      std::copy_n(in.x.begin() + row_of(t, n) * model.input(), model.input(), x.begin() + n * model.input());
    LOWBIT_TRY(stream.step(x, y));
    for (int64_t n = 0; n < in.batch; ++n)
      for (int64_t j = 0; j < model.output(); ++j)
        out[static_cast<size_t>(row_of(t, n) * model.output() + j)] =
            quantize_value(y[static_cast<size_t>(n * model.output() + j)], h);
  }
  return out;
}

std::vector<double> by_step(const GruInput& in, const std::vector<float>& wanted, const std::vector<float>& got) {
  std::vector<Difference> steps(static_cast<size_t>(in.steps));
  const size_t columns = in.steps == 0 ? 0 : wanted.size() / static_cast<size_t>(in.steps * in.batch);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const size_t row = i / columns;
    steps[in.batch_first ? row % static_cast<size_t>(in.steps) : row / static_cast<size_t>(in.batch)].add(
        static_cast<double>(wanted[i]), static_cast<double>(got[i]));
  }
  std::vector<double> out;
  for (const Difference& d : steps) out.push_back(d.db());
  return out;
}

}  // namespace

Result<GruVerifyReport> verify_gru(const GruModel& model, const GruNetwork& network, const GruInput& input) {
  const GruModel::Impl& impl = model.impl();
  bool same = network.cells.size() == impl.cells.size() && network.bidirectional == impl.bidirectional;
  for (size_t i = 0; same && i < impl.cells.size(); ++i)
    same = network.cells[i].input == impl.cells[i]->spec().c && network.cells[i].hidden == impl.cells[i]->spec().h;
  if (!same)
    return fail(ErrorCode::kShapeMismatch, "gru verify", "a float network of other shapes",
                "the one that was quantized");
  Recorder floats;
  floats.cells.resize(network.cells.size());
  GruTaps taps;
  taps.step = [&](const GruTap& tap) { record(floats, tap); };
  LOWBIT_TRY_ASSIGN(const GruOutput wanted, forward_gru(network, input, false, taps));
  Comparer comparer(impl, floats);
  GruForwardOptions options;
  options.kernel = &kRefGru;
  options.codes = true;
  options.tap = [&](const GruCodesTap& tap) { comparer.compare(tap); };
  LOWBIT_TRY_ASSIGN(const GruOutput reference, forward_codes(impl, input, options));
  GruVerifyReport report;
  report.tensors = comparer.errors();
  report.sqnr_by_step = by_step(input, wanted.y, reference.y);
  options.tap = nullptr;
  const auto count = static_cast<int64_t>(reference.codes.size());
  for (const GruKernel* kernel : runnable_gru_kernels()) {
    if (kernel == &kRefGru) continue;
    options.kernel = kernel;
    LOWBIT_TRY_ASSIGN(const GruOutput out, forward_codes(impl, input, options));
    int64_t different = count_different(reference.codes, out.codes);
    for (size_t i = 0; i < out.final_state.size(); ++i) different += out.final_state[i] != reference.final_state[i];
    report.targets.push_back({kernel->isa, count, different});
  }
  if (!cuda::devices().empty()) {
    LOWBIT_TRY_ASSIGN(const GruOutput out, forward_on_device(impl, input, 0, true));
    int64_t different = count_different(reference.codes, out.codes);
    for (size_t i = 0; i < out.final_state.size(); ++i) different += out.final_state[i] != reference.final_state[i];
    report.targets.push_back({"cuda", count, different});
  }
  if (!impl.bidirectional && input.lengths.empty()) {
    LOWBIT_TRY_ASSIGN(const auto streamed, stream_codes(model, input, reference.codes.size()));
    report.targets.push_back({"stream", count, count_different(reference.codes, streamed)});
  }
  for (const auto& target : report.targets) report.ok = report.ok && target.different == 0;
  return report;
}

}  // namespace lowbit
