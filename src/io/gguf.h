#pragma once
// GGUF v2 and v3 files, little-endian, also in several parts. Everything stays in the mapped file; nothing is copied
// but names.
//
// Rules beyond "inside the file": every count is checked against the bytes that are left before it is used; no key
// twice, a name twice only for output.weight, where both are the same; alignment a power of two up to 65536; tensors
// follow each other in order, each aligned, as ggml's own reader wants it; rows are whole blocks; arrays hold no
// arrays.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf_types.h"
#include "io/mapped_file.h"
#include "lowbit/error.h"
#include "lowbit/tensor.h"

namespace lowbit {

enum class GgufValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};

/// One metadata value. Views point into the file and live as long as the GgufFile.
class GgufValue {
 public:
  GgufValueType type = GgufValueType::kU8;
  GgufValueType item_type = GgufValueType::kU8;  // arrays
  uint64_t count = 1;                            // items of an array
  std::span<const std::byte> bytes;              // the value as stored; a string without its length

  // nullopt when the type is another one or the number does not fit. Integers convert among each other and to double.
  std::optional<int64_t> as_int() const;
  std::optional<double> as_double() const;  // f32, f64 and integers
  std::optional<bool> as_bool() const;
  std::optional<std::string_view> as_string() const;
  std::optional<std::vector<std::string>> as_strings() const;
  std::optional<std::vector<int64_t>> as_ints() const;
  std::optional<std::vector<float>> as_floats() const;
};

struct GgufTensor {
  std::string name;
  Shape shape;  // outermost first: GGUF's own order reversed
  uint32_t type_id = 0;
  uint32_t part = 0;
  uint64_t offset = 0;  // in its part
  uint64_t size_bytes = 0;

  int64_t k() const { return shape.back(); }
  int64_t n() const;  // product of the other extents
};

class GgufFile {
 public:
  /// `path` may be the first of several parts ("...-00001-of-00003.gguf"); the others are opened with it.
  /// Errors: as MappedFile::open; kUnsupported (big-endian, version 1, an unknown tensor type, nested arrays),
  /// kCorrupt.
  static Result<GgufFile> open(const std::string& path);

  const std::string& path() const { return parts_.front()->path(); }
  uint32_t version() const { return version_; }
  int64_t size_bytes() const;
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order
  const GgufTensor* find(std::string_view name) const;
  const std::vector<std::pair<std::string, GgufValue>>& metadata() const {
    return metadata_;
  }  // of the first part, sorted by key
  const GgufValue* value(std::string_view key) const;

  /// The tensor's blocks as stored, borrowed.
  Result<Buffer> bytes(const GgufTensor& tensor) const;
  Result<QTensor> load(const GgufTensor& tensor) const;  // gguf_to_qtensor of bytes()
  void release(const GgufTensor& tensor) const;
  /// Whether two tensors have the same shape, type and bytes.
  Result<bool> same_tensor(const GgufTensor& a, const GgufTensor& b) const;

 private:
  Status open_part(const std::string& path, uint32_t part);
  Status open_siblings(const std::string& path);
  Status index_tensors();  // equal tensors of one name become one
  uint32_t version_ = 0;
  std::vector<std::shared_ptr<MappedFile>> parts_;
  std::vector<GgufTensor> tensors_;
  std::vector<uint32_t> by_name_;
  std::vector<std::pair<std::string, GgufValue>> metadata_;
};

}  // namespace lowbit
