// Sequences in f32, a tile in a cluster.

#include "kernels/cuda/gru/sequences.cuh"

namespace lowbit::cuda::gru {

std::span<const SequenceKernel> sequences_f32_cluster() {
  static constexpr SequenceKernel kList[] = {
      sequence_kernel<Floats, 1, GruPath::kCluster, true>(),
      sequence_kernel<Floats, 1, GruPath::kCluster>(),
      sequence_kernel<Floats, 4, GruPath::kCluster>(),
      sequence_kernel<Floats, 1, GruPath::kCluster, false, true, 8, 2>(),
      sequence_kernel<Floats, 2, GruPath::kCluster, false, true, 8, 2>(),
      sequence_kernel<Floats, 3, GruPath::kCluster, false, true, 8, 2>(),
  };
  return kList;
}

}  // namespace lowbit::cuda::gru
