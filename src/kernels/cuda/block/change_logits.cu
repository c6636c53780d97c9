// Changes of logits before a token is chosen from them, by docs/numerics.md#sampling: a thread block has a part of
// a row's tokens, and does to them in order what the sampler does to all.

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda_change_api.h"

namespace lowbit::cuda {
namespace {

constexpr int kChangeThreads = 256, kChangePart = 8192, kRefuseThreads = 64;

__device__ __forceinline__ float never() { return __uint_as_float(0xff800000u); }

/// Tokens [begin, end) of a row.
struct ChangePart {
  float* logits;
  int begin, end;
  __device__ __forceinline__ bool has(int token) const { return token >= begin && token < end; }
};

/// The first bias of a token adds those behind it, too.
__device__ __forceinline__ void add_biases(const RowChanges& row, const ChangePart& part) {
  for (int i = static_cast<int>(threadIdx.x); i < row.biases; i += kChangeThreads) {
    const int token = row.bias[i].token;
    if (!part.has(token) || (i > 0 && row.bias[i - 1].token == token)) continue;
    float logit = part.logits[token];
    for (int j = i; j < row.biases && row.bias[j].token == token; ++j)
      logit = row.bias[j].bias == never() ? never() : __fadd_rn(logit, row.bias[j].bias);
    part.logits[token] = logit;
  }
}

/// The first of a token's entries in `recent` counts all of them.
__device__ __forceinline__ void penalize(const RowChanges& row, const int32_t* recent, int count,
                                         const ChangePart& part) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kChangeThreads) {
    const int token = recent[i];
    if (!part.has(token)) continue;
    int times = 0, first = 0;
    while (recent[first] != token) ++first;
    if (first != i) continue;
    for (int j = i; j < count; ++j) times += recent[j] == token ? 1 : 0;
    float logit = part.logits[token];
    logit = logit > 0.0f ? __fdiv_rn(logit, row.repeat) : __fmul_rn(logit, row.repeat);
    const float less = __fadd_rn(__fmul_rn(static_cast<float>(times), row.frequency), row.presence);
    part.logits[token] = __fsub_rn(logit, less);
  }
}

__device__ __forceinline__ void forbid(const RowChanges& row, const ChangePart& part) {
  for (int token = part.begin + static_cast<int>(threadIdx.x); token < part.end; token += kChangeThreads) {
    const uint32_t word = token / 32 < row.mask_words ? row.mask[token / 32] : 0u;
    if ((word >> (token % 32) & 1u) == 0) part.logits[token] = never();
  }
}

__global__ void __launch_bounds__(kChangeThreads) change_part(const ChangeLogits call) {
  __shared__ int32_t recent[kMostRecent + kMostLater];
  let_successor_start();
  wait_for_predecessor();
  const int thread = static_cast<int>(threadIdx.x), r = static_cast<int>(blockIdx.y);
  const RowChanges row = call.changes[r];
  const int begin = static_cast<int>(blockIdx.x) * kChangePart, vocab = static_cast<int>(call.vocab);
  const ChangePart part{call.logits + r * call.vocab, begin, min(begin + kChangePart, vocab)};
  for (int i = thread; i < row.recents; i += kChangeThreads) recent[i] = call.recent[row.recent + i];
  if (thread < row.laters)
    recent[row.recents + thread] = call.before[(row.first_later + thread) * call.before_stride + r].token;
  add_biases(row, part);
  __syncthreads();
  penalize(row, recent, row.recents + row.laters, part);
  __syncthreads();
  if (row.mask != nullptr) forbid(row, part);
}

__global__ void __launch_bounds__(kRefuseThreads) refuse_rows(const ChangeLogits call, ChosenToken* chosen) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t r = int64_t{blockIdx.x} * kRefuseThreads + threadIdx.x;
  if (r >= call.rows) return;
  const int token = chosen[r].token;
  if (token < 0 || (call.changes[r].biases == 0 && call.changes[r].mask == nullptr)) return;
  if (call.logits[r * call.vocab + token] == never()) chosen[r] = {-1, -1};
}

}  // namespace

Status change_logits(const ChangeLogits& call) {
  if (call.rows == 0) return {};
  Device device{};
  auto e = current_device(&device);
  const dim3 grid(static_cast<unsigned>((call.vocab + kChangePart - 1) / kChangePart),
                  static_cast<unsigned>(call.rows));
  if (e == cudaSuccess)
    e = launch(change_part, grid, dim3(kChangeThreads), 0, static_cast<cudaStream_t>(call.stream), device.bulk_copies,
               call);
  return check_cuda(e, "sampling");
}

Status refuse_forbidden(const ChangeLogits& call, ChosenToken* chosen) {
  if (call.rows == 0) return {};
  Device device{};
  auto e = current_device(&device);
  const dim3 grid(static_cast<unsigned>((call.rows + kRefuseThreads - 1) / kRefuseThreads));
  if (e == cudaSuccess)
    e = launch(refuse_rows, grid, dim3(kRefuseThreads), 0, static_cast<cudaStream_t>(call.stream), device.bulk_copies,
               call, chosen);
  return check_cuda(e, "sampling");
}

}  // namespace lowbit::cuda
