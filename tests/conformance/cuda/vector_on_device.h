#pragma once
// A vector in the GPU's memory, for checks that run on a GPU and on fibers: cuda_emulated/vector_on_device.h is the
// other.

#include <gtest/gtest.h>

#include <vector>

#include "tests/conformance/cuda/on_device.h"

namespace lowbit {
namespace {

template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values)
      : count_(values.size()), buffer_(conformance::on_device(values.data(), values.size() * sizeof(T))) {}
  T* data() { return buffer_.as<T>(); }
  const T* data() const { return buffer_.as<T>(); }
  std::vector<T> back() const {
    std::vector<T> values(count_);
    EXPECT_TRUE(cuda::download(values.data(), buffer_, int64_t(count_ * sizeof(T))));
    return values;
  }

 private:
  size_t count_;
  Buffer buffer_;
};

}  // namespace
}  // namespace lowbit
