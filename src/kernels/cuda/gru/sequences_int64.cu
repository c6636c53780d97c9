// Sequences in int64: right for every cell whose weights have up to 8 bits.

#include "kernels/cuda/gru/sequences.cuh"

namespace lowbit::cuda::gru {
namespace {

template <int NT, int KT, GruPath P, bool Single = false, bool Resident = true>
constexpr SequenceKernel kernel() {
  return sequence_kernel<Config<Integers, NT, KT, P, Resident, Single>>();
}

constexpr SequenceKernel kList[] = {
    kernel<1, 0, GruPath::kBlock>(),
    kernel<1, 0, GruPath::kCluster>(),
    kernel<1, 0, GruPath::kGrid>(),
    kernel<1, 0, GruPath::kGrid, false, false>(),
};

}  // namespace

std::span<const SequenceKernel> sequences_int64() { return kList; }

}  // namespace lowbit::cuda::gru
