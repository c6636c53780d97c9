#pragma once
// Shared memory of a thread block that has spans with packed pages, all sizes known when compiled.

#include "kernels/cuda/block/packed_span.cuh"

namespace lowbit::cuda::block {

/// Bytes of what stands beside codes, apart enough that lanes of different pages read different banks.
constexpr int side_pitch(int bytes) { return bytes % 16 == 0 ? bytes : bytes + 8; }

template <int kHeadDim, int kTileQueries, int kKeyBits, int kValueBits>
struct PackedForm {
  static constexpr int kHead = kHeadDim, kQueries = kTileQueries;
  static constexpr int kWarps = kQueries == 4 ? 16 : 8, kThreads = 32 * kWarps;
  static constexpr int kPairs = kHead / kLanes, kKeyX = kXWords<kPairs> + (kQueries == 4 ? 0 : 4);
  static constexpr int kWidth = kValueBits == 2 ? 32 : 64, kBlocks = kHead / kWidth;
  static constexpr int kKeySide = 8 + 2 * kHead, kBlockSide = 8 + 2 * kPagePositions, kValueSide = kBlocks * kBlockSide;
  static constexpr int kKeyPitch = side_pitch(kKeySide), kValuePitch = side_pitch(kValueSide);
  static constexpr int kOutPitch = kHead + 8, kOut = kQueries * kOutPitch;  // of a span's weighted values
  static constexpr int kBlockCodes = kPagePositions * kWidth * kValueBits / 8;
  static constexpr int kOwn = (kQueries / 2 * kHead + kThreads - 1) / kThreads;  // elements of a thread, of two queries
  using KeyTile = RawTile<kKeyBits, kHead, kPagePositions>;
  using ValueTile = RawTile<kValueBits, kPagePositions, kWidth>;
  /// Tiles of values on their way: what is multiplied next must have been asked for long before.
  static constexpr int kSets = kValueBits == 2 ? 4 : kValueBits == 4 ? 2 : 1;
};

/// Shared memory of a warp for its span. x of values takes half the room of x of keys at the most; behind it: results.
template <class F>
struct alignas(16) WarpShared {
  static constexpr int kValueWords = kTeamPages * F::kQueries * kValueX;
  static constexpr int kWords = kTeamPages * F::kQueries * F::kKeyX;
  float weights[F::kQueries * kWeightPitch];
  union alignas(16) {
    uint32_t x[kWords > kValueWords + F::kOut ? kWords : kValueWords + F::kOut];
    float room[kValueWords + F::kOut];
  };
  float2 by[kTeamPages * F::kQueries];
  alignas(8) uint8_t key_sides[kTeamPages * F::kKeyPitch];
  alignas(8) uint8_t value_sides[kTeamPages * F::kValuePitch];
  const uint8_t* pages[2][kTeamPages];  // of this span and of the next
  float most[F::kQueries], total[F::kQueries];

  __device__ __forceinline__ float* out() { return room + kValueWords; }
};

/// Shared memory of a thread block for a span of any kind.
template <class F>
struct alignas(16) BlockShared {
  static constexpr int kTasks = kTeamPages * F::kBlocks, kValueWords = F::kQueries * kValueX;
  static constexpr int kKeyWords = kTeamPages * F::kQueries * F::kKeyX;
  float weights[F::kQueries * kWeightPitch];
  uint32_t x[kKeyWords > kTasks* kValueWords ? kKeyWords : kTasks* kValueWords];
  float2 by[kTasks * F::kQueries];
  alignas(8) uint8_t key_sides[kTeamPages * F::kKeyPitch];
  alignas(8) uint8_t value_sides[kTeamPages * F::kValuePitch];
  float products[kTeamPages][F::kOut];
  float most[F::kQueries], total[F::kQueries];
  uint16_t f16[2][kTeamPages][kPagePositions * F::kHead];  // keys, values
};

/// The most spans of a tile that its last thread block puts together.
constexpr int kMostJoined = 32;

template <class F>
struct alignas(16) SpanShared {
  float queries[F::kQueries][F::kHead];
  float all[F::kQueries][F::kHead];  // weighted values of the spans so far
  Joining joining[F::kQueries];
  Running running[F::kQueries];
  int positions[F::kQueries];  // -1: there is no such query
  Joining joins[F::kQueries][kMostJoined];
  float totals[F::kQueries][kMostJoined];
  bool is_last;  // of the thread blocks of a tile
  union alignas(16) {
    WarpShared<F> of_warp[F::kWarps];
    BlockShared<F> of_block;
  };
};

/// Spans of a tile that are packed and seen whole.
struct WholeSpans {
  int begin, end;
};
__device__ __forceinline__ WholeSpans whole_spans(const AttendPacked& call, const PagedTile& tile) {
  const int last =
      min(tile.position(0) / kPagePositions - 1 - static_cast<int>(call.kv.packed.behind), tile.sequence.most_packed);
  const int first = first_seen(tile.position(tile.count - 1), call.attend.window);
  const int begin = max(max(1, (first + kSpan - 1) / kSpan), tile.first_span);
  return {begin, max(begin, max(last + 1, 0) / kTeamPages)};
}

__device__ __forceinline__ void copy_sides(const uint8_t* from, int bytes, uint8_t* to, int lane, int lanes) {
  for (int at = lane * 8; at < bytes; at += lanes * 8) copy_to_shared_8(to + at, from + at);
}

__device__ __forceinline__ const uint8_t* packed_page(const PackedKv& kv, const PagedTile& tile, int page) {
  return reinterpret_cast<const uint8_t*>(packed_table(kv, kv.packed, tile)[page - 1]);
}
__device__ __forceinline__ const uint8_t* key_side(const AttendPacked& call, const PagedTile& tile,
                                                   const uint8_t* page) {
  return page + call.kv.packed.sides_at + head_of(call.kv, tile.kv_head) * call.kv.packed.sides;
}
__device__ __forceinline__ const uint8_t* key_codes(const AttendPacked& call, const PagedTile& tile,
                                                    const uint8_t* page) {
  return page + head_of(call.kv, tile.kv_head) * call.kv.packed.codes;
}

}  // namespace lowbit::cuda::block
