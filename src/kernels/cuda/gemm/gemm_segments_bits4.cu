// Instances of the kernels for scales of x per segment, 4 stored bits.
#include "kernels/cuda/gemm/segments_list.cuh"

namespace lowbit::cuda {
const SegmentKernel kSegmentsBits4[kSegmentInstances] = LOWBIT_SEGMENT_KERNELS(4);
}  // namespace lowbit::cuda
