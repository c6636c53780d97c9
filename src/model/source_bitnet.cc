// Hugging Face's BitNet models ("quant_method": "bitnet"), offline: "P.weight" U8 [n / 4, k] holds in bits 2i of byte
// [r, c] the value + 1 of row i * n / 4 + r, and "P.weight_scale" one number for the whole tensor. Online: floats,
// which the model rounds to ternary whenever it runs. docs/bitnet.md, docs/adr/0110-bitnet.md.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "arch/names.h"
#include "base/try.h"
#include "format/registry.h"
#include "io/json_text.h"
#include "model/source_kinds.h"

namespace lowbit {
namespace {

constexpr int64_t kRowsPerByte = 4;
constexpr float kLeastScale = 1e-5f;  // transformers' floor under mean |w|

/// A ternary matrix of zeros with one scale.
Result<QTensor> ternary_matrix(int64_t n, int64_t k, float scale, const std::string& where) {
  QTensor w;
  w.n = n;
  w.k = k;
  w.format = FormatId::kTernary;
  w.scaling = {Scaling::kAll, Scaling::kAll, ScaleKind::kF32, ZeroKind::kNone};
  LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(n * row_bytes(FormatId::kTernary, k), where.c_str()));
  LOWBIT_TRY_ASSIGN(w.scales, Buffer::allocate(sizeof(float), where.c_str()));
  *w.scales.as<float>() = scale;
  return w;
}

void put_code(uint8_t* row, int64_t column, int code) {
  row[column / 4] = static_cast<uint8_t>(row[column / 4] | code << 2 * (column % 4));
}

}  // namespace

bool BitnetPacking::converts(const std::string& tensor) const {
  constexpr std::string_view kWeight = ".weight";
  if (!tensor.starts_with(names::kBlocks.hf) || !tensor.ends_with(kWeight)) return false;
  return !names_module(kept, tensor.substr(0, tensor.size() - kWeight.size()));
}

Result<BitnetPacking> bitnet_packing(const nlohmann::json& quantization, const std::string& where) {
  const std::string linear = json_string(quantization, "linear_class").value_or("bitlinear");
  const std::string mode = json_string(quantization, "quantization_mode").value_or("offline");
  const auto kept = quantization.find("modules_to_not_convert");
  if (linear != "bitlinear" && linear != "autobitlinear")
    return fail(ErrorCode::kUnsupported, where + ": linear_class", "'" + linear.substr(0, 64) + "'",
                "bitlinear or autobitlinear");
  if (mode != "offline" && mode != "online")
    return fail(ErrorCode::kUnsupported, where + ": quantization_mode", "'" + mode.substr(0, 64) + "'",
                "offline or online");
  BitnetPacking packing{.divides = linear == "bitlinear", .online = mode == "online", .kept = {}};
  if (kept == quantization.end() || kept->is_null()) return packing;
  if (!kept->is_array() || !std::ranges::all_of(*kept, [](const auto& key) { return key.is_string(); }))
    return fail(ErrorCode::kCorrupt, where + ": modules_to_not_convert", json_dump(*kept).substr(0, 64),
                "names of modules");
  for (const auto& key : *kept) packing.kept.push_back(key.template get<std::string>());
  return packing;
}

Result<QTensor> load_bitnet_weight(const PackedRows& packed, float scale, const BitnetPacking& packing,
                                   const std::string& where) {
  if (!std::isnormal(scale) || scale < 0)
    return fail(ErrorCode::kCorrupt, where + ": weight_scale", std::to_string(scale), "a positive number");
  LOWBIT_TRY_ASSIGN(QTensor w,
                    ternary_matrix(kRowsPerByte * packed.rows, packed.k, packing.divides ? 1 / scale : scale, where));
  uint8_t* out = w.codes.as<uint8_t>();
  for (int64_t row = 0; row < w.n; ++row, out += row_bytes(FormatId::kTernary, w.k)) {
    const uint8_t* in = packed.bytes + row % packed.rows * w.k;
    const int shift = 2 * static_cast<int>(row / packed.rows);
    for (int64_t c = 0; c < w.k; ++c) {
      const int code = in[c] >> shift & 3;
      if (code == 3)
        return fail(ErrorCode::kCorrupt, where + ": row " + std::to_string(row) + ", column " + std::to_string(c),
                    "code 3", "0, 1 or 2 (value + 1)");
      put_code(out, c, code);
    }
  }
  return w;
}

Result<QTensor> ternarized(const QTensor& floats, const std::string& where) {
  std::vector<float> row(static_cast<size_t>(floats.k));
  double sum = 0;
  for (int64_t r = 0; r < floats.n; ++r) {
    dequantize_rows(floats, r, 1, row.data());
    for (const float v : row) sum += std::fabs(static_cast<double>(v));
  }
  if (!std::isfinite(sum))
    return fail(ErrorCode::kCorrupt, where, "NaN or infinity in its weights", "finite numbers",
                "the file is damaged, or the model overflowed when it was converted");
  const double count = static_cast<double>(floats.n) * static_cast<double>(std::max<int64_t>(floats.k, 1));
  const float inverse = 1 / std::max(static_cast<float>(sum / std::max(count, 1.0)), kLeastScale);
  LOWBIT_TRY_ASSIGN(QTensor w, ternary_matrix(floats.n, floats.k, 1 / inverse, where));
  uint8_t* out = w.codes.as<uint8_t>();
  for (int64_t r = 0; r < w.n; ++r, out += row_bytes(FormatId::kTernary, w.k)) {
    dequantize_rows(floats, r, 1, row.data());
    for (int64_t c = 0; c < w.k; ++c) {
      const float v = row[static_cast<size_t>(c)] * inverse;
      put_code(out, c, 1 + (v > 0.5f) - (v < -0.5f));  // round half to even, then to -1..1
    }
  }
  return w;
}

}  // namespace lowbit
