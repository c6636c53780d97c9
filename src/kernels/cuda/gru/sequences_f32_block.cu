// Sequences in f32, a tile in one block.

#include "kernels/cuda/gru/sequences.cuh"

namespace lowbit::cuda::gru {

std::span<const SequenceKernel> sequences_f32_block() {
  static constexpr SequenceKernel kList[] = {
      sequence_kernel<Floats, 1, GruPath::kBlock, true, true, 2>(),
      sequence_kernel<Floats, 1, GruPath::kBlock, true>(),
      sequence_kernel<Floats, 1, GruPath::kBlock, false, true, 2>(),
      sequence_kernel<Floats, 1, GruPath::kBlock>(),
      sequence_kernel<Floats, 4, GruPath::kBlock>(),
  };
  return kList;
}

}  // namespace lowbit::cuda::gru
