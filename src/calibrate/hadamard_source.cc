#include "calibrate/hadamard_source.h"

#include <set>
#include <string>
#include <utility>

#include "base/try.h"
#include "calibrate/forwarding_source.h"
#include "io/checkpoint.h"
#include "io/json_text.h"
#include "kernels/registry.h"
#include "model/model_spec.h"
#include "ops/hadamard.h"

namespace lowbit {
namespace {

class HadamardSource final : public ForwardingSource {
 public:
  HadamardSource(const WeightSource& base, const ModelSpec& spec, std::string config_json, int64_t block)
      : ForwardingSource(base), config_json_(std::move(config_json)), block_(block) {
    for (int64_t i = 0; i < spec.block_count(); ++i)
      for (const LinearSpec& reader : spec.blocks[static_cast<size_t>(i)].mlp.down.readers)
        turned_.insert(weight_name(i, reader.name));
  }
  const std::string& config_json() const override { return config_json_; }
  bool lossless(const std::string& name) const override { return !turns(name) && base_.lossless(name); }

  /// The transform is symmetric and its own inverse: (w H) (H x) = w x.
  Result<QTensor> load(const std::string& name) const override {
    if (!turns(name)) return base_.load(name);
    LOWBIT_TRY_ASSIGN(const QTensor w, base_.load(name));
    if (w.k % block_ != 0)
      return fail(ErrorCode::kShapeMismatch, name, std::to_string(w.k) + " columns",
                  "a multiple of " + std::to_string(block_));
    QTensor out;
    out.n = w.n;
    out.k = w.k;
    LOWBIT_TRY_ASSIGN(out.codes, Buffer::allocate(w.n * w.k * int64_t(sizeof(float)), "transformed weights"));
    dequantize_rows(w, 0, w.n, out.codes.as<float>());
    vector_ops(Isa::kScalar).hadamard(out.codes.as<float>(), w.n * w.k, block_);
    return out;
  }

 private:
  bool turns(const std::string& name) const { return turned_.contains(name); }

  std::set<std::string> turned_;
  std::string config_json_;
  int64_t block_;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> hadamard_source(const WeightSource& source) {
  LOWBIT_TRY_ASSIGN(const ModelSpec spec, model_spec_of(source));
  const MlpSpec& mlp = spec.blocks.front().mlp;
  if (mlp.down.hadamard > 0)
    return fail(ErrorCode::kInvalidArgument, "--hadamard", "a model whose down_proj has such a transform",
                "one without", "it keeps its own: leave --hadamard out");
  if (mlp.down.readers.front().norm)
    return fail(ErrorCode::kUnsupported, "--hadamard", "a norm of down_proj's own (use_rms_norm)", "none",
                "the transform would have to stand behind it: leave --hadamard out");
  const int64_t block = hadamard_block(mlp.width);
  if (block < 2)
    return fail(ErrorCode::kInvalidArgument, "--hadamard", "intermediate_size = " + std::to_string(mlp.width),
                "an even number");
  for (int64_t i = 0; i < spec.block_count(); ++i)  // the manifest has one size for all
    if (const int64_t width = spec.blocks[static_cast<size_t>(i)].mlp.width; width % block != 0)
      return fail(ErrorCode::kUnsupported, "--hadamard",
                  "block " + std::to_string(i) + " is " + std::to_string(width) + " wide",
                  "multiples of " + std::to_string(block) + ", as in the first block");
  LOWBIT_TRY_ASSIGN(auto json, parse_json_object(source.config_json(), "config.json",
                                                 {.text_bytes = source.config_json().size() + 1}));
  json["quantization_config"] = {{"quant_method", "lowbit"}, {kOnlineHadamard, {{kDownProjection, block}}}};
  return std::unique_ptr<WeightSource>(std::make_unique<HadamardSource>(source, spec, json_dump(json, 2), block));
}

}  // namespace lowbit
