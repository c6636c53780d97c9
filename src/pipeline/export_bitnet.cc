// A ternary model as the Hugging Face directory that transformers loads: quant_method bitnet, offline. Its packing:
// src/model/source_bitnet.cc.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "arch/family.h"
#include "base/clock.h"
#include "base/float.h"
#include "base/try.h"
#include "format/registry.h"
#include "io/json_text.h"
#include "io/lost_pages.h"
#include "io/mapped_file.h"
#include "io/replace_directory.h"
#include "io/safetensors.h"
#include "lowbit/file.h"
#include "lowbit/quantize.h"
#include "model/model_spec.h"
#include "pipeline/conversion.h"
#include "pipeline/export_fp8.h"
#include "pipeline/export_texts.h"

namespace lowbit {
namespace {

using nlohmann::json;

constexpr int64_t kRowsPerByte = 4;
constexpr int64_t kMaxConfigBytes = int64_t{4} << 20;

/// Only what an export wrote, or another file of its kind, is replaced.
Status may_replace(const std::string& target) {
  const auto text = read_text_file(target + "/config.json", kMaxConfigBytes);
  const auto config = text ? parse_json_object(*text, "config.json") : Result<json>(json::object());
  const json* quantization = config ? json_object(*config, "quantization_config") : nullptr;
  const std::string method = quantization == nullptr ? "" : json_string(*quantization, "quant_method").value_or("");
  if (method == "bitnet" || method == "fp8" || method == "compressed-tensors") return {};
  return fail(ErrorCode::kInvalidArgument, target, "something else than an exported model",
              "a new name, an empty directory, or a BitNet or fp8 model");
}

Status may_not_replace(const std::string& target) {
  return fail(ErrorCode::kInvalidArgument, target, "a directory that is not empty", "a new name",
              "--force replaces a BitNet or fp8 model");
}

class BitnetExport {
 public:
  BitnetExport(const WeightSource& source, const ExportOptions& options, const ModelSpec& spec)
      : source_(source), options_(options), spec_(spec) {
    for (const SourceTensor& t : source.tensors()) total_ += 2 * t.stored_bytes;
  }

  Result<int64_t> write(const std::string& directory) {
    LOWBIT_TRY(declare());
    LOWBIT_TRY_ASSIGN(auto writer,
                      SafetensorsWriter::create(directory + "/model.safetensors", declared_, {{"format", "pt"}}));
    for (const SourceTensor& t : source_.tensors()) {
      LOWBIT_TRY_ASSIGN(const QTensor w, load(t));
      LOWBIT_TRY(is_packed(t) ? append_packed(w, *writer) : append_dense(w, *writer));
      LOWBIT_TRY(done(t));
    }
    LOWBIT_TRY(writer->finish());
    LOWBIT_TRY(write_export_texts(source_, quantization(), directory));
    return bytes_;
  }

 private:
  /// The weight of a linear layer of a block.
  bool is_packed(const SourceTensor& t) const {
    return t.name.ends_with(".weight") && linear_of(spec_.blocks.front(), t.name) != nullptr;
  }
  bool multiplies() const { return options_.linear_class == "autobitlinear"; }

  Result<QTensor> load(const SourceTensor& t) const {
    if (options_.progress && !options_.progress("exporting", done_, total_))
      return fail(ErrorCode::kCancelled, "exporting", "a request to stop");
    LOWBIT_TRY_ASSIGN(QTensor w, source_.load(t.name));
    if (!is_packed(t)) return is_dense(w.format) ? Result<QTensor>(std::move(w)) : to_bf16(w);
    if (w.format != FormatId::kTernary || w.scales.size() != scale_bytes(w.scaling.scale) ||
        w.scaling.zero != ZeroKind::kNone)
      return fail(ErrorCode::kUnsupported, source_.path() + ": " + t.name,
                  fmt::format("{}, {} scales", format_info(w.format).name, w.scale_rows() * w.scale_cols()),
                  "ternary with one scale",
                  "models that were trained so have it; others: `lowbit quantize --format ternary --group tensor`");
    if (w.n % kRowsPerByte != 0)
      return fail(ErrorCode::kUnsupported, source_.path() + ": " + t.name, fmt::format("{} rows", w.n),
                  "a multiple of 4: a byte holds four rows");
    return w;
  }
  Status done(const SourceTensor& t) {
    source_.release(t.name);
    LOWBIT_TRY(lost_.status(source_.path()));
    done_ += t.stored_bytes;
    return {};
  }

  /// weight_scale, as the file has it.
  float stored_scale(const QTensor& w) const {
    float one = 0;
    std::vector<float> row(static_cast<size_t>(w.k));
    for (int64_t r = 0; r < w.n && one == 0; ++r) {  // a scale is what is not 0
      dequantize_rows(w, r, 1, row.data());
      for (const float v : row) one = std::max(one, std::fabs(v));
    }
    if (one == 0) one = 1;
    return multiplies() ? one : 1 / one;
  }
  static bool is_bf16(float v) { return bf16_to_f32(f32_to_bf16(v)) == v; }

  /// Names, types and shapes come before the first byte.
  Status declare() {
    for (const SourceTensor& t : source_.tensors()) {
      if (multiplies() && t.name.ends_with(".bias") && linear_of(spec_.blocks.front(), t.name) != nullptr)
        return fail(ErrorCode::kUnsupported, source_.path() + ": " + t.name, "a bias",
                    "none: autobitlinear multiplies it by the scale", "--linear-class bitlinear");
      LOWBIT_TRY_ASSIGN(const QTensor w, load(t));
      if (is_packed(t)) {
        const float scale = stored_scale(w);
        declared_.push_back({t.name, DType::kU8, {w.n / kRowsPerByte, w.k}});
        declared_.push_back({t.name + "_scale", is_bf16(scale) ? DType::kBf16 : DType::kF32, {1}});
      } else {
        const DType type = w.format == FormatId::kF32   ? DType::kF32
                           : w.format == FormatId::kF16 ? DType::kF16
                                                        : DType::kBf16;
        declared_.push_back({t.name, type, t.shape});
      }
      LOWBIT_TRY(done(t));
    }
    return {};
  }

  Status append(std::span<const std::byte> bytes, SafetensorsWriter& writer) {
    bytes_ += static_cast<int64_t>(bytes.size());
    return writer.append(bytes);
  }
  Status append_dense(const QTensor& w, SafetensorsWriter& writer) {
    return append({w.codes.data(), static_cast<size_t>(w.codes.size())}, writer);
  }
  Status append_packed(const QTensor& w, SafetensorsWriter& writer) {
    const int64_t rows = w.n / kRowsPerByte, bytes_per_row = row_bytes(w.format, w.k);
    std::vector<uint8_t> line(static_cast<size_t>(w.k));
    for (int64_t r = 0; r < rows; ++r) {
      std::fill(line.begin(), line.end(), uint8_t{0});
      for (int64_t part = 0; part < kRowsPerByte; ++part) {
        const auto* codes = w.codes.as<uint8_t>() + (part * rows + r) * bytes_per_row;
        for (int64_t c = 0; c < w.k; ++c) {
          const unsigned code = codes[c / 4] >> 2 * (c % 4) & 3u;
          line[static_cast<size_t>(c)] = static_cast<uint8_t>(line[static_cast<size_t>(c)] | code << 2 * part);
        }
      }
      LOWBIT_TRY(append(std::as_bytes(std::span(line)), writer));
    }
    const float scale = stored_scale(w);
    const uint16_t half = f32_to_bf16(scale);
    return is_bf16(scale) ? append(std::as_bytes(std::span(&half, 1)), writer)
                          : append(std::as_bytes(std::span(&scale, 1)), writer);
  }

  json quantization() const {
    json q = {{"quant_method", "bitnet"},
              {"linear_class", options_.linear_class},
              {"quantization_mode", "offline"},
              {"modules_to_not_convert", nullptr}};
    if (const auto& norm = spec_.blocks.front().attention.qkv.readers.front().norm) {
      q["use_rms_norm"] = true;
      q["rms_norm_eps"] = norm->eps;
    }
    return q;
  }

  const WeightSource& source_;
  const ExportOptions& options_;
  const ModelSpec& spec_;
  const LostPages lost_;
  std::vector<SafetensorsDecl> declared_;
  int64_t bytes_ = 0, done_ = 0, total_ = 0;
};

}  // namespace

Result<ExportReport> export_model(const std::string& name, const std::string& target, const ExportOptions& options) {
  const auto start = Clock::now();
  if (options.linear_class != "autobitlinear" && options.linear_class != "bitlinear")
    return fail(ErrorCode::kInvalidArgument, "linear_class", "'" + options.linear_class.substr(0, 64) + "'",
                "autobitlinear or bitlinear");
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const auto source, open_source(path));
  LOWBIT_TRY_ASSIGN(const ModelSpec spec, executable_spec_of(*source));
  LOWBIT_TRY(source->tokenizer_status());
  for (const InputSpec* input : inputs_of(spec.blocks.front()))
    if (input->hadamard > 0)
      return fail(ErrorCode::kUnsupported, source->path(), "a Hadamard transform at run time", "a model without one");
  LOWBIT_TRY_ASSIGN(auto directory,
                    ReplaceDirectory::create(target, options.overwrite ? may_replace : may_not_replace));
  ExportReport report;
  LOWBIT_TRY_ASSIGN(const bool fp8, has_fp8_blocks(*source, spec));
  LOWBIT_TRY_ASSIGN(report.bytes, fp8 ? write_fp8_model(*source, spec, options, directory->path())
                                      : BitnetExport(*source, options, spec).write(directory->path()));
  LOWBIT_TRY(directory->commit());
  report.tensors = static_cast<int64_t>(source->tensors().size());
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace lowbit
