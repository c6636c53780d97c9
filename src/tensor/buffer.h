#pragma once
// A run of bytes with one owner and a place: host memory, a mapped file, or (later) a device.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lowbit/error.h"

namespace lowbit {

enum class Device : uint8_t { kCpu, kCuda };

/// kLarge: pages of 2 MiB where the system has them to give, for what is read with long strides by many rows at a time
/// (activations): 512 rows of a matmul touch more small pages than a core can translate. Smaller buffers are as always.
enum class Pages : uint8_t { kNormal, kLarge };

/// Cheap to copy: copies share the bytes. Host bytes are aligned to 64 unless they belong to a
/// mapped file.
class Buffer {
 public:
  Buffer() = default;

  /// `bytes` of host memory, zeroed. kOutOfMemory when the system refuses.
  static Result<Buffer> allocate(int64_t bytes, const char* what, Pages pages = Pages::kNormal);

  /// Bytes that live as long as `owner` (a mapped file, another buffer).
  static Buffer borrow(std::span<std::byte> bytes, std::shared_ptr<void> owner, Device device = Device::kCpu);

  std::byte* data() { return bytes_.data(); }
  const std::byte* data() const { return bytes_.data(); }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  bool empty() const { return bytes_.empty(); }
  Device device() const { return device_; }
  std::span<const std::byte> span() const { return bytes_; }
  std::span<std::byte> span() { return bytes_; }

  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes_.data());
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes_.data());
  }

 private:
  std::span<std::byte> bytes_;
  std::shared_ptr<void> owner_;
  Device device_ = Device::kCpu;
};

}  // namespace lowbit
