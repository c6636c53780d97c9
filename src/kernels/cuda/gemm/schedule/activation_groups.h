#pragma once
// The launcher's view of the kernels for int8 x with a scale per group of 32 columns (an activation group), where one
// or more activation groups share a scale of the weights (gemm_activation_groups.cuh,
// gemm_activation_groups_split.cuh, gemm_activation_groups_skinny.cuh).

#include <cstdint>
#include <span>

#include "base/isa.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/schedule/device_args.h"

namespace lowbit::cuda {

inline constexpr int kActivationGroupColumns = 32, kActivationGroupInstances = 26, kActivationGroupTableInstances = 6,
                     kActivationGroupWholeInstances = 2;  // of 2 and 4 bits
inline constexpr int kActivationGroupSkinnyTokens = 8, kActivationGroupSkinnyThreads = 256,
                     kActivationGroupSkinnyBatches = 4;  // batches of a warp at a time

/// GemmArgs whose groups are activation groups.
struct ActivationGroupArgs : GemmArgs {
  int per_scale;  // activation groups that share a scale of the weights, and so many of these
  int weight_groups;
  int whole_groups;  // few tokens: warps have whole groups of the weights
  int whole_sums;    // GemmProblem
};

/// Which kernel, and its tile: rows of weights x tokens.
enum class ActivationGroupTile : uint8_t {
  kNone,
  kSkinny,
  kSplit32x16,
  kSplit64x16,
  kSplit32x32,
  kSplit64x32,
  kStream16x16,  // sm_90: rows of weights that stay in shared memory until they are read, can_stream()
  kStream32x16,
  kStream16x32,
  kStream32x32,
  k64x32,
  k128x64,
  kWgmma128x64,  // from here on: sm_90a; x with rows at multiples of 16 bytes, no offsets
  kWgmma128x128,
  kWhole128x64,  // those, and exact_x_scales, four activation groups to a scale
  kWhole128x128,
};
inline constexpr ActivationGroupTile kLastActivationGroupTile = ActivationGroupTile::kWhole128x128;
inline constexpr const char* kActivationGroupTileNames[] = {
    "",
    "segments_few8",
    "segments_32x16",
    "segments_64x16",
    "segments_32x32",
    "segments_64x32",
    "segments_16x16_stream",
    "segments_32x16_stream",
    "segments_16x32_stream",
    "segments_32x32_stream",
    "segments_64x32_deep",
    "segments_128x64_deep",
    "segments_128x64_wgmma",
    "segments_128x128_wgmma",
    "segments_128x64_whole",
    "segments_128x128_whole",
};

constexpr bool is_stream(ActivationGroupTile tile) {
  return tile >= ActivationGroupTile::kStream16x16 && tile <= ActivationGroupTile::kStream32x32;
}
/// Whether the kernels of a stream read such x and weights, for up to `tokens` of x.
bool can_stream(const GemmProblem& problem, int tokens);

struct ActivationGroupKernel {
  ActivationGroupTile tile;
  // activation groups that share a scale of the weights; 0: any number. Up to 8 tokens: 1 where warps have whole groups
  int per_scale;
  int rows, tokens, threads, shared_bytes;  // 0: the skinny kernel
  const void* function;
};

extern const ActivationGroupKernel kActivationGroupsBits2[], kActivationGroupsBits4[], kActivationGroupsBits8[],
    kActivationGroupsTable[], kActivationGroupsTrellis[];

/// Null where there is none for so many stored bits. `args`: per_scale and whole_groups are set.
const ActivationGroupKernel* find_activation_group_kernel(int bits, ActivationGroupTile tile,
                                                          const ActivationGroupArgs& args);

/// Whether kWgmma128x64 and kWgmma128x128 run on code for `arch`.
bool has_wgmma_activation_groups(int arch);

/// Cuts K for the skinny kernel; the threads of its blocks.
void cut_activation_groups_skinny(ActivationGroupArgs& args);
int activation_group_skinny_threads(const ActivationGroupArgs& args);

/// The kernel for a problem whose groups are activation groups, `per_scale` of which share a scale of the weights.
ActivationGroupTile choose_activation_groups(const GemmProblem& problem, int64_t per_scale, int arch, int processors,
                                             int device_shared);

/// gemm() with scales of x per activation group: the groups of problem.w are activation groups of 32 columns. Its
/// x_sums are the sums over a group of the weights of sums times scales of x, [m, groups of the weights].
GemmStatus gemm_activation_groups_as(const GemmProblem& problem, int64_t per_scale, ActivationGroupTile tile,
                                     CUstream_st* stream);

/// Products of the same x by a tile of a stream, in one launch: what gemm_activation_groups_as() makes of each.
GemmStatus gemm_activation_groups_stream(std::span<const GemmProblem> parts, int64_t per_scale,
                                         ActivationGroupTile tile, CUstream_st* stream);

/// Offsets in the shared memory of gemm_activation_groups_skinny(): scales [groups][16], results [slots][m][16].
struct ActivationGroupSkinnyOffsets {
  int slots, results, bytes;
  explicit LOWBIT_HD ActivationGroupSkinnyOffsets(const ActivationGroupArgs& p) {
    const int x_groups = p.depth * p.warp_batches * 2;
    slots = p.whole_groups ? (x_groups + p.per_scale - 1) / p.per_scale : x_groups;
    results = p.weight_groups * 16 * 4;
    bytes = results + slots * (p.m < kActivationGroupSkinnyTokens ? p.m : kActivationGroupSkinnyTokens) * 16 * 4;
  }
};

}  // namespace lowbit::cuda
