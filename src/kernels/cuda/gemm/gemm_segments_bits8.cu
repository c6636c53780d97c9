// Instances of the kernels for scales of x per segment, 8 stored bits.
#include "kernels/cuda/gemm/segments_list.cuh"

namespace lowbit::cuda {
const SegmentKernel kSegmentsBits8[kSegmentInstances] = LOWBIT_SEGMENT_KERNELS(8);
}  // namespace lowbit::cuda
