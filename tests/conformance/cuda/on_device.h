#pragma once
// Shared by the tests of this folder: the skip without a GPU, and bytes on the device.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_api.h"

#define LOWBIT_NEEDS_GPU() \
  if (cuda::devices().empty()) GTEST_SKIP() << "no CUDA device of compute capability 8.0 or higher"

namespace lowbit::conformance {

/// A copy of `size` bytes on the device; empty, and the test has failed, where there is no room.
inline Buffer on_device(const void* bytes, size_t size) {
  auto b = cuda::allocate(int64_t(size), "test");
  EXPECT_TRUE(b.has_value());
  if (!b) return {};
  EXPECT_TRUE(cuda::upload(*b, bytes, int64_t(size)));
  return *b;
}

}  // namespace lowbit::conformance
