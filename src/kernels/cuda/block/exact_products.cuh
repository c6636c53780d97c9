#pragma once
// Products of one to eight tokens, each output in the order of docs/numerics.md#matmul: a lane has a row of weights,
// a warp 32 of them and whole groups, whose sums are chains of their own; a thread per output adds them up.
//
// Memory:   rows of weights as they are, 128 bytes of each at a time, by copies that a warp starts and waits for alone,
//           the first ones before the previous kernel has ended. Pieces of 16 bytes are exchanged within a row, so that
//           lanes read from all banks.
// Limits:   one row: memory, about three instructions a weight in one byte; few weights: latency.

#include "kernels/cuda/block/weight_values.cuh"
#include "kernels/cuda/product_end.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda::block {

constexpr int kRowsOfTile = 32, kPieceBytes = 16, kStagePieces = 8,
              kStageBytes = kRowsOfTile * kStagePieces * kPieceBytes;
constexpr int kExactProductStages = 4, kMostExactProductWarps = 12;
constexpr int kHeldScales = 8;  // of a thread, which come while it multiplies

struct ExactProductArgs {
  ExactProductPart part[kMostStepProducts];
  int first_tile[kMostStepProducts], scale_shift[kMostStepProducts];
  int parts;
  const float *rows, *norm;
  const uint8_t* codes;
  const float* code_scales;
  int64_t ldcodes, scale_row, scale_block;
  float eps;
  RowRounding rounding;
  ProductEnd end;
  Element y_element;
  bool aligned;                            // rows begin at multiples of 16 bytes
  int m, k, groups, group_pieces, pieces;  // pieces: of a row of weights
  int warps, stages;                       // of a thread block, of a warp
  int tiles, tiles_of_set, sets, grid;     // a thread block takes a set of tiles at a time
  int share_pieces, share_groups, shares;  // a share is what a warp takes of a tile: whole groups; shares of a tile
  bool whole_stages;                       // groups end with stages
  int buffers;                             // of results and scales, which sets take in turn
  // Byte positions in shared memory, floats of a token.
  int x_at, norm_at, x_scales_at, results_at, scales_at, factors_at, x_pitch;
};

/// Number `i` of a row of things, of which `of` belong together; the next one that a warp takes is `step` behind it.
struct ExactProductPlace {
  int which, within;
  __device__ __forceinline__ ExactProductPlace(int i, int of) : which(i / of), within(i % of) {}
  __device__ __forceinline__ void next(const ExactProductPlace& step, int of) {
    which += step.which, within += step.within;
    if (within >= of) within -= of, ++which;
  }
};

/// The stages that a warp reads, one after the other. Divisions are done once, at the start.
struct ExactProductCursor {
  ExactProductPlace share, start, step;  // of a tile of the set
  int set, piece = 0;
  __device__ __forceinline__ ExactProductCursor(const ExactProductArgs& a, int warp)
      : share(warp, a.shares), start(share), step(a.warps, a.shares), set(static_cast<int>(blockIdx.x)) {}
  __device__ __forceinline__ int tile(const ExactProductArgs& a) const { return set * a.tiles_of_set + share.which; }
  __device__ __forceinline__ int first(const ExactProductArgs& a) const {
    return share.within * a.share_pieces + piece;
  }
  /// Pieces of the stage.
  __device__ __forceinline__ int count(const ExactProductArgs& a) const {
    return min(kStagePieces, min(a.share_pieces - piece, a.pieces - first(a)));
  }
  __device__ __forceinline__ void next(const ExactProductArgs& a) {
    piece += kStagePieces;
    if (piece < a.share_pieces && first(a) < a.pieces) return;
    piece = 0;
    share.next(step, a.shares);
    if (share.which < a.tiles_of_set) return;
    share = start;
    set += a.grid;
  }
};

struct ExactProductTile {
  int part, n0;
};
__device__ __forceinline__ ExactProductTile exact_product_tile(const ExactProductArgs& a, int tile) {
  if (a.end == ProductEnd::kSilu || a.end == ProductEnd::kSquaredRelu) return {tile % 2, tile / 2 * kRowsOfTile};
  int part = 0;
  while (part + 1 < a.parts && tile >= a.first_tile[part + 1]) ++part;
  return {part, (tile - a.first_tile[part]) * kRowsOfTile};
}

__device__ __forceinline__ void end_exact_product_stage() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kBehind>
__device__ __forceinline__ void wait_for_copies_but() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kBehind) : "memory");
#endif
}
/// Until the oldest of `stages` is there.
__device__ __forceinline__ void wait_for_exact_product_stage(int stages) {
  if (stages == 4)
    wait_for_copies_but<3>();
  else if (stages == 3)
    wait_for_copies_but<2>();
  else if (stages == 2)
    wait_for_copies_but<1>();
  else
    wait_for_copies_but<0>();
}

/// Starts the copies of a stage. Rows that are not there are the last one: nobody stores their sums. All lanes copy,
/// pieces that nobody reads, too: they stay together, and so do the copies that they wait for.
__device__ __forceinline__ void copy_exact_products(const ExactProductArgs& a, const ExactProductCursor& at,
                                                    uint8_t* stage) {
  const int lane = static_cast<int>(threadIdx.x) % 32, piece = lane % kStagePieces, row = lane / kStagePieces;
  const ExactProductTile tile = exact_product_tile(a, min(at.tile(a), a.tiles - 1));
  const ExactProductPart& part = a.part[tile.part];
  const uint8_t* const from = part.values + int64_t{at.first(a) + min(piece, at.count(a) - 1)} * kPieceBytes;
  constexpr int kAtOnce = 32 / kStagePieces;
#pragma unroll
  for (int i = 0; i < kRowsOfTile / kAtOnce; ++i) {
    const int r = row + i * kAtOnce;
    const int n = min(tile.n0 + r, static_cast<int>(part.n) - 1);
    copy_to_shared_16(stage + (r * kStagePieces + (piece ^ r % kStagePieces)) * kPieceBytes,
                      from + int64_t{n} * static_cast<int>(part.row_bytes));
  }
}

/// 16 bytes of a lane's row times all tokens.
template <ValueType kType, int kM>
__device__ __forceinline__ void multiply_piece(const uint4& w, const float* x, int pitch, float (&sums)[kM]) {
  constexpr int kColumns = kWordColumns<kType>;
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
  float v[4 * kColumns];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float of_word[kColumns];
    values_of_word<kType>(words[i], of_word);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) v[i * kColumns + j] = of_word[j];
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const float4 of_x = *reinterpret_cast<const float4*>(x + m * pitch + 4 * c);
      sums[m] = __fmaf_rn(v[4 * c], of_x.x, sums[m]);
      sums[m] = __fmaf_rn(v[4 * c + 1], of_x.y, sums[m]);
      sums[m] = __fmaf_rn(v[4 * c + 2], of_x.z, sums[m]);
      sums[m] = __fmaf_rn(v[4 * c + 3], of_x.w, sums[m]);
    }
}

/// How far a warp is in a group, and which it is.
struct ExactProductGroup {
  int left, group;  // pieces that are not added yet
  __device__ __forceinline__ void begin(const ExactProductArgs& a, const ExactProductCursor& at) {
    if (at.piece != 0) return;
    left = a.group_pieces;
    group = at.share.within * a.share_groups;
  }
};

/// A stage's pieces; sums of groups that end go to their slot, [groups][kM][32] of a tile.
template <ValueType kType, int kM>
__device__ __forceinline__ void multiply_stage(const ExactProductArgs& a, const ExactProductCursor& at,
                                               const uint8_t* stage, const float* x, float* results,
                                               ExactProductGroup& in, float (&sums)[kM]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = at.first(a), count = at.count(a);
  const uint8_t* const row = stage + lane * kStagePieces * kPieceBytes;
  const auto multiply = [&](int p) {
    const uint4 w = *reinterpret_cast<const uint4*>(row + (p ^ lane % kStagePieces) * kPieceBytes);
    multiply_piece<kType>(w, x + (first + p) * kPieceColumns<kType>, a.x_pitch, sums);
  };
  const auto done = [&](int pieces, int of_row) {  // so many more, and so many of the row
    in.left -= pieces;
    if (in.left > 0 && of_row < a.pieces) return;
    float* const to = results + in.group * (kM * kRowsOfTile) + lane;
#pragma unroll
    for (int m = 0; m < kM; ++m) to[m * kRowsOfTile] = sums[m], sums[m] = 0;
    in.left = a.group_pieces, ++in.group;
  };
  in.begin(a, at);
  if (count == kStagePieces && a.whole_stages) {
#pragma unroll(kM <= 2 ? 8 : 2)
    for (int p = 0; p < kStagePieces; ++p) multiply(p);
    done(kStagePieces, first + kStagePieces);
    return;
  }
#pragma unroll 1
  for (int p = 0; p < count; ++p) {
    multiply(p);
    done(1, first + p + 1);
  }
}

}  // namespace lowbit::cuda::block
