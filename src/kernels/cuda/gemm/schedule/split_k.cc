#include "kernels/cuda/gemm/schedule/split_k.h"

#include <algorithm>

#include "kernels/cuda/gemm/weight_order/stored_bits.h"

namespace lowbit::cuda {
namespace {

constexpr int64_t kShared = 226 << 10;  // of a multiprocessor of sm_90, for its blocks
constexpr int kMaxSplit = 8;            // portable cluster size

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

bool fits_sums(SplitKSums sums, int64_t groups, int64_t group, int64_t block_k) {
  if (sums == SplitKSums::kHeld) return groups > 1 && group == block_k;
  if (sums == SplitKSums::kAdded) return groups == 1;
  return groups == 1 || group % block_k == 0;
}

/// 16-bit x: a part of K for each warp; behind the weights the parts of the cluster's other blocks.
SplitKCut cut_split_k_half(int64_t blocks, int64_t per, int64_t pack_bytes, int split) {
  constexpr int64_t kQuadBytes = 512, kQuads = 8;  // of a warp's sums
  const int64_t each = ceil_div(blocks, split);
  const int64_t depth_blocks = ceil_div(each, kSplitKWarps);
  if (each * (split - 1) >= blocks) return {};  // an empty block
  const int64_t weights_at = int64_t{kSplitKWarps} * kSplitKXStages * kSplitKTokens * 128;
  const int64_t parts_at = weights_at + kSplitKWarps * depth_blocks * pack_bytes;
  const int64_t barriers_at = parts_at + (split - 1) * (kQuads / split) * kQuadBytes;
  const int64_t bytes = barriers_at + 8 * (1 + kSplitKWarps * depth_blocks);
  if (bytes > kShared / 2) return {};
  return {int(each), int(depth_blocks), int(per), int(weights_at), 0, int(parts_at), int(barriers_at), int(bytes)};
}

}  // namespace

SplitKCut cut_split_k(const WgmmaKernel& kernel, const GemmProblem& p, int split) {
  const GemmActivation a = p.w.activation;
  const auto sums = SplitKSums(kernel.scale_at);
  const bool int8 = a == GemmActivation::kInt8;
  const int64_t block_k = int8 ? 128 : 64, groups = group_count(p.w);
  if (a == GemmActivation::kBit || p.m < 1 || p.m > kSplitKTokens || p.w.k < 1 || p.w.k % block_k != 0) return {};
  if (p.w.offsets != nullptr || p.x_scale_group_stride != 0) return {};
  if (reinterpret_cast<uintptr_t>(p.x) % 16 != 0 || p.ldx * (int8 ? 1 : 2) % 16 != 0) return {};
  if (!fits_sums(sums, groups, p.w.group, block_k)) return {};
  const int64_t blocks = p.w.k / block_k, per = groups > 1 ? p.w.group / block_k : 1;
  // One block alone has nobody to hand its sums to.
  if (split < 2 || split > kMaxSplit || (split & (split - 1)) != 0) return {};
  const int64_t pack_bytes = 64 * block_k * stored_width(stored_bits(p.w.format, a).bits) / 8;
  if (sums == SplitKSums::kScaled) return cut_split_k_half(blocks, per, pack_bytes, split);
  const int64_t each = round_up(ceil_div(blocks, split), per);
  if (each * (split - 1) >= blocks) return {};  // an empty block
  const int packs = kernel.tile_packs, depth = kernel.threads / 128 / packs;
  const int64_t step = per % copy_blocks(sums) == 0 ? per : copy_blocks(sums) * per;  // whole groups and whole copies
  const int64_t depth_blocks = round_up(ceil_div(each, depth), step), slots = depth_blocks * depth;
  if (sums == SplitKSums::kHeld && depth_blocks > kSplitKHeld) return {};
  if (slots / copy_blocks(sums) > kSplitKBarriers) return {};

  const int64_t weights_at = slots * kSplitKTokens * 128, scales_at = weights_at + slots * packs * pack_bytes;
  const int64_t parts_at = scales_at + (groups > 1 ? slots / per * packs * 256 : 0);
  const int64_t share = std::max(1, kernel.pairs / split);
  const int64_t parts = sums == SplitKSums::kHeld ? 128 * kSplitKTokens * 4 : split * depth * share * packs * 1024;
  const int64_t bytes = parts_at + parts + 8 * (kSplitKBarriers + 1);
  if (bytes > kShared / kernel.blocks_per_processor) return {};
  return {int(each),     int(depth_blocks),     int(per),  int(weights_at), int(scales_at),
          int(parts_at), int(parts_at + parts), int(bytes)};
}

}  // namespace lowbit::cuda
