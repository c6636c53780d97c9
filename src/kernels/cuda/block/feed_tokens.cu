// Tokens that were chosen become those that the next pass reads.

#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_sample_api.h"

namespace lowbit::cuda {
namespace {

constexpr int kFeedThreads = 64;

__global__ void feed_all(const ChosenToken* chosen, int64_t rows, int32_t* tokens) {
  const int64_t i = int64_t{blockIdx.x} * kFeedThreads + threadIdx.x;
  if (i < rows) tokens[i] = chosen[i].token < 0 ? 0 : chosen[i].token;
}

}  // namespace

Status feed_tokens(const ChosenToken* chosen, int64_t rows, int32_t* tokens, void* stream) {
  if (rows == 0) return {};
  const dim3 grid(static_cast<unsigned>((rows + kFeedThreads - 1) / kFeedThreads));
  return check_cuda(
      launch(feed_all, grid, dim3(kFeedThreads), 0, static_cast<cudaStream_t>(stream), false, chosen, rows, tokens),
      "tokens");
}

}  // namespace lowbit::cuda
