#include "kernels/cpu/avx2/vectors.h"
// The vocabulary comes first: the loops below are templates over it.
#include "kernels/cpu/gram.h"

namespace lowbit {

constinit const GramKernel kAvx2Gram = &GramTiles<Vectors256, 4>::add_products;

}  // namespace lowbit
