// Instances of the kernels for scales of x per activation group, 8 stored bits.
#include "kernels/cuda/gemm/instances/activation_groups_list.cuh"

namespace lowbit::cuda {
const ActivationGroupKernel kActivationGroupsBits8[kActivationGroupInstances] = {LOWBIT_ACTIVATION_GROUP_KERNELS(8)};
}  // namespace lowbit::cuda
