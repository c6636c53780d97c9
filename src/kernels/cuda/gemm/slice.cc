#include "kernels/cuda/gemm/slice.h"

#include <algorithm>

#include "kernels/cuda/gemm/stored_bits.h"

namespace lowbit::cuda {
namespace {

constexpr int64_t kShared = 226 << 10;  // of a multiprocessor of sm_90, for its blocks
constexpr int kMaxSplit = 8;            // portable cluster size

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

bool fits_sums(SliceSums sums, int64_t groups, int64_t group, int64_t unit) {
  if (sums == SliceSums::kHeld) return groups > 1 && group == unit;
  if (sums == SliceSums::kAdded) return groups == 1;
  return groups == 1 || group % unit == 0;
}

/// 16-bit x: a part of K for each warp; behind the weights the parts of the cluster's other blocks.
SliceCut cut_half_slice(int64_t blocks, int64_t per, int64_t unit_bytes, int split) {
  constexpr int64_t kQuadBytes = 512, kQuads = 8;  // of a warp's sums
  const int64_t each = ceil_div(blocks, split);
  const int64_t deep = ceil_div(each, kSliceWarps);
  if (each * (split - 1) >= blocks) return {};  // an empty block
  const int64_t weights_at = int64_t{kSliceWarps} * kSliceXPlaces * kSliceRows * 128;
  const int64_t parts_at = weights_at + kSliceWarps * deep * unit_bytes;
  const int64_t barriers_at = parts_at + (split - 1) * (kQuads / split) * kQuadBytes;
  const int64_t bytes = barriers_at + 8 * (1 + kSliceWarps * deep);
  if (bytes > kShared / 2) return {};
  return {int(each), int(deep), int(per), int(weights_at), 0, int(parts_at), int(barriers_at), int(bytes)};
}

}  // namespace

SliceCut cut_slice(const WgmmaKernel& kernel, const GemmProblem& p, int split) {
  const GemmActivation a = p.w.activation;
  const auto sums = SliceSums(kernel.fold);
  const bool int8 = a == GemmActivation::kInt8;
  const int64_t unit = int8 ? 128 : 64, groups = group_count(p.w);
  if (a == GemmActivation::kBit || p.m < 1 || p.m > kSliceRows || p.w.k < 1 || p.w.k % unit != 0) return {};
  if (p.w.offsets != nullptr || p.x_scale_group_stride != 0) return {};
  if (reinterpret_cast<uintptr_t>(p.x) % 16 != 0 || p.ldx * (int8 ? 1 : 2) % 16 != 0) return {};
  if (!fits_sums(sums, groups, p.w.group, unit)) return {};
  const int64_t blocks = p.w.k / unit, per = groups > 1 ? p.w.group / unit : 1;
  // One block alone has nobody to hand its sums to.
  if (split < 2 || split > kMaxSplit || (split & (split - 1)) != 0) return {};
  const int64_t unit_bytes = 64 * unit * stored_width(stored_bits(p.w.format, a).bits) / 8;
  if (sums == SliceSums::kScaled) return cut_half_slice(blocks, per, unit_bytes, split);
  const int64_t each = round_up(ceil_div(blocks, split), per);
  if (each * (split - 1) >= blocks) return {};  // an empty block
  const int units = kernel.tile_units, depth = kernel.threads / 128 / units;
  const int64_t step = per % copy_blocks(sums) == 0 ? per : copy_blocks(sums) * per;  // whole groups and whole copies
  const int64_t deep = round_up(ceil_div(each, depth), step), places = deep * depth;
  if (sums == SliceSums::kHeld && deep > kSliceHeld) return {};
  if (places / copy_blocks(sums) > kSliceBarriers) return {};

  const int64_t weights_at = places * kSliceRows * 128, scales_at = weights_at + places * units * unit_bytes;
  const int64_t parts_at = scales_at + (groups > 1 ? places / per * units * 256 : 0);
  const int64_t share = std::max(1, kernel.pairs / split);
  const int64_t parts = sums == SliceSums::kHeld ? 128 * kSliceRows * 4 : split * depth * share * units * 1024;
  const int64_t bytes = parts_at + parts + 8 * (kSliceBarriers + 1);
  if (bytes > kShared / kernel.blocks_per_processor) return {};
  return {int(each), int(deep), int(per), int(weights_at), int(scales_at), int(parts_at), int(parts_at + parts),
          int(bytes)};
}

}  // namespace lowbit::cuda
