#pragma once
// Passes that come again, recorded once as CUDA graphs: one launch in place of hundreds.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "kernels/cuda_api.h"

namespace lowbit {

/// All that the host decided about the launches of a pass. What else they depend on lies in device memory.
using LaunchShape = std::vector<int64_t>;

class Recordings {
 public:
  /// Does what `enqueue` would enqueue on `stream`: calls it when the shape is new (kernels are loaded then, which a
  /// recording may not do), records it when it comes again, replays it from then on. Errors: those of `enqueue`, what
  /// CUDA says.
  Status run(const LaunchShape& shape, void* stream, const std::function<Status()>& enqueue);

 private:
  struct Recording {
    uint64_t used = 0;
    std::optional<cuda::Graph> graph;
  };
  static constexpr size_t kMost = 48;
  void forget_oldest();

  std::map<LaunchShape, Recording> all_;
  uint64_t runs_ = 0;
};

}  // namespace lowbit
