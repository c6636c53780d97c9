// The parts of log-probabilities, by docs/numerics.md#log-probabilities: a thread block has kSumBlock tokens of a row.
// The first launch ranks them, its last block ranks the best of all blocks. The second one adds exponentials, whose
// sums of blocks its last block adds in order.

#include "kernels/cuda/arrivals.cuh"
#include "kernels/cuda/block/sample.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda_logprob_api.h"
#include "kernels/exp_f64.h"

namespace lowbit::cuda {
namespace {

using sample::Key;
constexpr int kRankThreads = kSumBlock, kReportThreads = 64;
constexpr int kRanked = static_cast<int>(kMostLikely);
static_assert(kSumBlock == sample::kThreads);

/// Memory in which a row's thread blocks leave something for the last one.
struct LogprobScratch {
  uint32_t* arrived;  // [2]: of both launches, zeros before and after
  Key* ranked;        // [blocks, kRanked]
  double* sums;       // [blocks]
};
constexpr int64_t logprob_blocks(int64_t vocab) { return (vocab + kSumBlock - 1) / kSumBlock; }
constexpr int64_t logprob_row_bytes(int64_t vocab) {
  return 16 + logprob_blocks(vocab) * static_cast<int64_t>(kRanked * sizeof(Key) + sizeof(double));
}
__device__ __forceinline__ LogprobScratch scratch_of(const Logprobs& call, int row) {
  uint8_t* const at = call.scratch + row * logprob_row_bytes(call.vocab);
  Key* const ranked = reinterpret_cast<Key*>(at + 16);
  return {reinterpret_cast<uint32_t*>(at), ranked,
          reinterpret_cast<double*>(ranked + logprob_blocks(call.vocab) * kRanked)};
}

/// NaN is behind all numbers, but before what is no token.
__device__ __forceinline__ Key rank_of(float logit, int id) {
  const Key key = sample::key_of(logit, static_cast<uint32_t>(id));
  return logit == logit ? key : key & 0xffffffffu;
}

__global__ void __launch_bounds__(kRankThreads) rank_logits(const Logprobs call, uint32_t blocks) {
  __shared__ Key keys[kSumBlock];
  __shared__ uint32_t is_last;
  let_successor_start();
  wait_for_predecessor();
  const int row = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  if (call.wanted[row] < 0) return;
  const LogprobScratch scratch = scratch_of(call, row);
  const int id = static_cast<int>(blockIdx.x) * kSumBlock + thread;
  keys[thread] = id < call.vocab ? rank_of(call.logits[row * call.vocab + id], id) : 0;
  __syncthreads();
  sample::sort_keys(keys, kSumBlock);
  if (thread < kRanked) scratch.ranked[blockIdx.x * kRanked + thread] = keys[thread];
  __syncthreads();
  if (thread == 0) is_last = arrives_last(&scratch.arrived[0], blocks) ? 1u : 0u;
  __syncthreads();
  if (is_last == 0) return;
  // The best so far stay in front, behind them come more.
  const int all = static_cast<int>(blocks) * kRanked;
  if (thread < kRanked) keys[thread] = 0;
  for (int done = 0; done < all; done += kSumBlock - kRanked) {
    __syncthreads();
    const int at = done + thread - kRanked;
    if (thread >= kRanked) keys[thread] = at < all ? load_from_others(&scratch.ranked[at]) : 0;
    __syncthreads();
    sample::sort_keys(keys, kSumBlock);
  }
  RowLogprobs& to = call.to[row];
  if (thread == 0) to.largest = call.logits[row * call.vocab + sample::id_of(keys[0])];
  if (thread < call.wanted[row] && thread < call.vocab) {
    const auto token = static_cast<int32_t>(sample::id_of(keys[thread]));
    to.top[thread] = {token, call.logits[row * call.vocab + token]};
  }
}

__global__ void __launch_bounds__(kRankThreads) sum_exponentials(const Logprobs call, uint32_t blocks) {
  __shared__ double sums[kSumBlock];
  __shared__ uint32_t is_last;
  let_successor_start();
  wait_for_predecessor();
  const int row = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  if (call.wanted[row] < 0) return;
  const LogprobScratch scratch = scratch_of(call, row);
  const int id = static_cast<int>(blockIdx.x) * kSumBlock + thread;
  const float largest = call.to[row].largest;
  sums[thread] = id < call.vocab ? exp_f64(__fsub_rn(call.logits[row * call.vocab + id], largest)) : 0.0;
  for (int width = kSumBlock / 2; width > 0; width /= 2) {
    __syncthreads();
    if (thread < width) sums[thread] += sums[thread + width];
  }
  if (thread == 0) {
    scratch.sums[blockIdx.x] = sums[0];
    is_last = arrives_last(&scratch.arrived[1], blocks) ? 1u : 0u;
  }
  __syncthreads();
  if (is_last == 0) return;
  double sum = 0;
  for (uint32_t done = 0; done < blocks; done += kSumBlock) {
    if (done + thread < blocks) sums[thread] = load_from_others(&scratch.sums[done + thread]);
    __syncthreads();
    const int count = static_cast<int>(min(blocks - done, static_cast<uint32_t>(kSumBlock)));
    for (int i = 0; thread == 0 && i < count; ++i) sum += sums[i];
    __syncthreads();
  }
  if (thread == 0) call.to[row].sum = sum;
}

__global__ void __launch_bounds__(kReportThreads) report_rows(const Logprobs call, const ChosenToken* chosen) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t row = int64_t{blockIdx.x} * kReportThreads + threadIdx.x;
  if (row >= call.rows || call.wanted[row] < 0) return;
  const int token = chosen[row].token;
  call.to[row].chosen = token < 0 ? 0.0f : call.logits[row * call.vocab + token];
}

}  // namespace

int64_t logprob_scratch_bytes(int64_t rows, int64_t vocab) { return rows * logprob_row_bytes(vocab); }

Status sum_logprobs(const Logprobs& call) {
  if (call.rows == 0) return {};
  Device device{};
  auto e = current_device(&device);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const dim3 grid(static_cast<unsigned>(logprob_blocks(call.vocab)), static_cast<unsigned>(call.rows));
  for (const auto& kernel : {&rank_logits, &sum_exponentials})
    if (e == cudaSuccess) e = launch(*kernel, grid, dim3(kRankThreads), 0, stream, device.bulk_copies, call, grid.x);
  return check_cuda(e, "log-probabilities");
}

Status report_chosen(const Logprobs& call, const ChosenToken* chosen) {
  if (call.rows == 0) return {};
  Device device{};
  auto e = current_device(&device);
  const dim3 grid(static_cast<unsigned>((call.rows + kReportThreads - 1) / kReportThreads));
  if (e == cudaSuccess)
    e = launch(report_rows, grid, dim3(kReportThreads), 0, static_cast<cudaStream_t>(call.stream), device.bulk_copies,
               call, chosen);
  return check_cuda(e, "log-probabilities");
}

}  // namespace lowbit::cuda
