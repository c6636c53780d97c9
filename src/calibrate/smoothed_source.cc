#include "calibrate/smoothed_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/try.h"
#include "calibrate/calibration.h"
#include "calibrate/forwarding_source.h"
#include "model/model_spec.h"
#include "quantize/smooth_factors.h"

namespace lowbit {
namespace {

constexpr int64_t kMostTokens = 8192;

using FactorsByTensor = std::map<std::string, std::shared_ptr<const std::vector<float>>>;

class SmoothedSource final : public ForwardingSource {
 public:
  SmoothedSource(const WeightSource& base, FactorsByTensor norms, FactorsByTensor layers)
      : ForwardingSource(base), norms_(std::move(norms)), layers_(std::move(layers)) {}
  bool lossless(const std::string& name) const override {
    return !norms_.contains(name) && !layers_.contains(name) && base_.lossless(name);
  }
  Result<QTensor> load(const std::string& name) const override {
    LOWBIT_TRY_ASSIGN(QTensor w, base_.load(name));
    const auto norm = norms_.find(name), layer = layers_.find(name);
    if (norm == norms_.end() && layer == layers_.end()) return w;
    const std::vector<float>& factors = norm != norms_.end() ? *norm->second : *layer->second;
    QTensor out;
    out.n = w.n;
    out.k = w.k;
    LOWBIT_TRY_ASSIGN(out.codes, Buffer::allocate(w.n * w.k * int64_t(sizeof(float)), "smoothed weights"));
    auto* values = out.codes.as<float>();
    dequantize_rows(w, 0, w.n, values);
    for (int64_t r = 0; r < w.n; ++r)
      for (int64_t c = 0; c < w.k; ++c) {
        float& v = values[r * w.k + c];
        v = norm != norms_.end() ? v / factors[static_cast<size_t>(c)] : v * factors[static_cast<size_t>(c)];
      }
    return out;
  }

 private:
  FactorsByTensor norms_, layers_;
};

/// The largest magnitude of each column of x [m, k] joins `largest` [k].
void join_columns(const float* x, int64_t m, int64_t k, std::vector<float>& largest) {
  largest.resize(static_cast<size_t>(k));
  for (int64_t r = 0; r < m; ++r)
    for (int64_t c = 0; c < k; ++c) {
      float& most = largest[static_cast<size_t>(c)];
      most = std::max(most, std::fabs(x[r * k + c]));
    }
}

/// The largest weight of each column, over all layers that read the input, in the block that the text is at.
Result<std::vector<float>> largest_weights(const Calibration& text, int64_t block, const InputSpec& input) {
  std::vector<float> largest;
  for (const LinearSpec& reader : input.readers) {
    const std::string name = weight_name(block, reader.name);
    const QTensor* const w = text.tensor(name);
    if (w == nullptr) return fail(ErrorCode::kNotFound, name, "no such tensor in its block");
    std::vector<float> values(static_cast<size_t>(w->n * w->k));
    dequantize_rows(*w, 0, w->n, values.data());
    join_columns(values.data(), w->n, w->k, largest);
  }
  return largest;
}

}  // namespace

Status check_smoothable(const ModelSpec& spec) {
  for (size_t i = 0; i < spec.blocks.size(); ++i)
    for (const InputSpec* input : inputs_of(spec.blocks[i])) {
      if (!input->norm) continue;
      const std::string where = weight_name(static_cast<int64_t>(i), input->norm->name);
      if (input->norm->offset != 0)
        return fail(ErrorCode::kUnsupported, where, fmt::format("{:g} is added to its weights", input->norm->offset),
                    "a norm whose weights alone scale its outputs", "leave --smooth out");
      if (input->hadamard > 0)
        return fail(ErrorCode::kUnsupported, where, "a Hadamard transform between it and the layers behind it",
                    "layers that read the norm's outputs themselves", "leave --smooth out");
    }
  return {};
}

Result<std::unique_ptr<WeightSource>> smooth_source(const WeightSource& source, const QuantizeOptions& options,
                                                    const Engine& engine) {
  LOWBIT_TRY_ASSIGN(const ModelSpec spec, model_spec_of(source));
  LOWBIT_TRY(check_smoothable(spec));
  CalibrationOptions few = options.calibration;
  few.tokens = std::min(few.tokens, kMostTokens);
  LOWBIT_TRY_ASSIGN(Calibration text, Calibration::start(source, few, false, engine));
  FactorsByTensor norms, layers;
  for (int64_t block = 0; block < text.blocks(); ++block) {
    if (options.progress && !options.progress("measuring activations", block, text.blocks()))
      return fail(ErrorCode::kCancelled, "measuring activations", "a request to stop");
    std::array<std::vector<float>, kInputRoles> inputs;
    LOWBIT_TRY(text.begin(block));
    LOWBIT_TRY(text.advance([&](InputRole role, const float* x, int64_t m, int64_t k) -> Status {
      join_columns(x, m, k, inputs[static_cast<size_t>(role)]);
      return {};
    }));
    for (const InputSpec* input : inputs_of(spec.blocks[static_cast<size_t>(block)])) {
      if (!input->norm) continue;
      const std::string norm = weight_name(block, input->norm->name);
      LOWBIT_TRY_ASSIGN(const auto weights, largest_weights(text, block, *input));
      const auto& seen = inputs[static_cast<size_t>(input->role)];
      if (seen.size() != weights.size())
        return fail(ErrorCode::kShapeMismatch, norm, fmt::format("{} inputs", seen.size()),
                    fmt::format("{}, the columns of the layers behind it", weights.size()));
      const auto factors = std::make_shared<const std::vector<float>>(smooth_factors(seen, weights, options.smooth));
      norms[norm] = factors;
      for (const LinearSpec& reader : input->readers) layers[weight_name(block, reader.name)] = factors;
    }
  }
  return std::unique_ptr<WeightSource>(std::make_unique<SmoothedSource>(source, std::move(norms), std::move(layers)));
}

}  // namespace lowbit
