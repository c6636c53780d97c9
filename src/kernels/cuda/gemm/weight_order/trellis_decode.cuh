#pragma once
// Codes of two bits on a trellis (format/trellis.h) become indices into its table, those of a lane's batch at once. A
// bit of an index is an exclusive or of stored bits, so it is one of whole words in which codes of the row lie 1, 2 and
// 3 columns further left. Nothing is a chain along the row.
//
// Words:    FragmentOrder::trellis_element(): a nibble of a plane holds the same column of four runs of four columns,
//           which are 16 columns apart, and the upper half of the word another row. So the code before is four bits
//           further down, and that before a run's first one is in the lane to the left; the quad's first lane has the
//           last one's run before, the first of them from the batch before.
// Planes:   trellis_order.h.
// Limits:   integer instructions: 54 for 32 codes, 24 of which look up (docs/lab/gpu-trellis.md).

#include "kernels/cuda/gemm/weight_order/look_up.cuh"
#include "kernels/cuda/gemm/weight_order/trellis_order.h"

namespace lowbit::cuda {

/// Words of a row's batch before, for decoding the next one: none, where codes are decoded one by one.
template <int Bits>
struct RowHistory {};
/// Words of the quad's last lane, in its first one; zeros in front of the row. Others hold anything.
template <>
struct RowHistory<kTrellis> {
  uint32_t plane[2] = {0, 0};
};

/// A batch's planes, and the same 1, 2 and 3 columns further left.
struct TrellisWindow {
  uint32_t plane[8];  // in the order of the window's bits

  /// All lanes of a warp; `history` becomes that of the next batch.
  __device__ __forceinline__ TrellisWindow(const uint32_t* words, RowHistory<kTrellis>& history) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    const uint32_t first_run = t == 0 ? 0x11111111u : 0u, next_run = t == 0 ? 2u : 1u;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t w = words[i], other = __shfl_sync(0xffffffffu, w, (t + 3) % 4, 4);
      const uint32_t left = choose_bits(history.plane[i] >> 3, other * next_run, first_run);
      history.plane[i] = other;
      plane[i] = w;
      plane[2 + i] = choose_bits(w << 4, left >> 12, 0xfff0fff0u);
      plane[4 + i] = __byte_perm(left, w, kTwoLeft);
      plane[6 + i] = __byte_perm(left << 4, plane[2 + i], kTwoLeft);
    }
  }
  /// Bit A of what is looked up, of the codes that `of` has ones for.
  template <int A>
  __device__ __forceinline__ uint32_t index_bit(uint32_t of = ~0u) const {
    uint32_t others = 0, last = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if ((trellis_plane_mask(A) >> i & 1) != 0) others ^= last, last = plane[i];
    return of == ~0u ? others ^ last : masked_xor(others, last, of);
  }

 private:
  static constexpr uint32_t kTwoLeft = 0x6341;  // the upper byte of each half of one word, the lower one of the other
};

/// Indices of a batch: two bits of those with an even place in a nibble and of the others, side by side; a third bit of
/// both where it lies in its plane; the fourth one's plane.
struct TrellisIndices {
  uint32_t even, odd, even_third, odd_third, high;

  /// All lanes of a warp.
  __device__ __forceinline__ void decode(const uint32_t* words, RowHistory<kTrellis>& history) {
    constexpr uint32_t kEven = 0x55555555u;
    const TrellisWindow window(words, history);
    const uint32_t first = window.index_bit<0>(), second = window.index_bit<1>();
    even = choose_bits(first, second << 1, kEven), odd = choose_bits(first >> 1, second, kEven);
    even_third = window.index_bit<2>(kEven), odd_third = window.index_bit<2>(~kEven);
    high = window.index_bit<3>();
  }
  /// The four operand registers of a step: two runs of both rows. Three bits choose in the halves of the table.
  __device__ __forceinline__ void look_up(const uint32_t (&table)[4], int step, uint32_t* a) const {
    constexpr uint32_t kTwo = 0x33333333u;
    if (step == 0) {
      look_up_halves(table, choose_bits(even, even_third << 2, kTwo), half_selector(high << 2), a);
      look_up_halves(table, choose_bits(odd, odd_third << 1, kTwo), half_selector(high << 1), a + 2);
    } else {
      look_up_halves(table, choose_bits(even >> 2, even_third, kTwo), half_selector(high), a);
      look_up_halves(table, choose_bits(odd >> 2, odd_third >> 1, kTwo), half_selector(high >> 1), a + 2);
    }
  }
};

}  // namespace lowbit::cuda
