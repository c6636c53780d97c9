#pragma once
// What the launcher knows of the kernels for int8 x with a scale per segment of 32 columns, where one or more segments
// share a scale of the weights (gemm_segments.cuh, gemm_segments_few.cuh).

#include <cstdint>

#include "base/isa.h"
#include "kernels/cuda/gemm/device_args.h"
#include "kernels/cuda/gemm/gemm.h"

namespace lowbit::cuda {

inline constexpr int kSegmentColumns = 32, kSegmentInstances = 8;
inline constexpr int kSegmentFewRows = 8, kSegmentFewThreads = 256,
                     kSegmentFewBatches = 4;  // batches of a warp at a time

/// GemmArgs whose groups are segments.
struct SegmentArgs : GemmArgs {
  int per_scale;  // segments that share a scale of the weights, and so many of these
  int weight_groups;
  int whole_groups;  // few rows of x: warps have whole groups of the weights
};

/// Which kernel, and its tile.
enum class SegmentTile : uint8_t { kNone, kFew, k128x64, k64x32 };
inline constexpr const char* kSegmentTileNames[] = {"", "segments_few8", "segments_128x64", "segments_64x32"};

/// A tile: 32 rows of weights for each of row_warps, 32 rows of x for each of x_warps.
struct SegmentKernel {
  SegmentTile tile;
  int per_scale;  // segments that share a scale of the weights; 0: any number. Few rows: 1 where warps have whole groups
  int row_warps, x_warps;  // 0: the kernel for few rows of x
  const void* function;
};

extern const SegmentKernel kSegmentsBits2[], kSegmentsBits4[], kSegmentsBits8[];

/// Null where there is none for so many stored bits. `args`: per_scale and whole_groups are set.
const SegmentKernel* find_segment_kernel(int bits, SegmentTile tile, const SegmentArgs& args);

/// Cuts K for the kernel for few rows; the threads of its blocks.
void cut_segments_few(SegmentArgs& args);
int segment_few_threads(const SegmentArgs& args);

/// The kernel for a problem whose groups are segments, `per_scale` of which share a scale of the weights.
SegmentTile choose_segments(const GemmProblem& problem, int64_t per_scale, int processors);

/// gemm() with scales of x per segment: the groups of problem.w are segments of 32 columns. Its x_sums are the sums
/// over a group of the weights of sums times scales of x, [m, groups of the weights].
GemmStatus gemm_segments_as(const GemmProblem& problem, int64_t per_scale, SegmentTile tile, CUstream_st* stream);

/// Places in the shared memory of gemm_segments_few(): scales [groups][16], results [slots][m][16].
struct SegmentFewPlaces {
  int slots, results, bytes;
  explicit LOWBIT_HD SegmentFewPlaces(const SegmentArgs& p) {
    const int segments = p.depth * p.warp_batches * 2;
    slots = p.whole_groups ? (segments + p.per_scale - 1) / p.per_scale : segments;
    results = p.weight_groups * 16 * 4;
    bytes = results + slots * (p.m < kSegmentFewRows ? p.m : kSegmentFewRows) * 16 * 4;
  }
};

}  // namespace lowbit::cuda
