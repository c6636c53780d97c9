#pragma once
// Which group of rows a tile belongs to, found on the device: nobody else knows where groups end.

#include "kernels/fp8_groups.h"

namespace lowbit::cuda::fp8 {

/// A group's rows, and which of its tiles it is. Without rows: there is no such tile.
struct TileOfGroup {
  int64_t first = 0, last = 0;
  int group = 0, tile = 0;
  __device__ __forceinline__ bool exists() const { return first < last; }
};

/// Tile `tile` of all groups, of which each has `across` for every Rows of its rows. All lanes of a warp.
template <int Rows>
__device__ __forceinline__ TileOfGroup tile_of_groups(const Fp8Groups& groups, int64_t m, int64_t tile, int across) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t base = 0; base < groups.count; base += 32) {
    Fp8GroupRange own;
    if (base + lane < groups.count) own = fp8_group_range(groups, base + lane, m);
    const int64_t rows = max(own.last - own.first, int64_t{0});
    const int tiles = static_cast<int>((rows + Rows - 1) / Rows) * across;
    int behind = tiles;  // tiles up to the lane's group and its own
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, behind, d);
      if (lane >= d) behind += other;
    }
    const uint32_t has = __ballot_sync(0xffffffffu, tile < behind);
    if (has != 0) {
      const int at = __ffs(static_cast<int>(has)) - 1;
      const int before = __shfl_sync(0xffffffffu, behind - tiles, at);
      return {__shfl_sync(0xffffffffu, own.first, at), __shfl_sync(0xffffffffu, own.last, at),
              static_cast<int>(base) + at, static_cast<int>(tile) - before};
    }
    tile -= __shfl_sync(0xffffffffu, behind, 31);
  }
  return {};
}

/// The most tiles of `Rows` rows that groups can have; a group may begin within one.
inline int64_t most_group_tiles(const Fp8Groups& groups, int64_t m, int64_t rows) {
  if (groups.rows != nullptr) return groups.count * ((groups.rows_of_group + rows - 1) / rows);
  return (m + rows - 1) / rows + groups.count;
}

}  // namespace lowbit::cuda::fp8
