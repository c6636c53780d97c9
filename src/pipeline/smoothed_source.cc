#include "pipeline/smoothed_source.h"

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
#include "pipeline/calibration.h"
#include "pipeline/forwarding_source.h"
#include "quantize/migration.h"

namespace lowbit {
namespace {

constexpr int64_t kMostTokens = 8192;

/// A norm of a block and the layers that read its outputs, the first of them observed.
struct Reading {
  const char* norm;
  std::vector<const char*> layers;
};
const std::array<Reading, 2>& readings() {
  static const std::array<Reading, 2> all = {
      Reading{"input_layernorm", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
      Reading{"post_attention_layernorm", {"mlp.gate_proj", "mlp.up_proj"}}};
  return all;
}

std::string tensor_name(int64_t block, const char* part) {
  return fmt::format("model.layers.{}.{}.weight", block, part);
}

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

Result<std::vector<float>> largest_weights(const WeightSource& source, int64_t block, const Reading& reading) {
  std::vector<float> largest;
  for (const char* layer : reading.layers) {
    const std::string name = tensor_name(block, layer);
    LOWBIT_TRY_ASSIGN(const QTensor w, source.load(name));
    if (!largest.empty() && w.k != static_cast<int64_t>(largest.size()))
      return fail(ErrorCode::kShapeMismatch, name, fmt::format("{} columns", w.k), fmt::format("{}", largest.size()));
    std::vector<float> values(static_cast<size_t>(w.n * w.k));
    dequantize_rows(w, 0, w.n, values.data());
    join_columns(values.data(), w.n, w.k, largest);
  }
  return largest;
}

}  // namespace

Result<std::unique_ptr<WeightSource>> smooth_source(const WeightSource& source, const QuantizeOptions& options,
                                                    const Engine& engine) {
  CalibrationOptions few = options.calibration;
  few.tokens = std::min(few.tokens, kMostTokens);
  LOWBIT_TRY_ASSIGN(Calibration text, Calibration::start(source, few, false, engine));
  FactorsByTensor norms, layers;
  for (int64_t block = 0; block < text.blocks(); ++block) {
    if (options.progress && !options.progress("measuring activations", block, text.blocks()))
      return fail(ErrorCode::kCancelled, "measuring activations", "a request to stop");
    std::map<std::string, std::vector<float>> inputs;
    LOWBIT_TRY(text.advance(block, {}, [&](const std::string& name, const float* x, int64_t m, int64_t k) {
      join_columns(x, m, k, inputs[name]);
    }));
    for (const Reading& reading : readings()) {
      LOWBIT_TRY_ASSIGN(const auto weights, largest_weights(source, block, reading));
      const auto& seen = inputs[tensor_name(block, reading.layers.front())];
      if (seen.size() != weights.size())
        return fail(ErrorCode::kShapeMismatch, tensor_name(block, reading.norm), fmt::format("{} inputs", seen.size()),
                    fmt::format("{}, the columns of the layers behind it", weights.size()));
      const auto factors = std::make_shared<const std::vector<float>>(migration_factors(seen, weights, options.smooth));
      norms[tensor_name(block, reading.norm)] = factors;
      for (const char* layer : reading.layers) layers[tensor_name(block, layer)] = factors;
    }
  }
  return std::unique_ptr<WeightSource>(std::make_unique<SmoothedSource>(source, std::move(norms), std::move(layers)));
}

}  // namespace lowbit
