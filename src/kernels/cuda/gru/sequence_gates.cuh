#pragma once
// Tables, gates and state in the sequence kernels.

#include "kernels/cuda/gru/sequence_products.cuh"

namespace lowbit::cuda::gru {

template <class C>
__device__ __forceinline__ typename C::T look_up(const Warp<C>& w, int i, typename C::T x) {
  if constexpr (C::kF32) {
    return load_shared_f32(w.base + C::N::address(x, w.table[i]));  // `base` holds the block's rank above bit 24
  } else {
    const uint32_t code = C::N::bits(C::N::add(x, C::N::kMagic)) + uint32_t(w.table_zero[i]);
    const typename C::T y = C::N::from_word(__ldg(w.c.table[i].data + code), w.table_centre[i]);
    return i == 2 ? w.elements.shifted(y, w.elements.n_h) : y;
  }
}

/// Work that need not wait for the other warps' state: copies for a later step, and y of the step before.
template <class C>
__device__ __forceinline__ void work_beside(const Warp<C>& w, int step) {
  w.copy_ih(step + kIhSlots - 1);
  if (step > 0) w.write_y(step - 1);
}
/// Gates and state of a step: of kTogether tiles at a time, all elements ask a table, then all go on.
template <class C, class AnySums>
__device__ __forceinline__ void update_state(Warp<C>& w, const AnySums& acc,
                                             const typename C::T (&parts)[C::kOwnTiles][C::kPerTile][3], int step) {
  constexpr int kTogether = C::kOwnTiles <= 3 ? C::kOwnTiles : 1, kCount = kTogether * C::kPerTile;
#pragma unroll
  for (int first = 0; first < C::kOwnTiles; first += kTogether) {
    const auto hh = [&](int i, int gate) {
      const int nt = first + i / C::kPerTile, e = i % C::kPerTile;
      return C::N::multiply_add(sum_with_bias(w, acc, gate, nt, e), w.scale[gate][w.unit_in(e)], C::N::kMagic);
    };
    const auto part_of = [&](int i, int gate) { return parts[first + i / C::kPerTile][i % C::kPerTile][gate]; };
    typename C::T r[kCount], u[kCount], n[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) r[i] = look_up(w, 1, w.elements.reset_input(part_of(i, 1), hh(i, 1)));
#pragma unroll
    for (int i = 0; i < kCount; ++i) u[i] = look_up(w, 0, w.elements.update_input(part_of(i, 0), hh(i, 0)));
#pragma unroll
    for (int i = 0; i < kCount; ++i) n[i] = look_up(w, 2, w.elements.new_input(part_of(i, 2), hh(i, 2), r[i]));
    // Nothing else could be done while this table answers.
    if (C::kSingle) work_beside(w, step);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      typename C::T& old = w.state[first + i / C::kPerTile][i % C::kPerTile];
      const typename C::T next = w.elements.next_state(u[i], n[i], w.elements.kept(u[i], old));
      // A tile of one sequence has as many steps as that.
      old = C::kSingle || step < w.length[first + i / C::kPerTile][w.sequence_in(i % C::kPerTile)] ? next : old;
    }
  }
}

}  // namespace lowbit::cuda::gru
