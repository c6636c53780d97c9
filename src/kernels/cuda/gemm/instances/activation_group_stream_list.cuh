#pragma once
// The instances of the stream of weights for a stored width.

#include "kernels/cuda/gemm/mainloop/gemm_activation_groups_stream.cuh"

namespace lowbit::cuda {

template <int Bits, int PerScale, int RowTiles, int Pairs, bool Whole = false>
ActivationGroupStreamKernel stream_instance(ActivationGroupTile name) {
  using S = ActivationGroupStreamOf<Bits, PerScale, RowTiles, Pairs, Whole>;
  return {Bits,
          Whole,
          {name, PerScale, S::kRows, S::kTokens, S::kThreads, S::kXAt,
           reinterpret_cast<const void*>(&gemm_activation_groups_stream<S>)}};
}

#define LOWBIT_STREAM(BITS, PER_SCALE)                                           \
  stream_instance<BITS, PER_SCALE, 1, 1>(ActivationGroupTile::kStream16x16),     \
      stream_instance<BITS, PER_SCALE, 2, 1>(ActivationGroupTile::kStream32x16), \
      stream_instance<BITS, PER_SCALE, 1, 2>(ActivationGroupTile::kStream16x32), \
      stream_instance<BITS, PER_SCALE, 2, 2>(ActivationGroupTile::kStream32x32)
#define LOWBIT_STREAMS(BITS)                                                                                         \
  LOWBIT_STREAM(BITS, 4), LOWBIT_STREAM(BITS, 2), stream_instance<BITS, 0, 1, 1>(ActivationGroupTile::kStream16x16), \
      stream_instance<BITS, 0, 1, 2>(ActivationGroupTile::kStream16x32),                                             \
      stream_instance<BITS, 2, 1, 1, true>(ActivationGroupTile::kStream16x16),                                       \
      stream_instance<BITS, 2, 1, 2, true>(ActivationGroupTile::kStream16x32),                                       \
      stream_instance<BITS, 4, 1, 1, true>(ActivationGroupTile::kStream16x16),                                       \
      stream_instance<BITS, 4, 1, 2, true>(ActivationGroupTile::kStream16x32)

}  // namespace lowbit::cuda
