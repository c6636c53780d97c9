#pragma once
// Items that a warp of attention_codes.cu reads, one after the other, and how blocks share them.
//
// An item is a packed page, or a quarter of a page that is still f16: about as many bytes. The items of a sequence, and
// how they are divided among thread blocks and warps, depend on the row's block of 64 positions and on the device.

#include <climits>

#include "kernels/cuda/block/attention_packed.cuh"
#include "kernels/cuda/block/attention_tensor.cuh"
#include "kernels/cuda/block/packed_operands.cuh"
#include "kernels/cuda/packed_ops.cuh"

namespace lowbit::cuda::block {

constexpr int kCodesWarps = 8, kCodesThreads = 32 * kCodesWarps;
constexpr int kQuarter = kTensorPage / 4;

/// A tile has up to four queries of each set: two columns each of an operand's eight.
template <int kHeadDim, int kKeyBits, int kValueBits, int kOfSets>
struct CodesForm {
  static constexpr int kHead = kHeadDim, kTiles = kHead / 16, kSets = kOfSets, kQueries = 4 * kSets;
  static constexpr int kWidth = kValueBits == 2 ? 32 : 64, kBlocks = kHead / kWidth, kBlockTiles = kWidth / 16;
  using Keys = CodeOperands<kKeyBits, kTensorPage, true>;
  using Values = CodeOperands<kValueBits, kWidth, false>;
  static constexpr int kKeyCodes = kHead * kTensorPage * kKeyBits / 8, kKeySide = 8 + 2 * kHead;
  static constexpr int kKeySideAt = kKeyCodes + 8;  // in shared memory, so that scales can be loaded sixteen at a time
  static constexpr int kBlockCodes = kWidth * kTensorPage * kValueBits / 8, kBlockSide = 8 + 2 * kTensorPage;
  static constexpr int kValueCodes = kBlocks * kBlockCodes, kValueSide = kBlocks * kBlockSide;
  static constexpr int kF16 = 2 * kQuarter * kHead;  // bytes of a quarter's keys, and of its values
  /// Keys or values of an item. Two are on their way while one is read.
  static constexpr int kSlots = 3, kLongest = kKeySideAt + kKeySide > kValueCodes + kValueSide
                                                  ? kKeySideAt + kKeySide
                                                  : kValueCodes + kValueSide;
  /// A warp's result, in a slot: [query][kPitch].
  static constexpr int kPitch = kHead + 4, kResult = kQueries * kPitch * 4, kMost = kLongest > kF16 ? kLongest : kF16;
  static constexpr int kSlot = ((kMost > kResult ? kMost : kResult) + 15) / 16 * 16;
  static constexpr int kWarpBytes = kSlots * kSlot, kBytes = kCodesWarps * kWarpBytes;
  static constexpr int kBlocksOfProcessor = 2 * kBytes <= (224 << 10) ? 2 : 1;
};

/// Quotients by a number that is known before the launch: of those below 2^32 by that number.
struct Divisor {
  int by;
  uint64_t reciprocal;

  explicit Divisor(int64_t of) : by(int(of)), reciprocal((uint64_t{1} << 32) / uint64_t(of) + (of > 1 ? 1 : 0)) {}
  __device__ __forceinline__ int quotient(int of) const {
    return static_cast<int>(static_cast<uint32_t>(of) * reciprocal >> 32);
  }
};
/// Sizes that all thread blocks of a launch share.
struct CodesLaunch {
  Divisor group;          // heads that read a kv head
  Divisor warps_at_once;  // of a tile at most
  int most_parts;         // of a tile in this launch
  int shared_tiles;       // tiles that share the blocks of a head; 0: each has most_parts of its own
  int shared_blocks;      // of a head, about, for all of them
};
constexpr int kMostSharedTiles = 64;

/// Queries of a kv head that a thread block has, all in one block of 64 positions.
struct CodesTile {
  BatchSequence sequence;
  const uint64_t* pages;
  int group, kv_head, first, count;

  CodesTile() = default;
  __device__ __forceinline__ CodesTile(const AttendPages& call, const CodesLaunch& launch, int index) {
    const BatchSequence likely = call.sequences[0];  // asked for beside the tile, not behind it
    const QueryTile tile = call.tiles[index];
    sequence = tile.sequence == 0 ? likely : call.sequences[tile.sequence];
    pages = call.kv.tables + tile.sequence * call.kv.stride;
    group = launch.group.by, kv_head = static_cast<int>(blockIdx.x);
    first = tile.first;
    const int last_row = position(launch, 0) / kTensorPage * kTensorPage + kTensorPage - sequence.position;
    count = min(min(last_row, sequence.rows) * group - first, call.tile_queries);
  }
  __device__ __forceinline__ int position(const CodesLaunch& launch, int query) const {
    return sequence.position + launch.group.quotient(first + query);
  }
  /// The offset of the query's elements in q and out.
  __device__ __forceinline__ int64_t offset(const AttendPages& call, const CodesLaunch& launch, int query) const {
    const int row = launch.group.quotient(first + query), head = kv_head * group + first + query - row * group;
    return ((int64_t{sequence.row} + row) * call.heads + head) * call.kv.head_dim;
  }
};

/// The items of a tile and what they see.
struct CodesItems {
  int first, last;               // positions that some query sees
  int all_first, all_last;       // that all do
  int packed_begin, packed_end;  // pages
  int front, packed, count;      // items before packed ones, packed, all

  CodesItems() = default;
  __device__ __forceinline__ CodesItems(const AttendPacked& call, const CodesLaunch& launch, const CodesTile& tile) {
    const int64_t window = call.attend.window;
    all_last = tile.position(launch, 0), last = tile.position(launch, tile.count - 1);
    const int block = all_last / kTensorPage, first_page = first_seen(block * kTensorPage, window) / kTensorPage;
    first = first_seen(all_last, window), all_first = first_seen(last, window);
    packed_begin = max(1, first_page);
    packed_end =
        max(packed_begin, min(block - 1 - static_cast<int>(call.kv.packed.behind), tile.sequence.most_packed) + 1);
    front = first_page == 0 ? 4 : 0;
    packed = packed_end - packed_begin;
    count = front + packed + 4 * max(0, block + 1 - packed_end);
  }
  __device__ __forceinline__ bool all_see_the_same() const { return first == all_first && last == all_last; }
  __device__ __forceinline__ bool is_packed(int item) const { return item >= front && item < front + packed; }
  __device__ __forceinline__ int page(int item) const {
    if (item < front) return 0;
    return item < front + packed ? packed_begin + item - front : packed_end + (item - front - packed) / 4;
  }
  /// The item's first position, and how many it has.
  __device__ __forceinline__ int begin(int item) const {
    const int quarter = item < front ? item : is_packed(item) ? 0 : (item - front - packed) % 4;
    return page(item) * kTensorPage + quarter * kQuarter;
  }
  __device__ __forceinline__ int positions(int item) const { return is_packed(item) ? kTensorPage : kQuarter; }
};
/// An item as the loop over them sees it: what it asks of each one is in two bits.
struct ItemOfWarp {
  static constexpr unsigned kPacked = 1, kAllSee = 2, kAll = 3;
  int item;
  unsigned is;

  __device__ __forceinline__ bool packed() const { return (is & kPacked) != 0; }
  __device__ __forceinline__ bool all_see() const { return (is & kAllSee) != 0; }
};

/// How many items of a tile a warp has in one part: as many parts as there may be, or fewer.
__device__ __forceinline__ int items_of_warp(const CodesLaunch& launch, int count) {
  return launch.warps_at_once.quotient(count - 1) + 1;
}
__device__ __forceinline__ int parts_of(const CodesLaunch& launch, int count) {
  const int of_part = items_of_warp(launch, count) * kCodesWarps;
  return (count + of_part - 1) / of_part;
}

/// The work of a thread block: parts of a tile, one after the other.
struct CodesWork {
  int tile, block, blocks;        // the block of so many that the tile has; 0: there is nothing to do
  int parts, part, end, of_warp;  // of the tile, and of the block's; items of a warp in each

  /// `work_of`: kMostSharedTiles numbers for all threads.
  __device__ __forceinline__ CodesWork(const AttendPacked& call, const CodesLaunch& launch, int* work_of) {
    tile = static_cast<int>(blockIdx.z), block = static_cast<int>(blockIdx.y), blocks = INT_MAX;
    if (launch.shared_tiles != 0) share(call, launch, work_of);
  }
  /// Tiles get blocks by their work, at least one each, so that about as many run as fill the device. Around a part
  /// stands half as much as an item of a warp.
  __device__ __forceinline__ void share(const AttendPacked& call, const CodesLaunch& launch, int* work_of) {
    const int own = static_cast<int>(threadIdx.x);
    if (own < launch.shared_tiles) {
      const int items = CodesItems(call, launch, CodesTile(call.attend, launch, own)).count;
      work_of[own] = parts_of(launch, items) * (2 * items_of_warp(launch, items) + 1);
    }
    __syncthreads();
    int all = 0;
    for (int i = 0; i < launch.shared_tiles; ++i) all += work_of[i];
    for (; tile < launch.shared_tiles; ++tile) {
      blocks = max(1, work_of[tile] * launch.shared_blocks / all);
      if (block < blocks) return;
      block -= blocks;
    }
    blocks = 0;
  }
  /// Takes parts of the tile; false where none is the block's.
  __device__ __forceinline__ bool take_parts(const CodesLaunch& launch, int items) {
    of_warp = items_of_warp(launch, items), parts = parts_of(launch, items), blocks = min(blocks, parts);
    part = block * parts / blocks, end = (block + 1) * parts / blocks;
    return block < blocks;
  }
};

}  // namespace lowbit::cuda::block
