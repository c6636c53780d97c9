#pragma once
// The fuzzer's bytes as a sequence of choices. Behind the last byte every choice is 0.

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>

namespace lowbit::fuzz {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : left_(data, size) {}

  bool empty() const { return left_.empty(); }
  std::span<const uint8_t> left() const { return left_; }
  uint8_t byte() { return number<uint8_t>(); }
  template <class T>
  T number() {
    T v{};
    const size_t size = left_.size() < sizeof v ? left_.size() : sizeof v;
    if (size > 0) std::memcpy(&v, left_.data(), size);
    left_ = left_.subspan(size);
    return v;
  }
  /// 0 to n - 1, from one byte or two.
  int64_t below(int64_t n) { return (n <= 256 ? byte() : number<uint16_t>()) % n; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(static_cast<int64_t>(choices.size()))];
  }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace lowbit::fuzz
