// Instances of the stream of weights for scales of x per activation group.
#include "kernels/cuda/gemm/instances/activation_group_stream_list.cuh"

namespace lowbit::cuda {
const ActivationGroupStreamKernel kActivationGroupStreams[4 * kStreamInstances] = {
    LOWBIT_STREAMS(2), LOWBIT_STREAMS(4), LOWBIT_STREAMS(8), LOWBIT_STREAMS(kTable)};
}  // namespace lowbit::cuda
