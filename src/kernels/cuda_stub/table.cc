// Stands in for kernels/cuda where there is no CUDA toolkit: the same table, empty, so that nothing above has an #ifdef.

#include "kernels/tables.h"

namespace lowbit {

const KernelTable kCudaTable = {"cuda", nullptr, 0, nullptr};

}  // namespace lowbit
