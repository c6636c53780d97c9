// In front of a pass: its lists come from the host, and tokens that the pass before has chosen become those that it
// reads. One thread block, whose loads from the host's memory are on their way together. No kernel of the pass may
// start before it has ended: they read lists before they wait for their predecessors.

#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_sample_api.h"

namespace lowbit::cuda {
namespace {

constexpr int kFeedThreads = 1024;

__global__ void __launch_bounds__(kFeedThreads) feed_all(const __grid_constant__ FeedTokens call) {
  const auto thread = static_cast<int64_t>(threadIdx.x);
  const int pass = *call.pass + 1;
  const ChosenToken own = thread < call.rows ? call.chosen[thread] : ChosenToken{};
  __syncthreads();  // all have read it
  if (pass == 0) {
    if (thread == 0) *call.pass = 0;
    return;
  }
  auto* const to = reinterpret_cast<uint4*>(call.lists);
  const auto* const from = reinterpret_cast<const uint4*>(call.host_lists + pass * call.lists_apart);
#pragma unroll 2
  for (int64_t i = thread; i < call.bytes / 16; i += kFeedThreads) to[i] = from[i];
  __syncthreads();  // tokens are among them
  for (int64_t i = thread; i < call.rows; i += kFeedThreads) {
    const ChosenToken chosen = i == thread ? own : call.chosen[i];
    call.kept[(pass - 1) * call.rows_apart + i] = chosen;
    call.tokens[i] = chosen.token < 0 ? 0 : chosen.token;
  }
}

}  // namespace

Status feed_tokens(const FeedTokens& call) {
  if (call.rows == 0) return {};
  return check_cuda(
      launch(feed_all, dim3(1), dim3(kFeedThreads), 0, static_cast<cudaStream_t>(call.stream), false, call), "tokens");
}

}  // namespace lowbit::cuda
