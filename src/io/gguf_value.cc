#include <cmath>
#include <cstring>

#include "io/gguf.h"

namespace lowbit {
namespace {

template <class T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}

std::optional<int64_t> load_int(GgufValueType type, const std::byte* p) {
  switch (type) {
    case GgufValueType::kU8:
      return load<uint8_t>(p);
    case GgufValueType::kI8:
      return load<int8_t>(p);
    case GgufValueType::kU16:
      return load<uint16_t>(p);
    case GgufValueType::kI16:
      return load<int16_t>(p);
    case GgufValueType::kU32:
      return load<uint32_t>(p);
    case GgufValueType::kI32:
      return load<int32_t>(p);
    case GgufValueType::kI64:
      return load<int64_t>(p);
    case GgufValueType::kU64: {
      const auto v = load<uint64_t>(p);
      if (v > uint64_t{INT64_MAX}) return std::nullopt;
      return static_cast<int64_t>(v);
    }
    default:
      return std::nullopt;
  }
}

size_t int_bytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
      return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16:
      return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
      return 4;
    default:
      return 8;
  }
}

}  // namespace

std::optional<int64_t> GgufValue::as_int() const { return load_int(type, bytes.data()); }

std::optional<double> GgufValue::as_double() const {
  if (type == GgufValueType::kF32) return load<float>(bytes.data());
  if (type == GgufValueType::kF64) return load<double>(bytes.data());
  if (const auto v = as_int()) return static_cast<double>(*v);
  return std::nullopt;
}

std::optional<bool> GgufValue::as_bool() const {
  if (type != GgufValueType::kBool) return std::nullopt;
  return load<uint8_t>(bytes.data()) != 0;
}

std::optional<std::string_view> GgufValue::as_string() const {
  if (type != GgufValueType::kString) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::optional<std::vector<std::string>> GgufValue::as_strings() const {
  if (type != GgufValueType::kArray || item_type != GgufValueType::kString) return std::nullopt;
  std::vector<std::string> out;
  out.reserve(count);
  size_t at = 0;  // the lengths were checked when the file was opened
  for (uint64_t i = 0; i < count; ++i) {
    const auto length = load<uint64_t>(bytes.data() + at);
    out.emplace_back(reinterpret_cast<const char*>(bytes.data() + at + 8), length);
    at += 8 + length;
  }
  return out;
}

std::optional<std::vector<int64_t>> GgufValue::as_ints() const {
  if (type != GgufValueType::kArray) return std::nullopt;
  std::vector<int64_t> out;
  if (count > 0 && !load_int(item_type, bytes.data())) return std::nullopt;
  out.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const auto v = load_int(item_type, bytes.data() + i * int_bytes(item_type));
    if (!v) return std::nullopt;
    out.push_back(*v);
  }
  return out;
}

std::optional<std::vector<float>> GgufValue::as_floats() const {
  if (type != GgufValueType::kArray || item_type != GgufValueType::kF32) return std::nullopt;
  std::vector<float> out(count);
  if (count > 0) std::memcpy(out.data(), bytes.data(), count * 4);
  return out;
}

int64_t GgufTensor::n() const {
  int64_t product = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) product *= shape[i];
  return product;
}

}  // namespace lowbit
