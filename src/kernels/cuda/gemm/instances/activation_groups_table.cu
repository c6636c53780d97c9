// Instances of the kernels for scales of x per activation group, indices of a table: those for any number of rows and
// groups, beside the streams.
#include "kernels/cuda/gemm/instances/activation_groups_list.cuh"

namespace lowbit::cuda {
const ActivationGroupKernel kActivationGroupsTable[kActivationGroupTableInstances] = {
    LOWBIT_ACTIVATION_GROUP_MANY(kTable, 0), activation_group_skinny<kTable, true>(),
    activation_group_skinny<kTable, false>()};
}  // namespace lowbit::cuda
