#include "ops/time_device.h"

#include <algorithm>

#include "base/try.h"

namespace lowbit {

Result<std::vector<double>> time_device_calls(double seconds, const cuda::Stream& stream, int calls,
                                              const std::function<Status(int)>& call) {
  LOWBIT_TRY(cuda::Graph::begin(stream.handle()));
  Status enqueued;
  for (int i = 0; i < calls && enqueued; ++i) enqueued = call(i);
  auto graph = cuda::Graph::end(stream.handle());
  LOWBIT_TRY(enqueued);
  if (!graph) return tl::unexpected(std::move(graph.error()));
  LOWBIT_TRY(graph->time(stream.handle(), 2));
  std::vector<double> times;
  for (double total = 0; times.size() < 5 || (total < seconds && times.size() < 1000);) {
    LOWBIT_TRY_ASSIGN(const double once, graph->time(stream.handle(), 1));
    total += once;
    times.push_back(once / calls);
  }
  std::sort(times.begin(), times.end());
  return times;
}

}  // namespace lowbit
