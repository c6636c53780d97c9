#pragma once
// Memory for many small buffers that live about as long as each other, such as a model's weights.

#include <cstdint>
#include <memory>

#include "tensor/buffer.h"

namespace lowbit {

/// Lays buffers next to each other in large pages. One by one they would lie in small ones, which cost more to get from
/// the system than a weight costs to be laid out in them. A slab lives as long as any buffer in it. One call at a time.
class Arena {
 public:
  /// As Buffer::allocate(bytes, what, Pages::kLarge).
  Result<Buffer> allocate(int64_t bytes, const char* what);

 private:
  std::shared_ptr<Buffer> slab_;
  int64_t used_ = 0;
};

}  // namespace lowbit
