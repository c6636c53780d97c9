#pragma once
// Memory for many small buffers that live about as long as each other, such as a model's weights.

#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/buffer.h"

namespace lowbit {

/// Lays buffers next to each other in slabs. One by one they would cost more: of a host small pages, which take longer
/// to get than a weight takes to be laid out in them; of a GPU whole multiples of 2 MiB each. A slab lives as long as
/// any buffer in it; room that a buffer leaves is not used again before. One call at a time.
class Arena {
 public:
  /// Where slabs come from, and what is too large for one.
  using Source = Result<Buffer> (*)(int64_t bytes, const char* what);

  /// The host's large pages: zeroed, aligned to 64.
  Arena();
  /// Slabs of `slab_bytes` each; buffers of `alone` bytes or more get memory of their own. `alignment`: a power of two.
  Arena(Source source, int64_t slab_bytes, int64_t alone, int64_t alignment)
      : source_(source), slab_bytes_(slab_bytes), alone_(alone), alignment_(alignment) {}

  /// As the source has it: zeroed or not, and its errors.
  Result<Buffer> allocate(int64_t bytes, const char* what);

 private:
  struct Slab {
    std::weak_ptr<Buffer> memory;  // its buffers own it
    int64_t used = 0;
  };
  Source source_;
  int64_t slab_bytes_, alone_, alignment_;
  std::vector<Slab> slabs_;
};

}  // namespace lowbit
