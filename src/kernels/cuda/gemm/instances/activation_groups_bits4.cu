// Instances of the kernels for scales of x per activation group, 4 stored bits.
#include "kernels/cuda/gemm/instances/activation_groups_list.cuh"

namespace lowbit::cuda {
const ActivationGroupKernel kActivationGroupsBits4[kActivationGroupInstances + kActivationGroupWholeInstances] = {
    LOWBIT_ACTIVATION_GROUP_KERNELS(4), LOWBIT_ACTIVATION_GROUP_WHOLE(4)};
}  // namespace lowbit::cuda
