// Instances of the kernels for scales of x per activation group, 2 stored bits.
#include "kernels/cuda/gemm/instances/activation_groups_list.cuh"

namespace lowbit::cuda {
const ActivationGroupKernel kActivationGroupsBits2[kActivationGroupInstances + kActivationGroupWholeInstances] = {
    LOWBIT_ACTIVATION_GROUP_KERNELS(2), LOWBIT_ACTIVATION_GROUP_WHOLE(2)};
}  // namespace lowbit::cuda
