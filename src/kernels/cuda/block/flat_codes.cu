// Codes of rows that are not normed, a scale per 32 columns, or 128 of E4M3: all rows are one long one, and every
// thread takes some quads of it.

#include "kernels/cuda/block/flat_codes.h"

#include "kernels/cuda/block/row_codes.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kFlatThreads = 256, kFlatQuads = 4;  // of a thread: so many loads are under way
constexpr int kFewBlocks = 256;                    // of threads with one quad: all of them run at once

template <RowStart kStart, int kQuads, CodeKind kKind>
__global__ void __launch_bounds__(kFlatThreads) flat_codes_all(const __grid_constant__ RowCodes call, int64_t quads) {
  constexpr int kThreadsOfAGroup = kCodeGroup<kKind> / 4;
  let_successor_start();
  wait_for_predecessor();
  const int64_t first = int64_t{blockIdx.x} * (kFlatThreads * kQuads) + threadIdx.x;
  Quad x[kQuads], other[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int64_t at = first + i * kFlatThreads;
    x[i] = other[i] = {};
    if (at >= quads) continue;
    x[i] = load_quad(call.x + 4 * at);
    if constexpr (kStart != RowStart::kX) other[i] = load_quad(call.other + 4 * at);
  }
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int64_t at = first + i * kFlatThreads;
    const Quad v = start_quad<kStart>(x[i], other[i]);
    const GroupCodes of = group_codes<kKind>(v, largest_of_quad(v));
    if (at >= quads) continue;
    if constexpr (kStart == RowStart::kSum) store_quad(call.x + 4 * at, v);
    reinterpret_cast<uint32_t*>(call.codes)[at] = of.word;
    if (at % kThreadsOfAGroup != 0) continue;
    if constexpr (kKind == CodeKind::kE4m3) {
      const auto group = static_cast<uint32_t>(at / kThreadsOfAGroup),
                 groups = static_cast<uint32_t>(call.k / kFp8Block);
      call.scales[group % groups * call.ldscales + group / groups] = of.scale;
    } else {
      call.scales[at / kThreadsOfAGroup] = of.scale;
    }
  }
}

template <RowStart kStart, int kQuads>
cudaError_t start_flat(const RowCodes& call, bool overlap) {
  const int64_t quads = call.m * call.k / 4, of_block = kFlatThreads * kQuads;
  auto* const kernel = kind_of(call) == CodeKind::kE4m3    ? flat_codes_all<kStart, kQuads, CodeKind::kE4m3>
                       : kind_of(call) == CodeKind::kExact ? flat_codes_all<kStart, kQuads, CodeKind::kExact>
                                                           : flat_codes_all<kStart, kQuads, CodeKind::kInt8>;
  return launch(kernel, dim3(static_cast<unsigned>((quads + of_block - 1) / of_block)), dim3(kFlatThreads), 0,
                static_cast<cudaStream_t>(call.stream), overlap, call, quads);
}
template <RowStart kStart>
cudaError_t start_flat(const RowCodes& call, bool overlap) {
  const bool few = call.m * call.k / 4 <= int64_t{kFewBlocks} * kFlatThreads;
  return few ? start_flat<kStart, 1>(call, overlap) : start_flat<kStart, kFlatQuads>(call, overlap);
}

}  // namespace

cudaError_t launch_flat_codes(const RowCodes& call, bool overlap) {
  switch (call.start) {
    case RowStart::kX:
      return start_flat<RowStart::kX>(call, overlap);
    case RowStart::kSum:
      return start_flat<RowStart::kSum>(call, overlap);
    case RowStart::kSilu:
      return start_flat<RowStart::kSilu>(call, overlap);
    case RowStart::kSquaredRelu:
      return start_flat<RowStart::kSquaredRelu>(call, overlap);
  }
  return cudaErrorInvalidValue;
}

}  // namespace lowbit::cuda
