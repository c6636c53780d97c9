#include "kernels/cpu/avx512/simd.h"
// The vocabulary comes first: the lists below are templates over it.
#include "kernels/cpu/tile_matmul.h"
#include "kernels/tables.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// What has AMX takes single rows from its large third-level cache fastest when codes go straight to the first level.
struct TileSimd : Simd {
  static constexpr int64_t kAhead = 8192;
  LOWBIT_INLINE void prefetch_ahead(const uint8_t* p) { prefetch(p); }
};

}  // namespace LOWBIT_ISA

constinit const KernelTable kAmxTable = {"amx", kTileKernels<TileSimd, HardwareTiles>,
                                         kTileKernelCount<TileSimd, HardwareTiles>, nullptr};

}  // namespace lowbit
