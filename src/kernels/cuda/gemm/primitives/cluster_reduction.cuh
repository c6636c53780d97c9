#pragma once
// Sums of the blocks of a cluster that share a tile's K.

#include "kernels/cuda/gemm/primitives/ptx.cuh"

namespace lowbit::cuda {

/// Sends each block of the cluster the pairs of sums (rows n and n + 1, one token) that it finishes: `share` of them, a
/// power of two, from pair rank * share on. offset(pair): where it lies in that block; its barrier counts the bytes.
template <int Pairs, class V, class Offset>
__device__ __forceinline__ void send_pairs(uint32_t base, uint32_t barrier_at, int share, const V* v, Offset offset) {
  static_assert(sizeof(V) == 4);
  const int shift = __popc(share - 1);
  auto bits = [&](int i) { return *reinterpret_cast<const uint32_t*>(&v[i]); };
#pragma unroll
  for (int pair = 0; pair < Pairs; ++pair) {
    const uint32_t there = shared_of(base, pair >> shift);
    const int i = pair / 2 * 4 + pair % 2;
    send_pair(there + offset(pair), bits(i), bits(i + 2), there + barrier_at);
  }
}

}  // namespace lowbit::cuda
