#include "kernels/cpu/avx512/simd.h"
// The vocabulary comes first: the lists below are templates over it.
#include "kernels/cpu/tile_matmul.h"
#include "kernels/tables.h"

namespace lowbit {

constinit const KernelTable kAmxTable = {"amx", kTileKernels<Simd, HardwareTiles>,
                                         kTileKernelCount<Simd, HardwareTiles>, nullptr};

}  // namespace lowbit
