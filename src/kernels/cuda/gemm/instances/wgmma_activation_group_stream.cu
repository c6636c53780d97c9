// Instances of the stream of weights for scales of x per activation group.
#include "kernels/cuda/gemm/mainloop/gemm_activation_groups_stream.cuh"

namespace lowbit::cuda {
namespace {

template <int Bits, int PerScale, int RowTiles, int Pairs, bool Whole = false>
ActivationGroupStreamKernel instance(ActivationGroupTile name) {
  using S = ActivationGroupStreamOf<Bits, PerScale, RowTiles, Pairs, Whole>;
  return {Bits,
          Whole,
          {name, PerScale, S::kRows, S::kTokens, S::kThreads, S::kXAt,
           reinterpret_cast<const void*>(&gemm_activation_groups_stream<S>)}};
}

}  // namespace

#define LOWBIT_STREAM(BITS, PER_SCALE)                                    \
  instance<BITS, PER_SCALE, 1, 1>(ActivationGroupTile::kStream16x16),     \
      instance<BITS, PER_SCALE, 2, 1>(ActivationGroupTile::kStream32x16), \
      instance<BITS, PER_SCALE, 1, 2>(ActivationGroupTile::kStream16x32), \
      instance<BITS, PER_SCALE, 2, 2>(ActivationGroupTile::kStream32x32)
#define LOWBIT_STREAMS(BITS)                                                                                  \
  LOWBIT_STREAM(BITS, 4), LOWBIT_STREAM(BITS, 2), instance<BITS, 0, 1, 1>(ActivationGroupTile::kStream16x16), \
      instance<BITS, 0, 1, 2>(ActivationGroupTile::kStream16x32),                                             \
      instance<BITS, 2, 1, 1, true>(ActivationGroupTile::kStream16x16),                                       \
      instance<BITS, 2, 1, 2, true>(ActivationGroupTile::kStream16x32),                                       \
      instance<BITS, 4, 1, 1, true>(ActivationGroupTile::kStream16x16),                                       \
      instance<BITS, 4, 1, 2, true>(ActivationGroupTile::kStream16x32)
const ActivationGroupStreamKernel kActivationGroupStreams[kStreamInstances] = {
    LOWBIT_STREAMS(2), LOWBIT_STREAMS(4), LOWBIT_STREAMS(8), LOWBIT_STREAMS(kTable)};

}  // namespace lowbit::cuda
