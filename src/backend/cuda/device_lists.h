#pragma once

#include <cstdint>

#include "lowbit/error.h"
#include "tensor/buffer.h"

namespace lowbit {

/// Lists in one piece of memory, which one copy sends.
class DeviceLists {
 public:
  /// `copies`: so many calls of send() may be on their way at once, each behind another use_copy().
  Status reserve(int64_t bytes, int64_t copies);
  int64_t bytes() const { return on_device_.size(); }
  int64_t used() const { return used_; }
  /// Begins anew.
  void clear() { used_ = 0; }
  /// Room for a list of up to `most`, behind the lists before; where it begins.
  template <class T>
  int64_t add(int64_t most) {
    const int64_t at = used_;
    used_ += (most * int64_t{sizeof(T)} + kAlign - 1) / kAlign * kAlign;
    return at;
  }
  template <class T>
  T* host(int64_t at) {
    return reinterpret_cast<T*>(host_.data() + copy_ * on_device_.size() + at);
  }
  template <class T>
  const T* on_device(int64_t at) const {
    return reinterpret_cast<const T*>(on_device_.data() + at);
  }
  /// Copy 0, and bytes from a copy to the next one.
  const std::byte* host_copies() const { return host_.data(); }
  int64_t copies_apart() const { return on_device_.size(); }
  /// The host's lists lie in this copy from here on.
  void use_copy(int64_t copy) { copy_ = copy; }
  /// The first `bytes` of them.
  Status send(void* stream, int64_t bytes);

  static constexpr int64_t kAlign = 16;

 private:
  Buffer on_device_, host_;
  int64_t used_ = 0, copy_ = 0;
};

}  // namespace lowbit
