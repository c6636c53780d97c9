#include "kernels/cuda/gemm/segments.h"

#include <algorithm>
#include <numeric>

#include "kernels/cuda/gemm/stored_bits.h"

namespace lowbit::cuda {
namespace {

constexpr int kMostWarps = kSegmentFewThreads / 32;
constexpr int64_t kFewestBytes = 99 << 10;  // of shared memory of a block, on every architecture

int ceil_div(int a, int b) { return (a + b - 1) / b; }

const SegmentKernel* kernels_of(int bits) {
  return bits == 2 ? kSegmentsBits2 : bits == 4 ? kSegmentsBits4 : bits == 8 ? kSegmentsBits8 : nullptr;
}

}  // namespace

const SegmentKernel* find_segment_kernel(int bits, SegmentTile tile, const SegmentArgs& args) {
  const SegmentKernel* const all = kernels_of(bits);
  if (all == nullptr) return nullptr;
  const int wanted = tile == SegmentTile::kFew ? args.whole_groups : args.per_scale;
  const auto* const exact = std::find_if(
      all, all + kSegmentInstances, [&](const SegmentKernel& k) { return k.tile == tile && k.per_scale == wanted; });
  if (exact != all + kSegmentInstances) return exact;
  const auto* const any = std::find_if(all, all + kSegmentInstances,
                                       [&](const SegmentKernel& k) { return k.tile == tile && k.per_scale == 0; });
  return any == all + kSegmentInstances ? nullptr : any;
}

void cut_segments_few(SegmentArgs& args) {
  // Two segments to a batch: so many batches hold whole groups.
  const int step = args.per_scale / std::gcd(args.per_scale, 2), batches = ceil_div(args.k, 64);
  args.whole_groups = step <= kSegmentFewBatches ? 1 : 0;
  const int align = args.whole_groups != 0 ? step : 1, most = kSegmentFewBatches / align * align;
  args.warp_batches = std::min(most, ceil_div(ceil_div(batches, kMostWarps), align) * align);
  args.depth = std::min(kMostWarps, ceil_div(batches, args.warp_batches));
}

int segment_few_threads(const SegmentArgs& args) {
  return std::max(32 * args.depth, ceil_div(16 * std::min(args.m, kSegmentFewRows), 32) * 32);
}

SegmentTile choose_segments(const GemmProblem& p, int64_t per_scale, int processors) {
  const int64_t scale_bytes = (group_count(p.w) / per_scale + 1) * 64;
  if (p.m <= kSegmentFewRows && scale_bytes < kFewestBytes / 2) return SegmentTile::kFew;
  const int64_t tiles = (p.m + 63) / 64 * ((p.w.n + 127) / 128);
  return tiles >= processors ? SegmentTile::k128x64 : SegmentTile::k64x32;
}

}  // namespace lowbit::cuda
