#include "backend/cuda/weight_parts.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/checked.h"
#include "base/float.h"
#include "base/try.h"

namespace lowbit {
namespace {

using cuda::ValueType;

/// The value's bytes; false where the type does not hold it.
bool put_value(ValueType type, float v, uint8_t* to) {
  if (type == ValueType::kF32) {
    std::memcpy(to, &v, sizeof(v));
    return true;
  }
  if (type == ValueType::kInt8) {
    if (!(v >= -128 && v <= 127)) return false;
    const auto code = static_cast<int8_t>(v);
    std::memcpy(to, &code, 1);
    return f32_to_bits(static_cast<float>(code)) == f32_to_bits(v);  // no -0
  }
  if (type == ValueType::kE4m3) {
    *to = f32_to_e4m3(v);
    return v != v || f32_to_bits(e4m3_to_f32(*to)) == f32_to_bits(v);
  }
  const uint16_t half = type == ValueType::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
  std::memcpy(to, &half, sizeof(half));
  return v != v || f32_to_bits(type == ValueType::kF16 ? f16_to_f32(half) : bf16_to_f32(half)) == f32_to_bits(v);
}

/// Rows of w without its scales as such values; false where one is no such value.
bool put_values(const QTensor& w, ValueType type, ThreadPool& pool, std::vector<uint8_t>& to) {
  const int64_t row_bytes = cuda::value_row_bytes(type, w.k);
  to.assign(static_cast<size_t>(w.n * row_bytes), 0);
  std::atomic<bool> holds = true;
  pool.parallel_for(w.n, 16, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(w.k));
    for (int64_t r = begin; r < end && holds; ++r) {
      dequantize_rows(w, r, 1, row.data());
      uint8_t* at = to.data() + r * row_bytes;
      bool all = true;
      for (const float v : row) {
        all &= put_value(type, v, at);
        at += cuda::value_bytes(type);
      }
      if (!all) holds = false;
    }
  });
  return holds;
}

}  // namespace

Result<WeightParts> split_weight(const QTensor& w, ThreadPool& pool) {
  WeightParts parts;
  const bool dense = is_dense(w.format);
  QTensor plain = w;  // with one scale, 1
  if (!dense) {
    plain.scaling = {Scaling::kAll, Scaling::kAll, ScaleKind::kF32, ZeroKind::kNone};
    LOWBIT_TRY_ASSIGN(plain.scales, Buffer::allocate(int64_t{sizeof(float)}, "a scale"));
    *plain.scales.as<float>() = 1.0f;
    plain.super_scales = plain.zeros = {};
    plain.row_ends.clear();
  }
  // Embeddings read dense values, too, which are of a format then.
  for (const ValueType type :
       {ValueType::kInt8, ValueType::kE4m3, ValueType::kBf16, ValueType::kF16, ValueType::kF32}) {
    if (dense && cuda::value_bytes(type) == 1) continue;
    parts.type = type;
    if (put_values(plain, type, pool, parts.values)) break;
  }
  parts.group = std::max<int64_t>(1, dense ? w.k : std::min(w.group(), w.k));
  if (dense) return parts;
  const auto fill = [&](std::vector<float>& to, auto factor) {
    to.resize(static_cast<size_t>(ceil_div(w.k, parts.group) * w.n));
    pool.parallel_for(ceil_div(w.k, parts.group), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t g = begin; g < end; ++g)
        for (int64_t r = 0; r < w.n; ++r) to[static_cast<size_t>(g * w.n + r)] = factor(r, g);
    });
  };
  fill(parts.scales, [&](int64_t r, int64_t g) { return w.scale(r, g); });
  if (w.scaling.zero != ZeroKind::kNone) fill(parts.offsets, [&](int64_t r, int64_t g) { return w.offset(r, g); });
  return parts;
}

}  // namespace lowbit
