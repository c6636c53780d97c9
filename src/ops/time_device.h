#pragma once
// Times calls on the current GPU.

#include <functional>
#include <vector>

#include "kernels/cuda_api.h"

namespace lowbit {

/// Seconds of a call by the device's clock, ascending: `calls` of call(i), which enqueue on `stream` alone, are
/// recorded as one graph, which runs for so many seconds in all, and at least five times.
Result<std::vector<double>> time_device_calls(double seconds, const cuda::Stream& stream, int calls,
                                              const std::function<Status(int)>& call);

}  // namespace lowbit
