#include "backend/cuda/recordings.h"

#include <algorithm>

#include "base/try.h"

namespace lowbit {

Status Recordings::run(const LaunchShape& shape, void* stream, const std::function<Status()>& enqueue) {
  const auto [at, is_new] = all_.try_emplace(shape);
  Recording& recording = at->second;
  recording.used = ++runs_;
  if (is_new) {
    if (all_.size() > kMost) forget_oldest();
    return enqueue();
  }
  if (!recording.graph) {
    LOWBIT_TRY(cuda::Graph::begin(stream));
    const Status enqueued = enqueue();
    auto graph = cuda::Graph::end(stream);  // after an error, too: the stream would go on recording
    LOWBIT_TRY(enqueued);
    if (!graph && graph.error().code == ErrorCode::kOutOfMemory) return enqueue();  // it takes longer, but no memory
    if (!graph) return tl::unexpected(std::move(graph.error()));
    recording.graph.emplace(std::move(*graph));
  }
  return recording.graph->launch(stream);
}

void Recordings::forget_oldest() {
  all_.erase(std::ranges::min_element(all_, {}, [](const auto& entry) { return entry.second.used; }));
}

}  // namespace lowbit
