// Chooses tokens from logits by docs/numerics.md#sampling: sums of integer weights, so that no order of them matters.
// The largest logit takes one launch. A draw takes a second one: the first finds a bound that at least top_k logits
// reach, the second lists those, and its last thread block sorts and draws. Where there is no such short list (top_k is
// 0 or large, or too many logits are equal) that block goes over all logits.

#include "kernels/cuda/arrivals.cuh"
#include "kernels/cuda/block/sample.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace sample;  // NOLINT

constexpr int kScanThreads = 256, kOfAThread = 8;
constexpr int kBins = 4096, kBinShift = 20;  // by sign, exponent and three bits of the fraction

/// The state of a row. Zeros before and after each call, but for the list.
struct RowState {
  Key largest;
  uint32_t first_nan;   // 0xffffffff - id; 0: none
  uint32_t arrived[2];  // thread blocks of both launches
  uint32_t least_bin;   // tokens of it and those above are listed
  uint32_t listed;
  uint32_t bins[kBins];
  Key list[kMostListed];
};

__device__ __forceinline__ bool takes_list(const TokenRule& rule) {
  return rule.temperature > 0.0f && rule.top_k > 0 && rule.top_k <= kMostListed;
}
__device__ __forceinline__ bool is_nan(float v) { return !(v == v); }

/// The bin that the top_k-th largest logit is in. By all threads of the last block; bins are zeros then.
__device__ __forceinline__ void find_least_bin(const TokenRule& rule, RowState& state, uint32_t* sums) {
  constexpr int kShare = kBins / kScanThreads;
  const int thread = static_cast<int>(threadIdx.x), top = kBins - 1 - thread * kShare;  // the largest come first
  uint32_t own[kShare], sum = 0;
  for (int i = 0; i < kShare; ++i) {
    own[i] = load_from_others(&state.bins[top - i]);
    state.bins[top - i] = 0;
    sum += own[i];
  }
  sums[thread] = sum;
  __syncthreads();
  uint32_t before = 0;
  for (int i = 0; i < thread; ++i) before += sums[i];
  const auto wanted = static_cast<uint32_t>(rule.top_k);
  for (int i = 0; i < kShare; before += own[i++])
    if (before < wanted && before + own[i] >= wanted) state.least_bin = static_cast<uint32_t>(top - i);
}

__global__ void __launch_bounds__(kScanThreads) scan_logits(const ChooseTokens call, uint32_t blocks) {
  __shared__ uint32_t bins[kBins];
  __shared__ Key largest;
  __shared__ uint32_t first_nan, is_last;
  let_successor_start();
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kBins; i += kScanThreads) bins[i] = 0;
  if (thread == 0) largest = 0, first_nan = 0;
  __syncthreads();
  const int row = static_cast<int>(blockIdx.y);
  const TokenRule rule = call.rules[row];  // a list of the batch: no kernel of the pass writes it
  wait_for_predecessor();
  if (rule.temperature < 0.0f) return;
  RowState& state = reinterpret_cast<RowState*>(call.scratch)[row];
  const float* const logits = call.logits + row * call.vocab;
  const int first = static_cast<int>(blockIdx.x) * kScanThreads * kOfAThread + thread;
  float own[kOfAThread];
#pragma unroll
  for (int i = 0; i < kOfAThread; ++i) {
    const int id = first + i * kScanThreads;
    own[i] = id < call.vocab ? logits[id] : 0.0f;
  }
  Key most = 0;
  uint32_t nan = 0;
  const bool counts = takes_list(rule);
#pragma unroll
  for (int i = 0; i < kOfAThread; ++i) {
    const int id = first + i * kScanThreads;
    if (id >= call.vocab) continue;
    if (is_nan(own[i])) nan = max(nan, 0xffffffffu - static_cast<uint32_t>(id));
    const Key key = key_of(own[i], static_cast<uint32_t>(id));
    most = max(most, key);
    if (counts) atomicAdd(&bins[key >> (32 + kBinShift)], 1u);
  }
  for (int w = 16; w > 0; w /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, w, 32));
  if (thread % 32 == 0) atomicMax(&largest, most);
  if (nan != 0) atomicMax(&first_nan, nan);
  __syncthreads();
  if (counts)
    for (int i = thread; i < kBins; i += kScanThreads)
      if (bins[i] != 0) atomicAdd(&state.bins[i], bins[i]);
  if (thread == 0) {
    atomicMax(&state.largest, largest);
    if (first_nan != 0) atomicMax(&state.first_nan, first_nan);
  }
  __syncthreads();
  if (thread == 0) is_last = arrives_last(&state.arrived[0], blocks) ? 1u : 0u;
  __syncthreads();
  if (is_last == 0) return;
  if (counts) find_least_bin(rule, state, bins);
  if (thread != 0 || rule.temperature > 0.0f) return;
  const Key found = load_from_others(&state.largest);
  nan = load_from_others(&state.first_nan);
  call.chosen[row] = nan != 0 ? ChosenToken{-1, static_cast<int32_t>(0xffffffffu - nan)}
                              : ChosenToken{static_cast<int32_t>(id_of(found)), -1};
  state.largest = 0;
  state.first_nan = 0;
}

__global__ void __launch_bounds__(kThreads) draw_tokens(const ChooseTokens call, uint32_t blocks) {
  __shared__ Shared shared;
  __shared__ uint32_t is_last;
  let_successor_start();
  const int row = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const TokenRule rule = call.rules[row];
  wait_for_predecessor();
  if (!(rule.temperature > 0.0f)) return;
  RowState& state = reinterpret_cast<RowState*>(call.scratch)[row];
  const float* const logits = call.logits + row * call.vocab;
  const bool lists = takes_list(rule);
  if (lists) {
    const uint32_t least = state.least_bin;
#pragma unroll
    for (int i = 0; i < kOfAThread; ++i) {
      const int id = (static_cast<int>(blockIdx.x) * kOfAThread + i) * kThreads + thread;
      if (id >= call.vocab) continue;
      const Key key = key_of(logits[id], static_cast<uint32_t>(id));
      if ((key >> (32 + kBinShift)) < least) continue;
      const uint32_t at = atomicAdd(&state.listed, 1u);
      if (at < kMostListed) state.list[at] = key;
    }
  }
  __syncthreads();
  if (thread == 0) is_last = arrives_last(&state.arrived[1], blocks) ? 1u : 0u;
  __syncthreads();
  if (is_last == 0) return;
  const uint32_t listed = load_from_others(&state.listed), nan = load_from_others(&state.first_nan);
  const Key largest = load_from_others(&state.largest);
  __syncthreads();
  if (thread == 0) {
    state.largest = 0;
    state.first_nan = state.listed = state.least_bin = 0;
    if (nan != 0) call.chosen[row] = {-1, static_cast<int32_t>(0xffffffffu - nan)};
  }
  if (nan != 0) return;
  if (lists && listed <= kMostListed) {
    shared.keys[thread] = static_cast<uint32_t>(thread) < listed ? load_from_others(&state.list[thread]) : 0;
    __syncthreads();
    choose_listed(rule, static_cast<int>(listed), shared, call.chosen + row);
  } else {
    choose_of_all(rule, logits, static_cast<int>(call.vocab), logit_of(largest), shared, call.chosen + row);
  }
}

dim3 grid_of(const ChooseTokens& call, int64_t threads) {
  const int64_t chunk = threads * kOfAThread;
  return {static_cast<unsigned>((call.vocab + chunk - 1) / chunk), static_cast<unsigned>(call.rows)};
}

}  // namespace

int64_t choose_scratch_bytes(int64_t rows) { return rows * static_cast<int64_t>(sizeof(RowState)); }

Status choose_tokens(const ChooseTokens& call) {
  if (call.rows == 0) return {};
  Device device{};
  auto e = current_device(&device);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const dim3 scan = grid_of(call, kScanThreads), draw = grid_of(call, kThreads);
  if (e == cudaSuccess) e = launch(scan_logits, scan, dim3(kScanThreads), 0, stream, device.bulk_copies, call, scan.x);
  if (e == cudaSuccess && call.draws)
    e = launch(draw_tokens, draw, dim3(kThreads), 0, stream, device.bulk_copies, call, draw.x);
  return check_cuda(e, "sampling");
}

}  // namespace lowbit::cuda
