// Rows that are normed, and rows with one scale: some threads keep a row in their registers from what stands before the
// norm to the codes. Where they are more than a warp, the row goes through shared memory for its sum of squares.

#include "kernels/cuda/block/row_codes.cuh"

#include <algorithm>

#include "kernels/cuda/block/flat_codes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row_norm.cuh"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kRowQuads = 5;           // of a thread, at most
constexpr int kMostRowThreads = 1024;  // of a row
constexpr int kRowsOfABlock = 4;       // where a warp takes a row
constexpr int kRowWarps = kMostRowThreads / 32;
constexpr int64_t kExactColumns = 128;  // of a warp

/// Threads that take a row of k columns, and the quads of each; no threads: it is too long.
struct RowShape {
  int threads, quads;
};
/// Few rows leave most multiprocessors idle: then as many threads as there are quads take one.
RowShape row_shape(int64_t k, bool few) {
  if (few)
    for (const int threads : {256, 512, kMostRowThreads})
      if (k <= int64_t{4} * threads) return {threads, 1};
  for (const int threads : {32, 128, 256, 512})
    if (k <= int64_t{4} * kRowQuads * threads) return {threads, kRowQuads};
  return {0, 0};
}

/// The norm's factor of a warp's row.
template <int kQuads>
__device__ __forceinline__ float factor_of(const Quad (&v)[kQuads], int k, float eps) {
  NormSums sums;
#pragma unroll
  for (const Quad& q : v) sums.add({q.v[0], q.v[1], q.v[2], q.v[3]});
  return sums.inverse_rms(k, eps);
}

template <bool kWarp>
__device__ __forceinline__ uint32_t largest_of_row(uint32_t most, uint32_t* of_warps, int threads) {
  most = largest_of_neighbours<32>(most);
  if constexpr (kWarp) return most;
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
  __syncthreads();
  for (int i = 0; i < threads / 32; ++i) most = max(most, of_warps[i]);
  return most;
}

/// `threads` of a block take a row; kWarp: 32, and a block has kRowsOfABlock rows.
template <RowStart kStart, bool kWarp, int kQuads, CodeKind kKind>
__global__ void __launch_bounds__(kQuads == 1 ? kMostRowThreads : 512)
    row_codes_all(const __grid_constant__ RowCodes call, int threads) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  let_successor_start();
  const int within = kWarp ? static_cast<int>(threadIdx.x) / 32 : 0, k = static_cast<int>(call.k);
  const int thread = kWarp ? static_cast<int>(threadIdx.x) % 32 : static_cast<int>(threadIdx.x);
  const int64_t at = int64_t{blockIdx.x} * (kWarp ? kRowsOfABlock : 1) + within;
  if (at >= call.m) return;                           // whole warps, which nobody waits for
  auto* const row = reinterpret_cast<float*>(bytes);  // of a block that has one
  auto* const of_warps = reinterpret_cast<uint32_t*>(row + k);
  Quad norm[kQuads], v[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int column = 4 * (i * threads + thread);
    norm[i] = {};
    if (call.norm != nullptr && column < k) norm[i] = load_quad(call.norm + column);
  }
  wait_for_predecessor();
  float* const x = call.x + at * k;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int column = 4 * (i * threads + thread);
    v[i] = {};
    if (column >= k) continue;
    v[i] = load_quad(x + column);
    if constexpr (kStart != RowStart::kX) v[i] = start_quad<kStart>(v[i], load_quad(call.other + at * k + column));
    if constexpr (kStart == RowStart::kSum) store_quad(x + column, v[i]);
    if (!kWarp && call.norm != nullptr) store_quad(row + column, v[i]);
  }
  constexpr bool kE4m3 = kKind == CodeKind::kE4m3;
  constexpr int kGroup = kCodeGroup<kKind>;
  const bool whole = kKind == CodeKind::kInt8 && call.group == 0;
  float by = 1.0f;  // the norm's factor
  if (call.norm != nullptr) {
    by = kWarp ? factor_of(v, k, call.eps)
               : block_inverse_rms(row, k, call.eps, threads, reinterpret_cast<float*>(of_warps + kRowWarps));
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i].v[j] = __fmul_rn(whole ? v[i].v[j] : __fmul_rn(v[i].v[j], by), norm[i].v[j]);
  }
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kQuads; ++i)
    if (whole && 4 * (i * threads + thread) < k) most = max(most, largest_of_quad(v[i]));
  Quantizer q{};
  if (whole) q = quantizer_of(largest_of_row<kWarp>(most, of_warps, threads));
  const int64_t row_step = kE4m3 ? 1 : (k + kGroup - 1) / kGroup, group_step = kE4m3 ? call.ldscales : 1;
  const int ldq = static_cast<int>(call.ldq);
  auto* const codes = reinterpret_cast<uint32_t*>(call.codes + at * call.ldq);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int column = 4 * (i * threads + thread);
    GroupCodes of{0, 0};
    if (whole)
      of.word = codes_of_quad(v[i], q.inverse);
    else
      of = group_codes<kKind>(v[i], column < k ? largest_of_quad(v[i]) : 0);
    if (column >= ldq) continue;
    codes[column / 4] = column < k ? of.word : 0;
    if (!whole && column % kGroup == 0 && column < k)
      call.scales[at * row_step + column / kGroup * group_step] = of.scale;
  }
  if (whole && thread == 0) call.scales[at] = call.norm != nullptr ? __fmul_rn(q.scale, by) : q.scale;
  for (int column = 4 * (kQuads * threads + thread); column < ldq; column += 4 * threads) codes[column / 4] = 0;
}

template <RowStart kStart, CodeKind kKind>
cudaError_t start_rows(const RowCodes& call, const Device& device) {
  const auto [threads, quads] = row_shape(call.k, 2 * call.m <= device.processors);
  const bool warp = threads == 32;
  const int64_t rows = warp ? kRowsOfABlock : 1, shared = warp ? 0 : 4 * (call.k + kRowWarps + kNormSums / 32);
  auto* const kernel = warp         ? &row_codes_all<kStart, true, kRowQuads, kKind>
                       : quads == 1 ? &row_codes_all<kStart, false, 1, kKind>
                                    : &row_codes_all<kStart, false, kRowQuads, kKind>;
  auto e = allow_shared(reinterpret_cast<const void*>(kernel), device);
  if (e != cudaSuccess) return e;
  return launch(kernel, dim3(static_cast<unsigned>((call.m + rows - 1) / rows)),
                dim3(static_cast<unsigned>(threads * rows)), static_cast<size_t>(shared),
                static_cast<cudaStream_t>(call.stream), device.bulk_copies, call, threads);
}

template <CodeKind kKind>
cudaError_t start_rows_of(const RowCodes& call, const Device& device) {
  switch (call.start) {
    case RowStart::kX:
      return start_rows<RowStart::kX, kKind>(call, device);
    case RowStart::kSum:
      return start_rows<RowStart::kSum, kKind>(call, device);
    case RowStart::kSilu:
      return start_rows<RowStart::kSilu, kKind>(call, device);
    case RowStart::kSquaredRelu:
      return start_rows<RowStart::kSquaredRelu, kKind>(call, device);
  }
  return cudaErrorInvalidValue;
}

int group_of(const RowCodes& call) { return call.e4m3 ? kCodeGroup<CodeKind::kE4m3> : kCodeGroup<CodeKind::kInt8>; }

bool is_flat(const RowCodes& call) {
  const int64_t whole = call.exact_scales ? kExactColumns : call.group;
  return call.norm == nullptr && call.group == group_of(call) && call.k % whole == 0 && call.ldq == call.k;
}

}  // namespace

bool takes_row_codes(const RowCodes& call) {
  if (call.k <= 0 || call.k % 4 != 0 || call.ldq % 4 != 0) return false;
  if (call.group != group_of(call) && (call.e4m3 || call.exact_scales || call.group != 0)) return false;
  return is_flat(call) || row_shape(call.k, false).threads > 0;
}

Status row_codes(const RowCodes& call) {
  if (call.m == 0) return {};
  Device device{};
  auto e = current_device(&device);
  if (e == cudaSuccess && is_flat(call))
    e = launch_flat_codes(call, device.bulk_copies);
  else if (e == cudaSuccess)
    e = kind_of(call) == CodeKind::kE4m3    ? start_rows_of<CodeKind::kE4m3>(call, device)
        : kind_of(call) == CodeKind::kExact ? start_rows_of<CodeKind::kExact>(call, device)
                                            : start_rows_of<CodeKind::kInt8>(call, device);
  return check_cuda(e, "activations");
}

}  // namespace lowbit::cuda
