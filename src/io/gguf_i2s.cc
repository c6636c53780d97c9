#include "io/gguf_i2s.h"

#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/try.h"
#include "format/registry.h"

namespace lowbit {
namespace {

struct CodePosition {
  int64_t byte;
  int shift;
};

CodePosition in_block(int64_t element, int64_t bytes) {
  const int64_t j = element % (4 * bytes);
  return {element / (4 * bytes) * bytes + j % bytes, 6 - 2 * static_cast<int>(j / bytes)};
}

CodePosition position_of(I2sLayout layout, int64_t row, int64_t column, int64_t k) {
  if (layout == I2sLayout::kRows4) return {row / 4 * k + column, 6 - 2 * static_cast<int>(row % 4)};
  return in_block(row * k + column, layout == I2sLayout::kX86 ? 32 : 16);
}

}  // namespace

Result<I2sLayout> parse_i2s_layout(const std::string& text, const std::string& where) {
  if (text == "x86") return I2sLayout::kX86;
  if (text == "arm") return I2sLayout::kArm;
  if (text == "rows4") return I2sLayout::kRows4;
  return fail(ErrorCode::kInvalidArgument, where, "'" + text.substr(0, 64) + "'", "x86, arm or rows4");
}

Result<QTensor> i2s_to_qtensor(int64_t n, int64_t k, const Buffer& raw, I2sLayout layout) {
  const auto count = n < 0 || k < 0 ? std::nullopt : checked_mul(static_cast<uint64_t>(n), static_cast<uint64_t>(k));
  const int64_t whole = layout == I2sLayout::kX86 ? 128 : layout == I2sLayout::kArm ? 64 : 4;
  if (!count || *count / 4 + kI2sTailBytes != static_cast<uint64_t>(raw.size()) ||
      (layout == I2sLayout::kRows4 ? n : static_cast<int64_t>(*count)) % whole != 0)
    return fail(ErrorCode::kShapeMismatch, "GGUF I2_S tensor",
                std::to_string(raw.size()) + " bytes for " + std::to_string(n) + " x " + std::to_string(k),
                layout == I2sLayout::kRows4 ? "4 rows together" : "whole blocks of " + std::to_string(whole));
  QTensor w;
  w.n = n;
  w.k = k;
  w.format = FormatId::kTernary;
  w.scaling = {Scaling::kAll, Scaling::kAll, ScaleKind::kF32, ZeroKind::kNone};
  const int64_t bytes_per_row = row_bytes(w.format, k);
  LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(n * bytes_per_row, "GGUF tensor codes"));
  LOWBIT_TRY_ASSIGN(w.scales, Buffer::allocate(sizeof(float), "GGUF tensor scales"));
  std::memcpy(w.scales.data(), raw.data() + *count / 4, sizeof(float));
  const float scale = *w.scales.as<float>();
  if (!std::isnormal(scale) || scale < 0)
    return fail(ErrorCode::kCorrupt, "GGUF I2_S scale", std::to_string(scale), "a positive number");
  const auto* in = reinterpret_cast<const uint8_t*>(raw.data());
  for (int64_t row = 0; row < n; ++row) {
    uint8_t* const out = w.codes.as<uint8_t>() + row * bytes_per_row;
    for (int64_t c = 0; c < k; ++c) {
      const CodePosition at = position_of(layout, row, c, k);
      const int code = in[at.byte] >> at.shift & 3;
      if (code == 3)
        return fail(ErrorCode::kCorrupt,
                    "GGUF I2_S tensor: row " + std::to_string(row) + ", column " + std::to_string(c), "code 3",
                    "0, 1 or 2 (value + 1)");
      out[c / 4] = static_cast<uint8_t>(out[c / 4] | code << 2 * (c % 4));
    }
  }
  return w;
}

}  // namespace lowbit
