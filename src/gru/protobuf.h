#pragma once
// Protocol buffers' wire format, read without a schema: fields one after another, every length checked.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lowbit {

struct ProtoField {
  uint32_t number = 0;
  uint32_t wire = 0;                 // 0 varint, 1 fixed64, 2 bytes, 5 fixed32
  uint64_t value = 0;                // wire 0, 1, 5
  std::span<const std::byte> bytes;  // wire 2

  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

/// Iterates over the fields of a message. After the last, or at a broken one, next() gives nothing; ok() tells which.
class ProtoReader {
 public:
  explicit ProtoReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::optional<ProtoField> next() {
    if (at_ == bytes_.size() || !ok_) return std::nullopt;
    ProtoField f;
    const auto key = varint();
    if (!key) return broken();
    f.number = static_cast<uint32_t>(*key >> 3);
    f.wire = static_cast<uint32_t>(*key & 7);
    if (f.number == 0 || *key >> 32 != 0) return broken();
    if (f.wire == 0) {
      const auto v = varint();
      if (!v) return broken();
      f.value = *v;
    } else if (f.wire == 1 || f.wire == 5) {
      const size_t size = f.wire == 1 ? 8 : 4;
      if (bytes_.size() - at_ < size) return broken();
      for (size_t i = 0; i < size; ++i) f.value |= static_cast<uint64_t>(bytes_[at_ + i]) << (8 * i);
      at_ += size;
    } else if (f.wire == 2) {
      const auto size = varint();
      if (!size || *size > bytes_.size() - at_) return broken();
      f.bytes = bytes_.subspan(at_, static_cast<size_t>(*size));
      at_ += static_cast<size_t>(*size);
    } else {
      return broken();  // groups are of another age
    }
    return f;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return at_ == bytes_.size(); }

  /// A varint here: packed repeated fields are these and nothing else.
  std::optional<uint64_t> varint() {
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64 && at_ < bytes_.size(); shift += 7) {
      const auto byte = static_cast<uint64_t>(bytes_[at_++]);
      if (shift == 63 && byte > 1) return std::nullopt;
      v |= (byte & 0x7f) << shift;
      if (byte < 0x80) return v;
    }
    return std::nullopt;
  }

 private:
  std::optional<ProtoField> broken() {
    ok_ = false;
    return std::nullopt;
  }
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace lowbit
