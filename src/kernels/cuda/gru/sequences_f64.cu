// Sequences in f64: two planes of codes, tables of any size.

#include "kernels/cuda/gru/sequences.cuh"

namespace lowbit::cuda::gru {

std::span<const SequenceKernel> sequences_f64() {
  static constexpr SequenceKernel kList[] = {
      sequence_kernel<Doubles, 1, GruPath::kBlock, true>(),
      sequence_kernel<Doubles, 1, GruPath::kBlock>(),
      sequence_kernel<Doubles, 1, GruPath::kCluster, true>(),
      sequence_kernel<Doubles, 1, GruPath::kCluster>(),
      sequence_kernel<Doubles, 1, GruPath::kGrid>(),
      sequence_kernel<Doubles, 1, GruPath::kGrid, false, false>(),
  };
  return kList;
}

}  // namespace lowbit::cuda::gru
