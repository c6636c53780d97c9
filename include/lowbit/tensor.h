#pragma once
// Element types, shapes and non-owning tensor views.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lowbit/error.h"

namespace lowbit {

/// Plain element types of files and activations. Quantized weights are not a DType: see
/// lowbit/format.h.
enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBf16,
  kE4m3,
  kE5m2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool
};

int64_t dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);  // safetensors' spelling: "F32", "BF16", "F8_E4M3", "U8", ...
Result<DType> parse_dtype(std::string_view name);

/// Row-major extents, outermost first. Strides, where one is needed, count elements.
using Shape = std::vector<int64_t>;

/// Product of the extents; 1 for a scalar. Error when an extent is negative or the product
/// overflows.
Result<int64_t> element_count(const Shape& shape);
std::string shape_string(const Shape& shape);  // "[576, 1536]"

/// A dense, contiguous, row-major tensor somebody else owns.
struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> data;

  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data.data());
  }
};

/// Element i of `data` as float, for the floating types, bool and integers up to 64 bits (rounded
/// where float cannot hold them). Unaligned data is fine.
float load_as_f32(DType dtype, const std::byte* data, int64_t i);

/// out[0..n) = elements [first, first + n) of `view` as float.
void convert_to_f32(const TensorView& view, int64_t first, int64_t n, float* out);

}  // namespace lowbit
