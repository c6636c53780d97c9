#pragma once
// A vector where kernels on fibers read it: the host's memory. tests/conformance/cuda/vector_on_device.h is a GPU's.

#include <utility>
#include <vector>

namespace lowbit {
namespace {

template <class T>
class OnDevice {
 public:
  explicit OnDevice(std::vector<T> values) : values_(std::move(values)) {}
  T* data() { return values_.data(); }
  const T* data() const { return values_.data(); }
  const std::vector<T>& back() const { return values_; }

 private:
  std::vector<T> values_;
};

}  // namespace
}  // namespace lowbit
