#pragma once
// Tiles of the product of FP8 codes for many rows of a: their shapes, whose they are, and how they are fetched.

#include <numeric>

#include "kernels/cuda/fp8/gemm_wgmma.h"
#include "kernels/cuda/fp8/groups.cuh"
#include "kernels/cuda/fp8/pipeline.cuh"
#include "kernels/cuda/fp8/store_tile.cuh"

namespace lowbit::cuda::fp8 {

constexpr int kMostShared = 227 << 10;

/// How results leave, of two bytes where the copy engine stores them: it needs shared memory for them, behind the
/// stages or, where a thread block has a single tile, in their place, which leaves room for one stage more.
enum class Results { kFromRegisters, kBehindStages, kInStages };

/// 64 Waves rows of a for each of Groups / Turns warpgroups, by Q_ of b, each with a scale of its own (RowScales) or
/// not. Turns warpgroups have the same rows and take stages in turn; their sums meet in shared memory.
template <int Groups, int Waves, int Q_, bool RowScales, int Turns, Results Leave>
struct TileShape {
  static constexpr int kRows = 64 * Groups / Turns * Waves;
  static constexpr bool kBoxes = Leave != Results::kFromRegisters && Q_ % kBoxColumns == 0 && Turns == 1;
  static constexpr bool kSingle = Leave == Results::kInStages;
  static_assert(!kSingle || kBoxes);
  // Bytes of shared memory for results, or for a turn's sums.
  static constexpr int kBehind = kSingle ? 0 : kBoxes ? kRows * Q_ * 2 : (Turns - 1) * kRows * Q_ * 4;
  // Registers hold two sets of products, and lanes scales of b. With 64 columns that was slower.
  static constexpr bool kAhead = Groups == 2 && Waves == 1 && Turns == 1 && !RowScales && Q_ > 64 && Q_ <= 128;
  // Else room for four scales of each of two rows of blocks of b, which are as few as the copy engine fetches.
  static constexpr int kOfB = RowScales ? Q_ : kAhead ? 0 : 2, kRoomOfB = RowScales ? Q_ : kAhead ? 0 : 8;
  using Layout = RingLayout<kRows, Q_, kRows, kOfB, kMostShared - kBehind - 1024, Turns, kRoomOfB>;
  static_assert(Turns == 1 || (Groups == Turns && Waves == 1));
};
template <int Groups, int Waves, int Q_, bool RowScales = false, int Turns = 1, Results Leave = Results::kBehindStages>
struct Tile : TileShape<Groups, Waves, Q_, RowScales, Turns, Leave>,
              TileShape<Groups, Waves, Q_, RowScales, Turns, Leave>::Layout {
  static constexpr int kGroups = Groups, kThreads = 128 * (kGroups + 1), kWaves = Waves, kTurns = Turns;
  static constexpr int kEnd = (Tile::kBarriersAt + 16 * Tile::kStages + 1023) / 1024 * 1024;
  static constexpr int kAllShared = 1024 + kEnd + Tile::kBehind;
  static constexpr int kResultsAt = Tile::kSingle ? 0 : kEnd;
  // Warps that fetch. A stage is always filled by the same one, and read by the same turn: else one that is late would
  // let the others take a barrier's last phase for the next.
  static constexpr int kFetchers = 4;
  // Rows of tiles before the next column of them: thread blocks at work have as many rows of a as of b, or nearly.
  static constexpr int kDepth = 2048 / Tile::kP;
  static constexpr int kFetchRegisters = Groups == 2 ? 56 : 40, kSumRegisters = Groups == 2 ? 224 : 152;
  static constexpr int kSums = Q_ / 2;              // of a lane and a wave
  static constexpr bool kOneScale = 128 % Q_ == 0;  // no tile has rows of two blocks of b
  // Columns that share a scale of b: where its blocks meet within a tile is a multiple of these.
  static constexpr int kOneChoice = std::gcd(128, Q_);
  static constexpr bool kRowScales = RowScales;
};

/// Division by a number that the host knows, of a number below 2^31: a product and a correction in place of some twenty
/// instructions, which stand in front of a thread block's first fetch.
struct KnownDivisor {
  uint32_t by = 1, inverse = ~0u;
  KnownDivisor() = default;
  explicit KnownDivisor(int64_t of) {
    if (of > 1) by = static_cast<uint32_t>(of), inverse = static_cast<uint32_t>((int64_t{1} << 32) / of);
  }
};

/// Which tile is whose.
struct Order {
  int down, across, tiles;    // of groups, the most
  KnownDivisor band, lowest;  // tiles in a band of T::kDepth rows of them; rows of tiles in the lowest band
  KnownDivisor of_b;          // rows of b with one scale
  int blocks;                 // of K
  int box_rows;               // of a
  bool boxes;                 // the copy engine stores results
  bool engine;                // the copy engine fetches scales, too
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct TilePlace {
  int p0, q0;   // rows of a and of b
  int64_t end;  // of rows of a
  int group;
};
/// The quotient and what is left.
__device__ __forceinline__ uint2 divided(uint32_t number, const KnownDivisor& d) {
  uint32_t quotient = __umulhi(number, d.inverse), rest = number - quotient * d.by;
  if (rest >= d.by) ++quotient, rest -= d.by;
  return {quotient, rest};
}

template <class T>
__device__ __forceinline__ TilePlace place_of(const DeviceGemm& g, const Order& o, int tile) {
  const uint2 band = divided(uint32_t(tile), o.band);
  const int top = int(band.x) * T::kDepth;
  uint2 in{band.y / T::kDepth, band.y % T::kDepth};
  if (top + T::kDepth > o.down) in = divided(band.y, o.lowest);
  return {(top + int(in.y)) * T::kP, int(in.x) * T::kQ, g.m, 0};
}
template <class T>
__device__ __forceinline__ TilePlace place_in_group(const TileOfGroup& found, int across) {
  const int down = int((found.last - found.first + T::kP - 1) / T::kP), band = T::kDepth * across;
  const int top = found.tile / band * T::kDepth, in = found.tile % band, height = min(T::kDepth, down - top);
  return {int(found.first) + (top + in % height) * T::kP, in / height * T::kQ, found.last, found.group};
}
/// False: there is no such tile, nor one behind it.
template <class T, bool kGroups>
__device__ __forceinline__ bool find_tile(const DeviceGemm& g, const Fp8Groups& groups, const Order& o, int tile,
                                          TilePlace& at) {
  if (tile >= o.tiles) return false;
  if constexpr (kGroups) {
    const TileOfGroup found = tile_of_groups<T::kP>(groups, g.m, tile, o.across);
    if (found.exists()) at = place_in_group<T>(found, o.across);
    return found.exists();
  } else {
    at = place_of<T>(g, o, tile);
    return true;
  }
}

/// Codes of b for the first stages of the first tile, by one thread; fetching goes on from there. The stages.
template <class T>
__device__ __forceinline__ int fetch_weights(Pipeline<T> pipeline, const CUtensorMap* q_map, const DeviceGemm& g,
                                             const Order& o) {
  const int row0 = place_of<T>(g, o, int(blockIdx.x)).q0, count = min(o.blocks, T::kStages);
  if (threadIdx.x == 128 * T::kGroups)
    for (int b = 0; b < count; ++b, pipeline.next()) box_load(pipeline.q(), q_map, b * 128, row0, pipeline.full());
  return count;
}

/// All of a stage by the copy engine, by one thread of each warp that fetches: it knows so few numbers that a stage is
/// asked for some 40 instructions after it became empty. Scales of b come as the 16 bytes that hold those of a block of
/// K. `early`: stages whose weights are under way already.
template <class T>
__device__ __forceinline__ void fetch_by_engine(Pipeline<T> pipeline, const CUtensorMap* p_map,
                                                const CUtensorMap* q_map, const DeviceGemm& g, const Order& o,
                                                int early) {
  const int fetcher = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32 - 4 * T::kGroups, 0);
  if (!elected()) return;
  const uint32_t last = divided(uint32_t(g.n - 1), o.of_b).x;
  constexpr uint32_t kOfB = T::kAhead ? 0 : T::kOneScale ? 16 : 32;
  int count = 0;  // of stages
  TilePlace at;
  for (int tile = int(blockIdx.x); find_tile<T, false>(g, {}, o, tile, at); tile += int(gridDim.x)) {
    const uint32_t row = divided(uint32_t(at.q0), o.of_b).x;
    const float* const of_b = g.b_scales + row * g.ldb_scales;
    const float* const of_next = g.b_scales + min(row + 1, last) * g.ldb_scales;
    const float* of_a = g.a_scales + at.p0;
    const uint32_t of_rows = min(4 * T::kP, int(g.m - at.p0 + 3) / 4 * 16);  // bytes; behind the last row is room
    for (int b = 0; b < o.blocks; ++b, ++count, pipeline.next(), of_a += g.lda_scales) {
      if (pipeline.stage % T::kFetchers != fetcher) continue;
      const uint32_t full = pipeline.full(), scales = pipeline.scales();
      barrier_wait(pipeline.empty(), pipeline.phase ^ 1);
      barrier_expect(full, (o.box_rows + T::kQ) * 128 + of_rows + kOfB);
      box_load(pipeline.p(), p_map, b * 128, at.p0, full);
      if (count >= early) box_load(pipeline.q(), q_map, b * 128, at.q0, full);
      bulk_load(scales, of_a, of_rows, full);
      if (!T::kAhead) bulk_load(scales + 4 * T::kP, of_b + b / 4 * 4, 16, full);
      if (!T::kAhead && !T::kOneScale) bulk_load(scales + 4 * T::kP + 16, of_next + b / 4 * 4, 16, full);
    }
  }
}

/// Scales in copies of four bytes, by all lanes: as the caller has them.
template <class T, bool kGroups>
__device__ __forceinline__ void fetch_tiles(Pipeline<T> pipeline, const CUtensorMap* p_map, const CUtensorMap* q_map,
                                            const DeviceGemm& g, const Fp8Groups& groups, const Order& o, int early) {
  const bool first_lane = threadIdx.x % 32 == 0;
  const int fetcher = int(threadIdx.x) / 32 - 4 * T::kGroups;
  int count = 0;  // of stages
  TilePlace at;
  for (int tile = int(blockIdx.x); find_tile<T, kGroups>(g, groups, o, tile, at); tile += int(gridDim.x)) {
    const ScaleCopies<T> scales(g, at.p0, at.q0, at.group);
    const int bulk = rows_in_bulk(g, at.p0, T::kP);
    const int row0 = int(at.group * g.n) + at.q0;  // of b
    for (int b = 0; b < o.blocks; ++b, ++count, pipeline.next()) {
      if (pipeline.stage % T::kFetchers != fetcher) continue;
      barrier_wait(pipeline.empty(), pipeline.phase ^ 1);
      if (first_lane) {
        barrier_expect(pipeline.full(), (o.box_rows + T::kQ) * 128 + 4 * bulk);
        box_load(pipeline.p(), p_map, b * 128, at.p0, pipeline.full());
        if (count >= early) box_load(pipeline.q(), q_map, b * 128, row0, pipeline.full());
        if (bulk != 0) bulk_load(pipeline.scales(), g.a_scales + b * g.lda_scales + at.p0, 4 * bulk, pipeline.full());
      }
      __syncwarp();
      if (bulk == 0) scales.copy_a(pipeline.scales(), b);
      if (!T::kAhead) scales.copy_b(pipeline.scales(), b);
      copies_arrive(pipeline.full());
    }
  }
}

#endif

}  // namespace lowbit::cuda::fp8
