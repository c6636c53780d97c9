#pragma once
// Times of a launch in a CUDA graph: median of samples.
#include <algorithm>
#include <functional>
#include <vector>

#include "tests/conformance/cuda/gemm/gemm_case.h"

namespace lowbit::cuda {

inline constexpr size_t kCold = size_t(256) << 20;  // the L2 has 60 MiB
struct Time {
  double median, best, worst;  // microseconds of a launch
};

/// `launch(i)` enqueues one call on operands i of `copies`.
inline Time time_graph(cudaStream_t stream, int copies, const std::function<void(int)>& launch) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  const int rounds = std::max(1, (20 + copies - 1) / copies);
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < rounds * copies; ++i) launch(i % copies);
  must(cudaStreamEndCapture(stream, &graph), "end of capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t a, b;
  cudaEventCreate(&a), cudaEventCreate(&b);
  auto sample = [&](int replays) {
    cudaEventRecord(a, stream);
    for (int i = 0; i < replays; ++i) cudaGraphLaunch(exec, stream);
    cudaEventRecord(b, stream);
    must(cudaEventSynchronize(b), "replay");
    float ms = 0;
    cudaEventElapsedTime(&ms, a, b);
    return 1e3 * ms / (double(replays) * rounds * copies);
  };
  sample(1);
  const double once = sample(1) * rounds * copies;
  const int replays = std::max(1, int(2000 / once));
  std::vector<double> all;
  for (int i = 0; i < 9; ++i) all.push_back(sample(replays));
  std::sort(all.begin(), all.end());
  cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
  cudaEventDestroy(a), cudaEventDestroy(b);
  return {all[4], all[0], all[8]};
}

}  // namespace lowbit::cuda
