#pragma once
// The instances of a stored width.

#include "kernels/cuda/gemm/gemm_segments.cuh"
#include "kernels/cuda/gemm/gemm_segments_few.cuh"

namespace lowbit::cuda {

template <int Bits, int PerScale, int RowWarps, int XWarps>
SegmentKernel segment_kernel() {
  return {RowWarps == 4 ? SegmentTile::k128x64 : SegmentTile::k64x32, PerScale, RowWarps, XWarps,
          reinterpret_cast<const void*>(&gemm_segments<SegmentTileOf<Bits, PerScale, RowWarps, XWarps>>)};
}
template <int Bits, bool Whole>
SegmentKernel segment_few_kernel() {
  return {SegmentTile::kFew, Whole ? 1 : 0, 0, 0, reinterpret_cast<const void*>(&gemm_segments_few<Bits, Whole>)};
}

#define LOWBIT_SEGMENT_KERNELS(BITS)                                                                       \
  {                                                                                                        \
    segment_kernel<BITS, 1, 4, 2>(), segment_kernel<BITS, 2, 4, 2>(), segment_kernel<BITS, 0, 4, 2>(),     \
        segment_kernel<BITS, 1, 2, 1>(), segment_kernel<BITS, 2, 2, 1>(), segment_kernel<BITS, 0, 2, 1>(), \
        segment_few_kernel<BITS, true>(), segment_few_kernel<BITS, false>()                                \
  }

}  // namespace lowbit::cuda
