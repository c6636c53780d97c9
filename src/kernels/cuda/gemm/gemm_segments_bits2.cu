// Instances of the kernels for scales of x per segment, 2 stored bits.
#include "kernels/cuda/gemm/segments_list.cuh"

namespace lowbit::cuda {
const SegmentKernel kSegmentsBits2[kSegmentInstances] = LOWBIT_SEGMENT_KERNELS(2);
}  // namespace lowbit::cuda
