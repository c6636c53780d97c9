// Instances of the kernels for scales of x per activation group, codes on a trellis: those for any number of rows and
// groups, beside the streams.
#include "kernels/cuda/gemm/instances/activation_groups_list.cuh"

namespace lowbit::cuda {
const ActivationGroupKernel kActivationGroupsTrellis[kActivationGroupTableInstances] = {
    LOWBIT_ACTIVATION_GROUP_MANY(kTrellis, 0), activation_group_skinny<kTrellis, true>(),
    activation_group_skinny<kTrellis, false>()};
}  // namespace lowbit::cuda
