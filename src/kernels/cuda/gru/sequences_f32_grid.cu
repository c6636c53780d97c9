// Sequences in f32, a tile in blocks that exchange through global memory; the last two read the weights from there.

#include "kernels/cuda/gru/sequences.cuh"

namespace lowbit::cuda::gru {

std::span<const SequenceKernel> sequences_f32_grid() {
  static constexpr SequenceKernel kList[] = {
      sequence_kernel<Floats, 1, GruPath::kGrid>(),
      sequence_kernel<Floats, 4, GruPath::kGrid>(),
      sequence_kernel<Floats, 2, GruPath::kGrid, false, true, 8, 2>(),
      sequence_kernel<Floats, 1, GruPath::kGrid, false, false>(),
      sequence_kernel<Floats, 4, GruPath::kGrid, false, false>(),
  };
  return kList;
}

}  // namespace lowbit::cuda::gru
