#include "kernels/cpu/vector_ops.h"

#include "kernels/cpu/avx512/lanes.h"
#include "kernels/tables.h"

namespace lowbit {

constinit const VectorOps kAvx512VectorOps = LaneOps<Lanes512>::ops();

}  // namespace lowbit
