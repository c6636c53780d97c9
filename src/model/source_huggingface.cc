// A Hugging Face directory as a WeightSource: config.json, safetensors (one file or shards), tokenizer files.
//
// Besides plain floats it reads FP8 with scales (source_fp8.cc), and BitNet's ternary weights, packed or to be rounded
// (source_bitnet.cc).
#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "io/json_text.h"
#include "io/safetensors.h"
#include "model/source_kinds.h"

namespace lowbit {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{4} << 20;

/// Contents of config.json's quantization_config.
struct Packing {
  Fp8Packing fp8;
  std::optional<BitnetPacking> bitnet;
};

constexpr std::array<std::string_view, 2> kScaleSuffixes = {"_scale_inv", "_scale"};

class HuggingFaceSource final : public WeightSource {
 public:
  HuggingFaceSource(std::string path, SafetensorsSet files, ModelTexts texts, Packing packing)
      : path_(std::move(path)), files_(std::move(files)), texts_(std::move(texts)), packing_(std::move(packing)) {
    for (const auto& t : files_.tensors()) {
      const auto& e = *t.entry;
      if (is_scale(e.name) || is_input_scale(e.name)) continue;
      int64_t bytes = static_cast<int64_t>(e.size_bytes);
      if (const auto* scale = scale_of(e.name)) bytes += static_cast<int64_t>(scale->entry->size_bytes);
      Shape shape = e.shape;
      if (is_bitnet(e)) shape[0] *= 4;
      std::string stored = is_bitnet(e) ? "bitnet ternary" : dtype_name(e.dtype);
      if (is_online(e)) stored += " to ternary";
      tensors_.push_back({e.name, shape, stored, bytes});
    }
  }
  const std::string& path() const override { return path_; }
  const char* kind() const override { return "huggingface"; }
  const std::string& config_json() const override { return texts_.config; }
  const std::string& tokenizer_json() const override { return texts_.tokenizer; }
  const std::string& tokenizer_config_json() const override { return texts_.tokenizer_config; }
  const std::string& generation_config_json() const override { return texts_.generation_config; }
  const std::vector<SourceTensor>& tensors() const override { return tensors_; }
  bool has(const std::string& name) const override {
    return files_.find(name) != nullptr && !is_scale(name) && !is_input_scale(name);
  }
  bool lossless(const std::string& name) const override {
    const auto* t = files_.find(name);
    return t != nullptr && !scaled_bias(name) &&
           (is_float(t->entry->dtype) || t->entry->dtype == DType::kE4m3 || is_bitnet(*t->entry));
  }
  Result<QTensor> load(const std::string& name) const override;
  void release(const std::string& name) const override {
    for (const auto* t : {files_.find(name), scale_of(name)})
      if (t != nullptr) t->file->release(*t->entry);
  }

 private:
  static bool is_float(DType d) { return d == DType::kF32 || d == DType::kF16 || d == DType::kBf16; }
  /// Null: none.
  const SafetensorsSet::Located* scale_of(const std::string& name) const {
    for (const std::string_view suffix : kScaleSuffixes)
      if (const auto* t = files_.find(name + std::string(suffix))) return t;
    return nullptr;
  }
  bool is_scale(const std::string& name) const {
    return std::ranges::any_of(kScaleSuffixes, [&](std::string_view suffix) {
      if (!name.ends_with(suffix)) return false;
      const auto* weight = files_.find(name.substr(0, name.size() - suffix.size()));
      return weight != nullptr && (packing_.bitnet || weight->entry->dtype == DType::kE4m3);
    });
  }
  /// A scale by which others quantize activations, from calibration. Here x has scales of its own blocks.
  bool is_input_scale(const std::string& name) const {
    constexpr std::string_view kSuffix = ".input_scale";
    if (!name.ends_with(kSuffix)) return false;
    const auto* weight = files_.find(name.substr(0, name.size() - kSuffix.size()) + ".weight");
    return weight != nullptr && weight->entry->dtype == DType::kE4m3;
  }
  bool is_bitnet(const SafetensorsEntry& e) const {
    return packing_.bitnet && e.dtype == DType::kU8 && e.shape.size() == 2;
  }
  bool is_online(const SafetensorsEntry& e) const {
    return packing_.bitnet && packing_.bitnet->online && e.shape.size() == 2 && is_float(e.dtype) &&
           packing_.bitnet->converts(e.name);
  }
  /// The bias of a packed layer whose weight_scale multiplies it, too, as transformers' AutoBitLinear does.
  const SafetensorsEntry* scaled_bias(const std::string& name) const {
    if (!packing_.bitnet || packing_.bitnet->divides || !name.ends_with(".bias")) return nullptr;
    const auto* weight = files_.find(name.substr(0, name.size() - 4) + "weight");
    return weight != nullptr && is_bitnet(*weight->entry) ? weight->entry : nullptr;
  }
  Result<float> bitnet_scale(const SafetensorsEntry& weight) const;
  Status check_bitnet(const SafetensorsEntry& e, const std::string& where) const;
  Result<QTensor> scale_bias(const QTensor& bias, const SafetensorsEntry& weight, const std::string& where) const;
  Status load_fp8_scales(const std::string& name, QTensor* w) const;
  Result<QTensor> load_bitnet(const SafetensorsEntry& e, const std::string& where) const;

  std::string path_;
  SafetensorsSet files_;
  ModelTexts texts_;
  Packing packing_;
  std::vector<SourceTensor> tensors_;
};

Status HuggingFaceSource::load_fp8_scales(const std::string& name, QTensor* w) const {
  const auto* t = scale_of(name);
  if (t == nullptr)
    return fail(ErrorCode::kNotFound, path_, "no '" + name + "_scale_inv' and no '" + name + "_scale'",
                "the scales of an FP8 weight");
  const SafetensorsEntry& e = *t->entry;
  LOWBIT_TRY_ASSIGN(Buffer bytes, files_.bytes(e.name));
  const TensorView scales{e.dtype, e.shape, bytes.span()};
  return set_fp8_scales(packing_.fp8, scales, bytes, path_ + ": tensor '" + e.name + "'", w);
}

Result<float> HuggingFaceSource::bitnet_scale(const SafetensorsEntry& e) const {
  const std::string name = e.name + "_scale";
  const auto* t = files_.find(name);
  if (t == nullptr) return fail(ErrorCode::kNotFound, path_, "no '" + name + "'", "the scale of a packed weight");
  if (!is_float(t->entry->dtype) || element_count(t->entry->shape).value_or(0) != 1)
    return fail(ErrorCode::kCorrupt, path_ + ": tensor '" + name + "'",
                std::string(dtype_name(t->entry->dtype)) + " " + shape_string(t->entry->shape), "one float");
  LOWBIT_TRY_ASSIGN(const Buffer scale_bytes, files_.bytes(name));
  float scale = 0;
  convert_to_f32({t->entry->dtype, t->entry->shape, scale_bytes.span()}, 0, 1, &scale);
  return scale;
}

/// config.json and the tensor must agree: packed or floats.
Status HuggingFaceSource::check_bitnet(const SafetensorsEntry& e, const std::string& where) const {
  if (!packing_.bitnet || e.shape.size() != 2 || !packing_.bitnet->converts(e.name)) return {};
  const bool online = packing_.bitnet->online;
  if (online ? is_float(e.dtype) : is_bitnet(e)) return {};
  return fail(
      ErrorCode::kCorrupt, where, dtype_name(e.dtype), online ? "floats" : "packed weights, U8",
      online ? "config.json says \"quantization_mode\": \"online\"; packed weights are \"offline\""
             : "weights that are rounded when the model runs need \"quantization_mode\": \"online\" in config.json");
}

Result<QTensor> HuggingFaceSource::scale_bias(const QTensor& bias, const SafetensorsEntry& weight,
                                              const std::string& where) const {
  LOWBIT_TRY_ASSIGN(const float scale, bitnet_scale(weight));
  QTensor w;
  w.n = bias.n;
  w.k = bias.k;
  LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(4 * w.n * w.k, where.c_str()));
  dequantize_rows(bias, 0, w.n, w.codes.as<float>());
  for (int64_t i = 0; i < w.n * w.k; ++i) w.codes.as<float>()[i] *= scale;
  return w;
}

Result<QTensor> HuggingFaceSource::load_bitnet(const SafetensorsEntry& e, const std::string& where) const {
  LOWBIT_TRY_ASSIGN(const float scale, bitnet_scale(e));
  LOWBIT_TRY_ASSIGN(const Buffer bytes, files_.bytes(e.name));
  return load_bitnet_weight({bytes.as<uint8_t>(), e.shape[0], e.shape[1]}, scale, *packing_.bitnet, where);
}

Result<QTensor> HuggingFaceSource::load(const std::string& name) const {
  const auto* t = has(name) ? files_.find(name) : nullptr;
  if (t == nullptr) return fail(ErrorCode::kNotFound, path_, "no tensor '" + name + "'", "a tensor of this model");
  const SafetensorsEntry& e = *t->entry;
  const std::string where = path_ + ": tensor '" + name + "'";
  LOWBIT_TRY(check_bitnet(e, where));
  if (is_bitnet(e)) return load_bitnet(e, where);
  QTensor w;
  LOWBIT_TRY_ASSIGN(const int64_t count, element_count(e.shape));
  w.k = e.shape.empty() ? 1 : e.shape.back();
  w.n = w.k == 0 ? 0 : count / w.k;
  LOWBIT_TRY_ASSIGN(w.codes, files_.bytes(name));
  if (e.dtype == DType::kE4m3) {
    LOWBIT_TRY(load_fp8_scales(name, &w));
  } else if (is_float(e.dtype)) {
    w.format = e.dtype == DType::kF32 ? FormatId::kF32 : e.dtype == DType::kF16 ? FormatId::kF16 : FormatId::kBf16;
  } else if (e.dtype == DType::kF64) {
    LOWBIT_TRY_ASSIGN(Buffer out, Buffer::allocate(4 * count, where.c_str()));
    convert_to_f32({e.dtype, e.shape, w.codes.span()}, 0, count, out.as<float>());
    w.codes = std::move(out);
  } else if (e.dtype == DType::kE5m2) {
    return fail(ErrorCode::kUnsupported, where, "element type F8_E5M2", "F8_E4M3 or floats",
                "E5M2 has two bits of mantissa, made for gradients; start from the model's unquantized weights");
  } else {
    return fail(ErrorCode::kUnsupported, where, std::string("element type ") + dtype_name(e.dtype), "floats",
                "weights packed by another tool must be imported from their original");
  }
  LOWBIT_TRY(check_qtensor(w, where.c_str()));
  if (is_online(e)) return ternarized(w, where);
  if (const SafetensorsEntry* weight = scaled_bias(name)) return scale_bias(w, *weight, where);
  return w;
}

/// An error for packings that lowbit cannot read.
Result<Packing> read_packing(const nlohmann::json& config, const std::string& where) {
  Packing packing;
  const nlohmann::json* q = json_object(config, "quantization_config");
  if (q == nullptr) return packing;
  const std::string method = json_string(*q, "quant_method").value_or("");
  if (method == "bitnet") {
    LOWBIT_TRY_ASSIGN(packing.bitnet, bitnet_packing(*q, where));
    return packing;
  }
  if (method != "fp8" && method != "compressed-tensors")
    return fail(ErrorCode::kUnsupported, where + ": quant_method", "'" + method.substr(0, 64) + "'",
                "floats, fp8, compressed-tensors of fp8 weights, or bitnet",
                "start from the model's unquantized weights");
  LOWBIT_TRY_ASSIGN(packing.fp8, fp8_packing(*q, where));
  return packing;
}

}  // namespace

Result<std::unique_ptr<WeightSource>> open_huggingface_source(const std::string& path) {
  const std::string where = path + "/config.json";
  LOWBIT_TRY_ASSIGN(auto texts, read_model_texts(path));
  LOWBIT_TRY_ASSIGN(texts.config, read_text_file(where, kMaxConfigBytes));
  LOWBIT_TRY_ASSIGN(const auto config, parse_json_object(texts.config, where));
  LOWBIT_TRY_ASSIGN(auto packing, read_packing(config, where));
  LOWBIT_TRY_ASSIGN(auto files, SafetensorsSet::open(path));
  return std::unique_ptr<WeightSource>(
      std::make_unique<HuggingFaceSource>(path, std::move(files), std::move(texts), std::move(packing)));
}

}  // namespace lowbit
