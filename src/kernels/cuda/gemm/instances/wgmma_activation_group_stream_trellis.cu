// Instances of the stream of weights for scales of x per activation group, codes on a trellis.
#include "kernels/cuda/gemm/instances/activation_group_stream_list.cuh"

namespace lowbit::cuda {
const ActivationGroupStreamKernel kTrellisStreams[kStreamInstances] = {LOWBIT_STREAMS(kTrellis)};
}  // namespace lowbit::cuda
