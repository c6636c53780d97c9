#pragma once
// The spans of a warp, one after the other, and their keys and values on the way to shared memory: the first half of
// attention_tensor_stream.cu.

#include "kernels/cuda/block/attention_tensor.cuh"

namespace lowbit::cuda::block {

/// Four warps of a multiprocessor, one for each of its tensor cores. A slot has a page's keys or its values.
template <int kDim>
struct StreamForm {
  static constexpr int kWarps = 4, kSlots = 3, kBlocks = kDim == 64 ? 2 : 1;  // of a multiprocessor
  static constexpr int kSlotHalves = kKeyHalves<kDim> > kValueHalves<kDim> ? kKeyHalves<kDim> : kValueHalves<kDim>;
  static constexpr int64_t kBytes = int64_t{2} * kWarps * kSlots * kSlotHalves;
};

/// One span of one kv head of a sequence. Spans of all sequences and heads are numbered, those at the same place of
/// their sequences side by side, so that warps with neighbouring numbers have as much to do.
struct StreamSpan {
  PagedTile tile;
  int number, index, span, page, end;  // pages that the row sees, counted from the sequence's first
  Seen seen;

  /// The first span from `from` on, `step` apart, that its sequence has; false where there is none.
  __device__ __forceinline__ bool seek(const AttendPages& call, int from, int step) {
    const int heads = static_cast<int>(call.kv.kv_heads), of_place = static_cast<int>(call.tile_count) * heads;
    for (number = from; number < of_place * static_cast<int>(call.spans); number += step) {
      const int at = number % of_place, place = number / of_place;
      index = at / heads;
      tile = part_of_tile(call, index, at % heads, 0, call.tile_queries);
      if (place >= tile.spans) continue;
      span = tile.first_span + place;
      seen = seen_of(tile.sequence.position, span, call.window);
      page = span * static_cast<int>(kSpanPages) + seen.begin / kTensorPage;
      end = span * static_cast<int>(kSpanPages) + (seen.end + kTensorPage - 1) / kTensorPage;
      return true;
    }
    return false;
  }
  /// Positions of a page that the row sees.
  __device__ __forceinline__ Seen seen_of_page(int of) const {
    const int first = of % static_cast<int>(kSpanPages) * kTensorPage;
    return {max(seen.begin - first, 0), min(seen.end - first, kTensorPage), false};
  }
};

/// Asks for keys and values in the order in which the warp reads them, some ahead of it.
template <int kDim>
struct StreamCopies {
  StreamSpan at;
  uint64_t page, next_page;  // addresses; the next one is asked for a page ahead
  bool there, values;

  __device__ __forceinline__ void begin_span(const AttendPages& call, int from, int step) {
    there = at.seek(call, from, step), values = false;
    if (there) next_page = at.tile.pages[at.page];
  }
  /// Starts the copies of a slot. Values that are not seen are zeros: 0 times infinity is no number.
  __device__ __forceinline__ void fetch(const AttendPages& call, int step, uint16_t* slot) {
    constexpr int kOfPage = kTensorPage * kDim, kEach = 32 * 8, kRows = kEach / kDim;
    if (there) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      if (!values) {
        page = next_page;
        next_page = at.tile.pages[min(at.page + 1, at.end - 1)];
      }
      const uint16_t* const from =
          reinterpret_cast<const uint16_t*>(page) + lane * 8 +
          ((call.kv.index * 2 + (values ? 1 : 0)) * call.kv.kv_heads + at.tile.kv_head) * kOfPage;
      if (!values) {
        uint16_t* const to = slot + lane / 8 * kKeyPitch + lane % 8 * 8;
#pragma unroll
        for (int i = 0; i < kOfPage / kEach; ++i) copy_to_shared_16(to + i * 4 * kKeyPitch, from + i * kEach);
      } else {
        uint16_t* const to = slot + lane * 8 / kDim * kValuePitch16<kDim> + lane * 8 % kDim;
        const Seen seen = at.seen_of_page(at.page);
#pragma unroll
        for (int i = 0; i < kOfPage / kEach; ++i) {
          uint16_t* const row = to + i * kRows * kValuePitch16<kDim>;
          if (seen.has(i * kRows + lane * 8 / kDim)) {
            copy_to_shared_16(row, from + i * kEach);
          } else {
            *reinterpret_cast<uint4*>(row) = {0, 0, 0, 0};
          }
        }
        ++at.page;
      }
      values = !values;
      if (!values && at.page == at.end) begin_span(call, at.number + step, step);
    }
    end_copies();  // also where there is none: who waits counts them
  }
};

}  // namespace lowbit::cuda::block
