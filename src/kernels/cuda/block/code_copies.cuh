#pragma once
// The way of a warp's items to shared memory, some ahead of what it reads.

#include "kernels/cuda/block/code_queries.cuh"

namespace lowbit::cuda::block {

/// The slots of a warp in turns: the one that it reads, and the one that it has read before, which is free.
template <class F>
struct CodesSlots {
  static_assert(F::kSlots == 3);
  uint8_t* bytes;
  unsigned begin, at, at_before;  // bytes

  __device__ __forceinline__ CodesSlots(uint8_t* all, unsigned first)
      : bytes(all), begin(first), at(first), at_before(first + 2 * F::kSlot) {}
  __device__ __forceinline__ uint8_t* first() const { return bytes + begin; }
  __device__ __forceinline__ uint8_t* now() const { return bytes + at; }
  __device__ __forceinline__ uint8_t* before() const { return bytes + at_before; }
  __device__ __forceinline__ uint8_t* next() const { return bytes + behind(); }
  __device__ __forceinline__ unsigned behind() const { return at == begin + 2 * F::kSlot ? begin : at + F::kSlot; }
  __device__ __forceinline__ void advance() {
    at_before = at;
    at = kept(behind());
  }
};

__device__ __forceinline__ uint64_t lane_address(uint64_t of, int lane) {
  const uint32_t high = __shfl_sync(kAllLanes, static_cast<uint32_t>(of >> 32), lane, 32);
  return uint64_t{high} << 32 | __shfl_sync(kAllLanes, static_cast<uint32_t>(of), lane, 32);
}
/// Where the lanes of a warp begin to copy lines of codes: a lane has a piece of 16 bytes of each line of one reader.
template <class Operands>
struct LinesOfLane {
  unsigned from, to;

  __device__ __forceinline__ LinesOfLane() {
    const unsigned lane = lane_of_warp(), reader = lane / 8, piece = lane % 8;
    from = reader * (128 * Operands::kRun) + piece * 16;
    to = piece_offset(reader * Operands::kRun, piece, Operands::kPairs ? 0 : reader);
  }
};
template <class Operands, int kLines, int kAt = 0>
__device__ __forceinline__ void copy_lines(uint8_t* to, const uint8_t* from) {
  if constexpr (kAt < kLines / 4) {
    copy_to_shared_at<16, 128 * (kAt % Operands::kRun + kAt / Operands::kRun * 4 * Operands::kRun)>(to, from);
    copy_lines<Operands, kLines, kAt + 1>(to, from);
  }
}
/// The addresses are the lane's, which has each 32nd place of 8 bytes.
template <int kBytes, int kAt = 0>
__device__ __forceinline__ void copy_side(uint8_t* to, const uint8_t* from) {
  if constexpr (kAt < kBytes) {
    copy_to_shared_at<8, kAt>(to, from, kAt + 256 <= kBytes || 8 * lane_of_warp() < kBytes - kAt);
    copy_side<kBytes, kAt + 256>(to, from);
  }
}

/// Asks for keys and values of a warp's items in the order in which it reads them, some ahead of it.
template <class F>
struct CodesCopies {
  int first, count;    // the warp's items are each eighth from `first` on
  unsigned at;         // of them, the next to be asked for
  uint64_t own, page;  // pages of item at / 32 * 32 + lane of them, and of the next, with bits of ItemOfWarp
  unsigned keys, values, sides, f16;  // where the head's lie in a page; but for f16, what the lane copies of them
  unsigned side_of_lane;
  LinesOfLane<typename F::Keys> keys_of_lane;
  LinesOfLane<typename F::Values> values_of_lane;

  __device__ __forceinline__ CodesCopies(const AttendPacked& call, int kv_head) {
    const auto head = static_cast<unsigned>(head_of(call.kv, kv_head));
    const unsigned codes = head * static_cast<unsigned>(call.kv.packed.codes);
    keys = codes + keys_of_lane.from, values = codes + F::kKeyCodes + values_of_lane.from;
    side_of_lane = 8 * lane_of_warp();
    sides = static_cast<unsigned>(call.kv.packed.sides_at) + head * static_cast<unsigned>(call.kv.packed.sides) +
            side_of_lane;
    if constexpr (F::kSets == 1)  // registers for them
      for (unsigned* of : {&keys, &values, &sides, &side_of_lane, &keys_of_lane.to, &values_of_lane.to})
        *of = kept(*of);
    f16 = static_cast<unsigned>(call.kv.pages.index * 2 * call.kv.pages.kv_heads + kv_head) *
          (2 * kTensorPage * F::kHead);
  }
  /// Items from `from` to before `to`.
  __device__ __forceinline__ void begin(int from, int to) {
    first = from, count = from < to ? (to - from + kCodesWarps - 1) / kCodesWarps : 0, at = 0;
  }
  __device__ __forceinline__ ItemOfWarp next() const {
    return {first + static_cast<int>(at) * kCodesWarps, static_cast<unsigned>(page) & ItemOfWarp::kAll};
  }
  __device__ __forceinline__ const uint8_t* address() const {
    return reinterpret_cast<const uint8_t*>(page & ~uint64_t{ItemOfWarp::kAll});
  }
  /// The page of the lane's item of the next 32.
  __device__ __forceinline__ uint64_t page_of_lane(const AttendPacked& call, const uint64_t* pages,
                                                   const CodesItems& items) const {
    const int mine = static_cast<int>(at + lane_of_warp()), item = first + mine * kCodesWarps;
    if (mine >= count) return 0;
    const bool packed = items.is_packed(item);
    // Of packed pages that of page 1 comes first.
    const uint64_t* const table = packed ? call.kv.packed.tables + (pages - call.kv.pages.tables) - 1 : pages;
    const int begin = items.begin(item);
    const bool all_see = begin >= items.all_first && begin + items.positions(item) - 1 <= items.all_last;
    return reinterpret_cast<uint64_t>(load_pointer_once(table + items.page(item))) |
           (packed ? ItemOfWarp::kPacked : 0) | (all_see ? ItemOfWarp::kAllSee : 0);
  }
  template <bool kValues>
  __device__ __forceinline__ void fetch_codes(uint8_t* slot) const {
    const uint8_t* const from = address();
    if constexpr (!kValues) {
      copy_lines<typename F::Keys, F::kKeyCodes / 128>(slot + keys_of_lane.to, from + keys);
      copy_side<F::kKeySide>(slot + F::kKeySideAt + side_of_lane, from + sides);
    } else {
      copy_lines<typename F::Values, F::kValueCodes / 128>(slot + values_of_lane.to, from + values);
      copy_side<F::kValueSide>(slot + F::kValueCodes + side_of_lane, from + sides + F::kKeySide);
    }
  }
  /// Values that are not seen are zeros: 0 times infinity is no number.
  template <bool kValues>
  __device__ __forceinline__ void fetch_f16(const AttendPacked& call, const CodesItems& items, int first_position,
                                            uint8_t* slot) const {
    const unsigned lane = lane_of_warp(), begin = static_cast<unsigned>(first_position), in_page = begin % kTensorPage;
    const uint8_t* from = address() + f16;
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
        const int row = static_cast<int>(begin + line / kLines);
        uint8_t* const to = slot + piece_offset(line, lane % 8, line / (4 * kLines));
        if (row <= items.last && row >= items.first) {
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
  __device__ __forceinline__ void fetch(const AttendPacked& call, const uint64_t* pages, const CodesItems& items,
                                        uint8_t* slot, int old) {
    if constexpr (!kValues) {
      if (at % 32 == 0) own = page_of_lane(call, pages, items);
      page = lane_address(own, static_cast<int>(at % 32));
    }
    if (static_cast<int>(at) < count) {
      if (next().packed()) {
        fetch_codes<kValues>(slot);
      } else {
        const int begin = items.begin(next().item);
        if (begin + kQuarter > old) wait_for_predecessor();
        fetch_f16<kValues>(call, items, begin, slot);
      }
    }
    if constexpr (kValues) ++at;
    end_copies();  // also where there is none: who waits counts them
  }
};

}  // namespace lowbit::cuda::block
