#include "kernels/cpu/avx512/simd.h"
// The vocabulary comes first: the loops below are templates over it.
#include "kernels/cpu/gram.h"

namespace lowbit {

constinit const GramKernel kAvx512Gram = &GramTiles<Simd, 8>::add_products;

}  // namespace lowbit
