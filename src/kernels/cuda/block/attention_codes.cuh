#pragma once
// Items that a warp of attention_codes.cu reads, one after the other, and their way to shared memory.
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
  using Keys = CodeOperands<kKeyBits, kTensorPage>;
  using Values = CodeOperands<kValueBits, kWidth>;
  static constexpr int kKeyCodes = kHead * kTensorPage * kKeyBits / 8, kKeySide = 8 + 2 * kHead;
  static constexpr int kBlockCodes = kWidth * kTensorPage * kValueBits / 8, kBlockSide = 8 + 2 * kTensorPage;
  static constexpr int kValueCodes = kBlocks * kBlockCodes, kValueSide = kBlocks * kBlockSide;
  static constexpr int kF16 = 2 * kQuarter * kHead;  // bytes of a quarter's keys, and of its values
  /// Keys or values of an item. Two are on their way while one is read.
  static constexpr int kSlots = 3, kLongest = kKeyCodes + kKeySide > kValueCodes + kValueSide
                                                  ? kKeyCodes + kKeySide
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

  __device__ __forceinline__ CodesTile(const AttendPages& call, const CodesLaunch& launch, int index) {
    const QueryTile tile = call.tiles[index];
    sequence = call.sequences[tile.sequence];
    pages = call.kv.tables + tile.sequence * call.kv.stride;
    group = launch.group.by, kv_head = static_cast<int>(blockIdx.y);
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
  __device__ __forceinline__ bool is_packed(int item) const { return item >= front && item < front + packed; }
  __device__ __forceinline__ int page(int item) const {
    if (item < front) return 0;
    return item < front + packed ? packed_begin + item - front : packed_end + (item - front - packed) / 4;
  }
  /// The first position of an f16 item.
  __device__ __forceinline__ int begin(int item) const {
    const int quarter = item < front ? item : (item - front - packed) % 4;
    return page(item) * kTensorPage + quarter * kQuarter;
  }
};

/// How many items of a tile a warp has in one part: as many parts as there may be, or fewer.
__device__ __forceinline__ int items_of_warp(const CodesLaunch& launch, int count) {
  return launch.warps_at_once.quotient(count - 1) + 1;
}
__device__ __forceinline__ int parts_of(const CodesLaunch& launch, int count) {
  const int of_part = items_of_warp(launch, count) * kCodesWarps;
  return (count + of_part - 1) / of_part;
}

/// A thread block's share of a tile: one of `blocks` blocks, which have about as many of its parts each.
struct CodesShare {
  int tile, block, blocks;  // blocks: 0 where there is nothing to do

  /// `parts` and `blocks_of`: kMostSharedTiles numbers each, for all threads.
  __device__ __forceinline__ CodesShare(const AttendPacked& call, const CodesLaunch& launch, int* parts,
                                        int* blocks_of) {
    tile = static_cast<int>(blockIdx.z), block = static_cast<int>(blockIdx.x), blocks = INT_MAX;
    if (launch.shared_tiles != 0) share(call, launch, parts, blocks_of);
  }
  /// Tiles get blocks by their parts, at least one each, so that about as many run as fill the device.
  __device__ __forceinline__ void share(const AttendPacked& call, const CodesLaunch& launch, int* parts,
                                        int* blocks_of) {
    const int own = static_cast<int>(threadIdx.x);
    if (own < launch.shared_tiles)
      parts[own] = parts_of(launch, CodesItems(call, launch, CodesTile(call.attend, launch, own)).count);
    __syncthreads();
    if (own < launch.shared_tiles) {
      int all = 0;
      for (int of = 0; of < launch.shared_tiles; ++of) all += parts[of];
      blocks_of[own] = max(1, parts[own] * launch.shared_blocks / all);
    }
    __syncthreads();
    for (tile = 0, blocks = 0; tile < launch.shared_tiles; ++tile) {
      blocks = blocks_of[tile];
      if (block < blocks) return;
      block -= blocks;
    }
    blocks = 0;
  }
};

/// Lines of 128 bytes to shared memory; a lane has a piece of 16 bytes of each fourth one.
template <int kLines, class Reader>
__device__ __forceinline__ void copy_lines(uint8_t* to, const uint8_t* from, const Reader& reader) {
  const unsigned lane = lane_of_warp(), first = lane / 8, piece = lane % 8;
  from += lane * 16;
#pragma unroll
  for (unsigned k = 0; k < kLines / 4; ++k)
    copy_to_shared_16(to + 512 * k + piece_offset(first, piece, reader(first + 4 * k)), from + 512 * k);
}
template <int kBytes>
__device__ __forceinline__ void copy_side(uint8_t* to, const uint8_t* from) {
  const unsigned lane = lane_of_warp();
  to += 8 * lane, from += 8 * lane;
#pragma unroll
  for (unsigned at = 0; at < kBytes; at += 256)
    if (at + 256 <= kBytes || 8 * lane < kBytes - at) copy_to_shared_8(to + at, from + at);
}

/// Asks for keys and values of a warp's items in the order in which it reads them, some ahead of it.
template <class F>
struct CodesCopies {
  int item, end;
  const uint8_t *address, *next_address;  // of this item's page and of the next one's
  const uint64_t *packed_pages, *f16_pages;
  int codes, sides, f16;  // where the head lies in a page

  __device__ __forceinline__ const uint8_t* address_of(const CodesItems& items, int of) const {
    const uint64_t* const from = (items.is_packed(of) ? packed_pages : f16_pages) + items.page(of);
    return of < end ? load_pointer_once(from) : nullptr;
  }
  __device__ __forceinline__ void begin(const AttendPacked& call, const CodesTile& tile, const CodesItems& items,
                                        int from, int to) {
    end = to, item = from;
    const auto head = static_cast<int>(head_of(call.kv, tile.kv_head));
    codes = head * static_cast<int>(call.kv.packed.codes);
    sides = static_cast<int>(call.kv.packed.sides_at) + head * static_cast<int>(call.kv.packed.sides);
    f16 = static_cast<int>(call.kv.pages.index * 2 * call.kv.pages.kv_heads + tile.kv_head) *
          (2 * kTensorPage * F::kHead);
    packed_pages = call.kv.packed.tables + (tile.pages - call.kv.pages.tables) - 1;  // that of page 1 first
    f16_pages = tile.pages;
    address = address_of(items, item);
    next_address = address_of(items, item + kCodesWarps);
  }
  template <bool kValues>
  __device__ __forceinline__ void fetch_codes(uint8_t* slot) const {
    if constexpr (!kValues) {
      copy_lines<F::kKeyCodes / 128>(slot, address + codes, F::Keys::reader);
      copy_side<F::kKeySide>(slot + F::kKeyCodes, address + sides);
    } else {
      copy_lines<F::kValueCodes / 128>(slot, address + codes + F::kKeyCodes, F::Values::reader);
      copy_side<F::kValueSide>(slot + F::kValueCodes, address + sides + F::kKeySide);
    }
  }
  /// Values that are not seen are zeros: 0 times infinity is no number.
  template <bool kValues>
  __device__ __forceinline__ void fetch_f16(const AttendPacked& call, const CodesItems& items, uint8_t* slot) const {
    const unsigned lane = lane_of_warp(), first = static_cast<unsigned>(items.begin(item)),
                   in_page = first % kTensorPage;
    const uint8_t* from = address + f16;
    if constexpr (!kValues) {
      from += lane / 2 * (2 * kTensorPage) + in_page * 2 + lane % 2 * 16;
      uint8_t* const to = slot + piece_offset(lane / 8, lane % 8, lane / 8);
#pragma unroll
      for (unsigned k = 0; k < F::kF16 / 512; ++k) copy_to_shared_16(to + 512 * k, from + k * 16 * (2 * kTensorPage));
    } else {
      constexpr unsigned kLines = F::kHead / 64;  // of a row
      from += static_cast<unsigned>(call.kv.pages.kv_heads) * (2 * F::kHead * kTensorPage) + in_page * (2 * F::kHead) +
              lane * 16;
#pragma unroll 2  // where it is all there, constants of this rare way take registers of the other one
      for (unsigned k = 0; k < F::kF16 / 512; ++k) {
        const unsigned line = lane / 8 + 4 * k;
        const int at = static_cast<int>(first + line / kLines);
        uint8_t* const to = slot + piece_offset(line, lane % 8, line / (4 * kLines));
        if (at <= items.last && at >= items.first) {
          copy_to_shared_16(to, from + 512 * k);
        } else {
          *reinterpret_cast<uint4*>(to) = {0, 0, 0, 0};
        }
      }
    }
  }
  /// Starts the copies of a slot, if there is something left to read. `old`: positions before it were written before
  /// the predecessor of this launch began; others are read when it has ended.
  template <bool kValues>
  __device__ __forceinline__ void fetch(const AttendPacked& call, const CodesItems& items, uint8_t* slot, int old) {
    if (item < end) {
      if (items.is_packed(item)) {
        fetch_codes<kValues>(slot);
      } else {
        if (items.begin(item) + kQuarter > old) wait_for_predecessor();
        fetch_f16<kValues>(call, items, slot);
      }
      if constexpr (kValues) {
        item += kCodesWarps;
        address = next_address;
        next_address = address_of(items, item + kCodesWarps);
      }
    }
    end_copies();  // also where there is none: who waits counts them
  }
};

}  // namespace lowbit::cuda::block
