#pragma once
// R times h in the sequence kernels.

#include "kernels/cuda/gru/sequence_exchange.cuh"

namespace lowbit::cuda::gru {

/// Three gates' weights of 64 columns times 8 NT sequences.
template <class C>
__device__ __forceinline__ void multiply_pair(const uint4 (&first)[3], const uint4 (&second)[3],
                                              const uint32_t (&b)[C::L][C::NT][4], typename Warp<C>::Sums& acc) {
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int l = 0; l < C::L; ++l)
#pragma unroll
        for (int nt = 0; nt < C::NT; ++nt)
          mma_s8_u8(acc[C::kChains == 2 ? k : 0][l][gate][nt], k == 0 ? first[gate] : second[gate], b[l][nt][2 * k],
                    b[l][nt][2 * k + 1]);
}
template <class C>
__device__ __forceinline__ void load_h(const Warp<C>& w, uint32_t h, int kp, uint32_t (&b)[C::L][C::NT][4]) {
#pragma unroll
  for (int l = 0; l < C::L; ++l)
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt)
      load_blocks(b[l][nt],
                  h + uint32_t(kp * 4 * C::kGroupBytes + nt * C::kOwnEach * kGroup) + (l != 0 ? w.plane_bytes : 0));
}
/// R times the tile's h.
template <class C>
__device__ __forceinline__ void multiply(const Warp<C>& w, uint32_t h, typename Warp<C>::Sums& acc) {
  const int tiles = shared_ksteps(w.c, C::KT, C::kResident, C::S) * 3;
  const uint32_t mine = w.base + w.at.weights + uint32_t(w.warp * tiles * kTileBytes + w.lane * 16);
  const uint8_t* const far = w.c.r.tiles + int64_t{w.group} * w.ksteps * 3 * kTileBytes + w.lane * 16;
  const auto fetch = [&](int kp, uint4(&first)[3], uint4(&second)[3]) {  // from behind the registers' ksteps
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      const int i = (kp * 2 - C::KT) * 3 + gate;
      if constexpr (C::kResident) {
        first[gate] = load_shared_16(mine + uint32_t(i * kTileBytes));
        second[gate] = load_shared_16(mine + uint32_t((i + 3) * kTileBytes));
      } else {
        first[gate] = __ldg(reinterpret_cast<const uint4*>(far + int64_t{i} * kTileBytes));
        second[gate] = __ldg(reinterpret_cast<const uint4*>(far + int64_t{i + 3} * kTileBytes));
      }
    }
  };
  const int pairs = w.ksteps / 2;
  if constexpr (C::KT > 0) {
    uint32_t all[C::KT / 2][C::L][C::NT][4];  // behind the last column too, where the weights are 0
#pragma unroll
    for (int kp = 0; kp < C::KT / 2; ++kp) load_h(w, h, kp, all[kp]);
#pragma unroll
    for (int kp = 0; kp < C::KT / 2; ++kp) {
      const uint4 first[3] = {w.weights[6 * kp], w.weights[6 * kp + 1], w.weights[6 * kp + 2]};
      const uint4 second[3] = {w.weights[6 * kp + 3], w.weights[6 * kp + 4], w.weights[6 * kp + 5]};
      multiply_pair<C>(first, second, all[kp], acc);
    }
    if (pairs <= C::KT / 2) return;
  }
  if constexpr (C::P != GruPath::kBlock || C::KT == 0) {
#pragma unroll 2
    for (int kp = C::KT / 2; kp < pairs; ++kp) {
      uint32_t b[C::L][C::NT][4];
      uint4 first[3], second[3];
      load_h(w, h, kp, b);
      fetch(kp, first, second);
      multiply_pair<C>(first, second, b, acc);
    }
  }
}

/// A sum of both chains, and `more`.
template <class C>
__device__ __forceinline__ int sum_of_chains(const typename Warp<C>::Sums& acc, int l, int gate, int nt, int i,
                                             int more) {
  uint32_t v = uint32_t(acc[0][l][gate][nt][i]) + uint32_t(more);
  if (C::kChains == 2) v += uint32_t(acc[C::kChains - 1][l][gate][nt][i]);
  return int(v);
}
/// Two warps of a group give each other their sums of the other's sequences. Leaves those of the lane's elements, in
/// order.
template <class C>
__device__ __forceinline__ void gather(const Warp<C>& w, const typename Warp<C>::Sums& acc,
                                       int (&own_sums)[3][C::kElements]) {
  constexpr int kCount = 3 * C::kElements, kParts = C::kSumBytes / 512;
  // The sum of a gate and element: of a part's eight sequences of sixteen, or of every other one.
  const auto sum_of = [&](int to, int i) {
    const int gate = i / C::kElements, nt = i % C::kElements / C::kPerTile, e = i % C::kPerTile;
    if constexpr (C::kInterleaved)
      return to != 0 ? sum_of_chains<C>(acc, 0, gate, nt, 2 * e + 1, 0) : sum_of_chains<C>(acc, 0, gate, nt, 2 * e, 0);
    else
      return to != 0 ? sum_of_chains<C>(acc, 0, gate, C::NT / C::S * (C::S - 1) + nt, e, 0)
                     : sum_of_chains<C>(acc, 0, gate, nt, e, 0);
  };
  uint32_t words[4 * kParts] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = uint32_t(sum_of(1 - w.part, i));
  const uint32_t mine = w.base + uint32_t(w.at.sums + w.warp * C::kSumBytes + w.lane * 16);
  const uint32_t other = w.base + uint32_t(w.at.sums + (w.warp ^ 1) * C::kSumBytes + w.lane * 16);
#pragma unroll
  for (int i = 0; i < kParts; ++i)
    store_shared_16(mine + uint32_t(512 * i),
                    uint4{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]});
  pair_sync(w.warp / 2);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const uint4 v = load_shared_16(other + uint32_t(512 * i));
    words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    own_sums[i / C::kElements][i % C::kElements] = int(uint32_t(sum_of(w.part, i)) + words[i]);
}
/// The sum of the lane's element e, with its bias.
template <class C>
__device__ __forceinline__ typename C::T sum_with_bias(const Warp<C>& w, const typename Warp<C>::Sums& acc, int gate,
                                                       int nt, int e) {
  const int u = w.unit_in(e);
  int parts[C::L];
#pragma unroll
  for (int l = 0; l < C::L; ++l) {
    const auto of = [&](int i) { return sum_of_chains<C>(acc, l, gate, nt, i, w.bias32[gate][u]); };
    parts[l] = C::kSingle ? (w.lane % 2 != 0 ? of(2) : of(0)) : of(2 * u + w.sequence_in(e));
  }
  return C::N::product(parts[0], parts[C::L - 1], w.bias[gate][u]);
}
/// sum_with_bias() for split groups, from gather().
template <class C>
__device__ __forceinline__ typename C::T sum_with_bias(const Warp<C>& w, const int (&own_sums)[3][C::kElements],
                                                       int gate, int nt, int e) {
  return typename C::T(int(uint32_t(own_sums[gate][nt * C::kPerTile + e]) + uint32_t(w.bias32[gate][w.unit_in(e)])));
}

}  // namespace lowbit::cuda::gru
