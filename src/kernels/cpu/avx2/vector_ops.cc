#include "kernels/cpu/vector_ops.h"

#include "kernels/cpu/avx2/lanes.h"
#include "kernels/tables.h"

namespace lowbit {

constinit const VectorOps kAvx2VectorOps = LaneOps<Lanes256>::ops();

}  // namespace lowbit
