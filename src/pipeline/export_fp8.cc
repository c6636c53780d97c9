// Writes the files that src/model/source_fp8.cc reads.
#include "pipeline/export_fp8.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "arch/family.h"
#include "arch/names.h"
#include "base/try.h"
#include "io/lost_pages.h"
#include "io/safetensors.h"
#include "pipeline/conversion.h"
#include "pipeline/export_texts.h"

namespace lowbit {
namespace {

using nlohmann::json;

/// The weight of a linear layer of a block.
bool is_linear(const ModelSpec& spec, const SourceTensor& t) {
  return t.name.ends_with(".weight") && linear_of(spec.blocks.front(), t.name) != nullptr;
}

std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

class Fp8Export {
 public:
  Fp8Export(const WeightSource& source, const ModelSpec& spec, const ExportOptions& options)
      : source_(source), spec_(spec), options_(options) {
    for (const SourceTensor& t : source.tensors()) total_ += 2 * t.stored_bytes;
  }

  /// Codes come last: all else is wider and stays aligned.
  Result<int64_t> write(const std::string& directory) {
    LOWBIT_TRY(declare());
    std::vector<SafetensorsDecl> declared = wide_;
    declared.insert(declared.end(), codes_.begin(), codes_.end());
    LOWBIT_TRY_ASSIGN(auto writer,
                      SafetensorsWriter::create(directory + "/model.safetensors", declared, {{"format", "pt"}}));
    for (const SourceTensor& t : source_.tensors()) {
      LOWBIT_TRY_ASSIGN(const QTensor w, load(t));
      LOWBIT_TRY(w.format == FormatId::kFp8 ? append_scales(w, *writer) : append(w.codes.span(), *writer));
      LOWBIT_TRY(done(t));
    }
    for (const SourceTensor& t : source_.tensors()) {
      if (!is_linear(spec_, t)) continue;
      LOWBIT_TRY_ASSIGN(const QTensor w, load(t));
      if (w.format == FormatId::kFp8) LOWBIT_TRY(append(w.codes.span(), *writer));
    }
    LOWBIT_TRY(writer->finish());
    LOWBIT_TRY(write_export_texts(source_, quantization(), directory));
    return bytes_;
  }

 private:
  bool has_blocks() const { return scaling_->k_block != Scaling::kAll; }
  bool is_one_scale() const { return scaling_->n_block == Scaling::kAll; }

  Result<QTensor> load(const SourceTensor& t) const {
    if (options_.progress && !options_.progress("exporting", done_, total_))
      return fail(ErrorCode::kCancelled, "exporting", "a request to stop");
    LOWBIT_TRY_ASSIGN(QTensor w, source_.load(t.name));
    if (is_dense(w.format) || (is_linear(spec_, t) && w.format == FormatId::kFp8)) return w;
    if (!is_linear(spec_, t)) return to_bf16(w);
    return fail(ErrorCode::kUnsupported, source_.path() + ": " + t.name, format_info(w.format).name,
                "fp8 or floats, as the other layers", "`lowbit quantize --format fp8`");
  }
  Status done(const SourceTensor& t) {
    source_.release(t.name);
    LOWBIT_TRY(lost_.status(source_.path()));
    done_ += t.stored_bytes;
    return {};
  }

  /// Scales of all layers have one shape, which is one of the forms. Their kind may differ: all are written as f32.
  Status check_scaling(const SourceTensor& t, const QTensor& w) {
    Scaling s = w.scaling;
    s.scale = ScaleKind::kF32;
    const bool of_rows = s.k_block == Scaling::kAll && (s.n_block == 1 || s.n_block == Scaling::kAll);
    const bool of_blocks = s.k_block != Scaling::kAll && s.n_block > 0;
    if (s.zero != ZeroKind::kNone || (!of_rows && !of_blocks))
      return fail(ErrorCode::kUnsupported, source_.path() + ": " + t.name,
                  scaling_name(s) + (s.zero == ZeroKind::kNone ? "" : " with zero points"),
                  "scales of matrices, rows or blocks, without zero points");
    if (!scaling_) scaling_ = s;
    if (*scaling_ == s) return {};
    return fail(ErrorCode::kUnsupported, source_.path() + ": " + t.name, "scales " + scaling_name(s),
                scaling_name(*scaling_) + ", as the layers before it");
  }

  /// Names, types and shapes come before the first byte.
  Status declare() {
    for (const SourceTensor& t : source_.tensors()) {
      LOWBIT_TRY_ASSIGN(const QTensor w, load(t));
      if (w.format == FormatId::kFp8) {
        LOWBIT_TRY(check_scaling(t, w));
        const Shape scales = is_one_scale() ? Shape{1} : Shape{w.scale_rows(), w.scale_cols()};
        wide_.push_back({t.name + (has_blocks() ? "_scale_inv" : "_scale"), DType::kF32, scales});
        codes_.push_back({t.name, DType::kE4m3, t.shape});
      } else {
        const DType type = w.format == FormatId::kF32   ? DType::kF32
                           : w.format == FormatId::kF16 ? DType::kF16
                                                        : DType::kBf16;
        wide_.push_back({t.name, type, t.shape});
        if (is_linear(spec_, t)) floats_.push_back(module_of(t.name));
      }
      LOWBIT_TRY(done(t));
    }
    if (!spec_.tied_head) floats_.push_back(module_of(weight_name(spec_.head.name)));
    return {};
  }

  Status append(std::span<const std::byte> bytes, SafetensorsWriter& writer) {
    bytes_ += static_cast<int64_t>(bytes.size());
    return writer.append(bytes);
  }
  Status append_scales(const QTensor& w, SafetensorsWriter& writer) {
    std::vector<float> scales;
    for (int64_t r = 0; r < w.n; r += is_one_scale() ? w.n : w.scaling.n_block)
      for (int64_t g = 0; g < w.scale_cols(); ++g) scales.push_back(w.scale(r, g));
    return append(std::as_bytes(std::span(scales)), writer);
  }

  json quantization() const {
    if (has_blocks())
      return {{"quant_method", "fp8"},
              {"fmt", "e4m3"},
              {"activation_scheme", "dynamic"},
              {"weight_block_size", {scaling_->n_block, scaling_->k_block}},
              {"modules_to_not_convert", floats_}};
    const json numbers = {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}};
    json weights = numbers, activations = numbers;
    weights["strategy"] = is_one_scale() ? "tensor" : "channel";
    weights["dynamic"] = false;
    activations["strategy"] = "token";
    activations["dynamic"] = true;
    json group;
    group["targets"] = json::array({"Linear"});
    group["weights"] = weights;
    group["input_activations"] = activations;
    json q;
    q["quant_method"] = "compressed-tensors";
    q["format"] = "float-quantized";
    q["quantization_status"] = "compressed";
    q["config_groups"]["group_0"] = group;
    q["ignore"] = floats_;
    return q;
  }

  const WeightSource& source_;
  const ModelSpec& spec_;
  const ExportOptions& options_;
  const LostPages lost_;
  std::optional<Scaling> scaling_;   // of the fp8 layers
  std::vector<std::string> floats_;  // modules that are not converted
  std::vector<SafetensorsDecl> wide_, codes_;
  int64_t bytes_ = 0, done_ = 0, total_ = 0;
};

}  // namespace

Result<bool> has_fp8_blocks(const WeightSource& source, const ModelSpec& spec) {
  for (const SourceTensor& t : source.tensors()) {
    if (!is_linear(spec, t)) continue;
    LOWBIT_TRY_ASSIGN(const QTensor w, source.load(t.name));
    if (w.format == FormatId::kFp8) return true;
    if (!is_dense(w.format)) return false;
  }
  return false;
}

Result<int64_t> write_fp8_model(const WeightSource& source, const ModelSpec& spec, const ExportOptions& options,
                                const std::string& directory) {
  return Fp8Export(source, spec, options).write(directory);
}

}  // namespace lowbit
