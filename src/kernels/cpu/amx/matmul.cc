#include "kernels/cpu/avx512/simd.h"
// The vocabulary comes first: the lists below are templates over it.
#include "kernels/cpu/tile_matmul.h"
#include "kernels/tables.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Two cores of what has AMX read most with codes on their way to the second level far ahead, and to the first level
/// near.
struct TileSimd : Simd {
  static constexpr int64_t kAhead = 16384, kNear = 1024;
  LOWBIT_INLINE void prefetch_ahead(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(p) + 64, _MM_HINT_T1);
    prefetch(p - kAhead + kNear);
  }
};

}  // namespace LOWBIT_ISA

constinit const KernelTable kAmxTable = {"amx", kTileKernels<TileSimd, HardwareTiles>,
                                         kTileKernelCount<TileSimd, HardwareTiles>, nullptr};

}  // namespace lowbit
