// Sequences in f64: two planes of codes, tables of any size.

#include "kernels/cuda/gru/sequences.cuh"

namespace lowbit::cuda::gru {
namespace {

template <int NT, int KT, GruPath P, bool Single = false, bool Resident = true>
constexpr SequenceKernel kernel() {
  return sequence_kernel<Config<Doubles, NT, KT, P, Resident, Single>>();
}

constexpr SequenceKernel kList[] = {
    kernel<1, 0, GruPath::kBlock>(),
    kernel<1, 0, GruPath::kCluster>(),
    kernel<1, 0, GruPath::kGrid>(),
    kernel<1, 0, GruPath::kGrid, false, false>(),
};

}  // namespace

std::span<const SequenceKernel> sequences_f64() { return kList; }

}  // namespace lowbit::cuda::gru
