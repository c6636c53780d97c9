#include "lowbit/tensor.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/float.h"

namespace lowbit {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  int bytes;
};
constexpr std::array<DTypeRow, 15> kDTypes = {{{DType::kF64, "F64", 8},
                                               {DType::kF32, "F32", 4},
                                               {DType::kF16, "F16", 2},
                                               {DType::kBf16, "BF16", 2},
                                               {DType::kE4m3, "F8_E4M3", 1},
                                               {DType::kE5m2, "F8_E5M2", 1},
                                               {DType::kI64, "I64", 8},
                                               {DType::kI32, "I32", 4},
                                               {DType::kI16, "I16", 2},
                                               {DType::kI8, "I8", 1},
                                               {DType::kU64, "U64", 8},
                                               {DType::kU32, "U32", 4},
                                               {DType::kU16, "U16", 2},
                                               {DType::kU8, "U8", 1},
                                               {DType::kBool, "BOOL", 1}}};

template <class T>
T load(const std::byte* data, int64_t i) {
  T v;
  std::memcpy(&v, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}

}  // namespace

int64_t dtype_bytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }
const char* dtype_name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

Result<DType> parse_dtype(std::string_view name) {
  for (const auto& row : kDTypes)
    if (name == row.name) return row.dtype;
  return fail(ErrorCode::kUnsupported, "element type", "'" + std::string(name) + "'",
              "F32, F16, BF16, F8_E4M3, U8, ...");
}

Result<int64_t> element_count(const Shape& shape) {
  uint64_t n = 1;
  for (int64_t extent : shape) {
    if (extent < 0) return fail(ErrorCode::kCorrupt, "shape", shape_string(shape), "extents >= 0");
    const auto product = checked_mul(n, static_cast<uint64_t>(extent));
    if (!product || *product > static_cast<uint64_t>(INT64_MAX))
      return fail(ErrorCode::kCorrupt, "shape", shape_string(shape), "fewer than 2^63 elements");
    n = *product;
  }
  return static_cast<int64_t>(n);
}

std::string shape_string(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

float load_as_f32(DType dtype, const std::byte* data, int64_t i) {
  switch (dtype) {
    case DType::kF64:
      return static_cast<float>(load<double>(data, i));
    case DType::kF32:
      return load<float>(data, i);
    case DType::kF16:
      return f16_to_f32(load<uint16_t>(data, i));
    case DType::kBf16:
      return bf16_to_f32(load<uint16_t>(data, i));
    case DType::kE4m3:
      return e4m3_to_f32(load<uint8_t>(data, i));
    case DType::kE5m2:
      return f16_to_f32(static_cast<uint16_t>(load<uint8_t>(data, i) << 8));
    case DType::kI64:
      return static_cast<float>(load<int64_t>(data, i));
    case DType::kI32:
      return static_cast<float>(load<int32_t>(data, i));
    case DType::kI16:
      return load<int16_t>(data, i);
    case DType::kI8:
      return load<int8_t>(data, i);
    case DType::kU64:
      return static_cast<float>(load<uint64_t>(data, i));
    case DType::kU32:
      return static_cast<float>(load<uint32_t>(data, i));
    case DType::kU16:
      return load<uint16_t>(data, i);
    case DType::kU8:
      return load<uint8_t>(data, i);
    case DType::kBool:
      return load<uint8_t>(data, i) != 0 ? 1.0f : 0.0f;
  }
  return 0;
}

void convert_to_f32(const TensorView& view, int64_t first, int64_t n, float* out) {
  if (view.dtype == DType::kF32) {
    if (n > 0) std::memcpy(out, view.data.data() + first * 4, static_cast<size_t>(n) * 4);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = load_as_f32(view.dtype, view.data.data(), first + i);
}

}  // namespace lowbit
