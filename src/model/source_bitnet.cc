// Hugging Face's packing of ternary weights ("quant_method": "bitnet"): "P.weight" U8 [n / 4, k] holds in bits 2i of byte
// [r, c] the value + 1 of row i * n / 4 + r, and "P.weight_scale" one number for the whole tensor.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/try.h"
#include "format/registry.h"
#include "io/json_text.h"
#include "model/source_kinds.h"

namespace lowbit {
namespace {

constexpr int64_t kRowsPerByte = 4;

}  // namespace

Result<BitnetPacking> bitnet_packing(const nlohmann::json& quantization, const std::string& where) {
  const std::string linear = json_string(quantization, "linear_class").value_or("bitlinear");
  const std::string mode = json_string(quantization, "quantization_mode").value_or("offline");
  const auto norm = quantization.find("use_rms_norm");
  if (linear != "bitlinear" && linear != "autobitlinear")
    return fail(ErrorCode::kUnsupported, where + ": linear_class", "'" + linear.substr(0, 64) + "'",
                "bitlinear or autobitlinear");
  if (mode != "offline")
    return fail(ErrorCode::kUnsupported, where + ": quantization_mode", "'" + mode.substr(0, 64) + "'", "offline",
                "the weights of an online model are not rounded yet: export it packed");
  if (norm != quantization.end() && *norm != false)
    return fail(ErrorCode::kUnsupported, where + ": use_rms_norm", json_dump(*norm).substr(0, 64), "false",
                "norms inside linear layers are not part of the llama family");
  return BitnetPacking{.divides = linear == "bitlinear"};
}

Result<QTensor> load_bitnet_weight(const PackedRows& packed, float scale, BitnetPacking packing,
                                   const std::string& where) {
  if (!std::isnormal(scale) || scale < 0)
    return fail(ErrorCode::kCorrupt, where + ": weight_scale", std::to_string(scale), "a positive number");
  QTensor w;
  w.n = kRowsPerByte * packed.rows;
  w.k = packed.k;
  w.format = FormatId::kTernary;
  w.scaling = {Scaling::kAll, Scaling::kAll, ScaleKind::kF32, ZeroKind::kNone};
  const int64_t bytes_per_row = row_bytes(FormatId::kTernary, w.k);
  LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(w.n * bytes_per_row, where.c_str()));
  LOWBIT_TRY_ASSIGN(w.scales, Buffer::allocate(sizeof(float), where.c_str()));
  *w.scales.as<float>() = packing.divides ? 1 / scale : scale;
  uint8_t* out = w.codes.as<uint8_t>();
  for (int64_t row = 0; row < w.n; ++row, out += bytes_per_row) {
    const uint8_t* in = packed.bytes + row % packed.rows * w.k;
    const int shift = 2 * static_cast<int>(row / packed.rows);
    for (int64_t c = 0; c < w.k; ++c) {
      const int code = in[c] >> shift & 3;
      if (code == 3)
        return fail(ErrorCode::kCorrupt, where + ": row " + std::to_string(row) + ", column " + std::to_string(c),
                    "code 3", "0, 1 or 2 (value + 1)");
      out[c / 4] = static_cast<uint8_t>(out[c / 4] | code << 2 * (c % 4));
    }
  }
  return w;
}

}  // namespace lowbit
