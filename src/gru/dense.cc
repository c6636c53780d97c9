#include "lowbit/dense.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>

#include "base/try.h"
#include "gru/model.h"
#include "gru/table.h"
#include "quantize/observer.h"

namespace lowbit {

// A dense layer is the input product of a cell whose recurrent half is nothing: rows are padded to three gates.
struct DenseLayer::Impl {
  int64_t inputs = 0, outputs = 0;
  DenseTensor in, out;
  std::shared_ptr<const GruPlan> plan;
  std::vector<uint16_t> table;  // sigmoid: outputs by the offset code of the sum
  // Made on first use, one per kernel.
  mutable std::mutex mutex;
  mutable std::map<const GruKernel*, Buffer> packed;

  Result<const uint8_t*> packed_for(const GruKernel& kernel) const {
    const std::lock_guard lock(mutex);
    const auto known = packed.find(&kernel);
    if (known != packed.end()) return known->second.as<uint8_t>();
    LOWBIT_TRY_ASSIGN(Buffer bytes, Buffer::allocate(kernel.packed_bytes(plan->spec()), "dense weights"));
    kernel.pack(plan->spec(), bytes.as<uint8_t>());
    return packed.emplace(&kernel, std::move(bytes)).first->second.as<uint8_t>();
  }
};

namespace {

constexpr int64_t kRowsAtOnce = 64;  // whose product is computed at once
const GruFormat kSumFormat{12, false, true, 1};
constexpr GruScale kSumScale{8, 0};

GruParam param_of(const DenseTensor& t) { return {t.format, t.scale}; }

Status check_layer(const DenseWeights& l, const DenseTensor& in, const DenseTensor& out, int weight_bits) {
  const auto bad = [](const std::string& got, const std::string& wanted) {
    return fail(ErrorCode::kInvalidArgument, "dense layer", got, wanted);
  };
  if (l.inputs < 1 || l.outputs < 1 || l.inputs > kMaxGruSize || l.outputs > kMaxGruSize ||
      static_cast<int64_t>(l.w.size()) != l.inputs * l.outputs || static_cast<int64_t>(l.bias.size()) != l.outputs)
    return fail(ErrorCode::kShapeMismatch, "dense layer",
                std::to_string(l.w.size()) + " weights and " + std::to_string(l.bias.size()) + " biases",
                std::to_string(l.outputs) + " rows of " + std::to_string(l.inputs) + ", at most 2^20 each");
  const auto finite = [](float v) { return std::isfinite(v); };
  if (!std::all_of(l.w.begin(), l.w.end(), finite) || !std::all_of(l.bias.begin(), l.bias.end(), finite))
    return bad("a weight that is not finite", "numbers");
  for (const DenseTensor* t : {&in, &out}) {
    const GruParam p = param_of(*t);
    if (p.format.bits < 1 || p.format.bits > 16 || std::abs(p.scale.shift) > kMaxShift || p.scale.zp < p.lo() ||
        p.scale.zp > p.hi())
      return bad("a format of " + std::to_string(p.format.bits) + " bits, shift " + std::to_string(p.scale.shift) +
                     ", zero point " + std::to_string(p.scale.zp),
                 "1 to 16 bits, shifts from -31 to 31, a zero point that is a code");
  }
  if (weight_bits < 2 || weight_bits > 8) return bad(std::to_string(weight_bits) + "-bit weights", "2 to 8 bits");
  if (l.function == DenseFunction::kRelu && (!out.format.is_unsigned || out.scale.zp != 0))
    return bad("relu into a signed format or one with a zero point", "an unsigned format with zero point 0");
  return {};
}

/// The cell that has the layer's rows as its W.
Result<std::shared_ptr<const GruPlan>> plan_of(const DenseWeights& l, const GruParam& in, const GruParam& sums,
                                               int weight_bits) {
  GruWeights weights;
  weights.input = l.inputs;
  weights.hidden = (l.outputs + 2) / 3;
  const auto rows = static_cast<size_t>(3 * weights.hidden);
  weights.w = l.w;
  weights.w.resize(rows * static_cast<size_t>(l.inputs), 0);
  weights.bw = l.bias;
  weights.bw.resize(rows, 0);
  weights.r.resize(rows * static_cast<size_t>(weights.hidden), 0);
  weights.br.resize(rows, 0);
  LOWBIT_TRY_ASSIGN(GruConfig config, gru_preset("seed8"));
  config.bias_at_product_scale = true;
  config.bw = {32, false, true, 1};
  config.w.bits = weight_bits;
  std::array<GruParam, kGruTensors> tensors;
  for (size_t t = 0; t < kGruTensors; ++t) tensors[t] = {config.tensors[t], {config.tensors[t].is_unsigned ? 8 : 7, 0}};
  tensors[static_cast<size_t>(GruTensor::kX)] = in;
  tensors[static_cast<size_t>(GruTensor::kIh)] = sums;
  LOWBIT_TRY_ASSIGN(GruCell cell, build_gru_cell(weights, tensors, config, {}));
  return GruPlan::make(std::move(cell));
}

}  // namespace

DenseTensor DenseTensor::covering(const GruFormat& format, float low, float high) {
  const IntParams p = pow2_params({std::min(low, 0.0f), std::max(high, 0.0f)},
                                  {format.bits, format.is_unsigned, format.symmetric}, format.saturate);
  return {format, {std::min(p.shift, kMaxShift), static_cast<int32_t>(p.zero)}};
}

Result<DenseLayer> DenseLayer::quantize(const DenseWeights& layer, const DenseTensor& in, const DenseTensor& out,
                                        int weight_bits) {
  LOWBIT_TRY(check_layer(layer, in, out, weight_bits));
  auto impl = std::make_shared<Impl>();
  impl->inputs = layer.inputs;
  impl->outputs = layer.outputs;
  impl->in = in;
  impl->out = out;
  const bool sigmoid = layer.function == DenseFunction::kSigmoid;
  const GruParam sums = sigmoid ? GruParam{kSumFormat, kSumScale} : param_of(out);
  LOWBIT_TRY_ASSIGN(impl->plan, plan_of(layer, param_of(in), sums, weight_bits));
  if (sigmoid)
    for (int64_t q = sums.lo(); q <= sums.hi(); ++q)
      impl->table.push_back(
          static_cast<uint16_t>(rounded_function(GruFunction::kSigmoid, sums, param_of(out), q) - param_of(out).lo()));
  return DenseLayer(std::move(impl));
}

int64_t DenseLayer::inputs() const { return impl_->inputs; }
int64_t DenseLayer::outputs() const { return impl_->outputs; }
const DenseTensor& DenseLayer::in() const { return impl_->in; }
const DenseTensor& DenseLayer::out() const { return impl_->out; }

int64_t DenseLayer::bytes() const {
  const int64_t weights = (impl_->inputs * impl_->plan->cell().w_format.bits + 7) / 8;
  return impl_->outputs * (weights + 4 + 1) + 2 * static_cast<int64_t>(impl_->table.size());
}

std::vector<uint16_t> DenseLayer::encode(std::span<const float> x) const {
  std::vector<uint16_t> codes(x.size());
  quantize_codes(x, param_of(impl_->in), codes.data());
  return codes;
}

std::vector<float> DenseLayer::decode(std::span<const uint16_t> y) const {
  std::vector<float> out(y.size());
  dequantize_codes(y, param_of(impl_->out), out.data());
  return out;
}

Result<std::vector<uint16_t>> DenseLayer::run(std::span<const uint16_t> x, const std::string& isa) const {
  const Impl& m = *impl_;
  if (x.size() % static_cast<size_t>(m.inputs) != 0)
    return fail(ErrorCode::kShapeMismatch, "dense layer", std::to_string(x.size()) + " codes",
                "rows of " + std::to_string(m.inputs));
  const int32_t most = param_of(m.in).hi() - param_of(m.in).lo();
  if (most < 0xffff && std::any_of(x.begin(), x.end(), [&](uint16_t q) { return q > most; }))
    return fail(ErrorCode::kInvalidArgument, "dense layer", "a code outside its format",
                "offset codes up to " + std::to_string(most));
  LOWBIT_TRY_ASSIGN(const Isa chosen, choose_isa(isa));
  const GruKernel& kernel = gru_kernel(chosen);
  LOWBIT_TRY_ASSIGN(const uint8_t* packed, m.packed_for(kernel));
  const GruSpec& spec = m.plan->spec();
  LOWBIT_TRY_ASSIGN(Buffer scratch, Buffer::allocate(kernel.scratch_bytes(spec, kRowsAtOnce), "dense scratch"));
  const int64_t rows = static_cast<int64_t>(x.size()) / m.inputs;
  std::vector<int32_t> sums(static_cast<size_t>(kRowsAtOnce * 3 * spec.h));
  std::vector<uint16_t> y(static_cast<size_t>(rows * m.outputs));
  const int32_t zero = spec.grid[kSlotIh].zp - spec.grid[kSlotIh].lo;
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - first);
    kernel.input(spec, packed, x.data() + first * m.inputs, count, sums.data(), scratch.as<uint8_t>());
    for (int64_t i = 0; i < count; ++i) {
      const int32_t* from = sums.data() + i * 3 * spec.h;
      uint16_t* to = y.data() + (first + i) * m.outputs;
      if (m.table.empty())
        for (int64_t j = 0; j < m.outputs; ++j) to[j] = static_cast<uint16_t>(from[j] + zero);
      else
        for (int64_t j = 0; j < m.outputs; ++j) to[j] = m.table[static_cast<size_t>(from[j] + zero)];
    }
  }
  return y;
}

}  // namespace lowbit
