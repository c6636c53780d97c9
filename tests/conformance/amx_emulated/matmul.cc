// The AMX kernels on tiles in memory, so that machines with AVX-512 and no AMX can prove them.

#include "kernels/cpu/avx512/simd.h"
// The vocabulary comes first: the lists below are templates over it.
#include "kernels/cpu/tile_matmul.h"
#include "tests/conformance/amx_emulated/table.h"
#include "tests/conformance/amx_emulated/tiles.h"

namespace lowbit {

constinit const KernelTable kAmxEmulatedTable = {"amx_emulated", kTileKernels<Simd, EmulatedTiles>,
                                                 kTileKernelCount<Simd, EmulatedTiles>, nullptr};

}  // namespace lowbit
