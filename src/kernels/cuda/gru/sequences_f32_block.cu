// Sequences in f32, a tile in one block.

#include "kernels/cuda/gru/sequences.cuh"

namespace lowbit::cuda::gru {
namespace {

template <int NT, int KT, GruPath P, bool Single = false, bool Resident = true>
constexpr SequenceKernel kernel() {
  return sequence_kernel<Config<Floats, NT, KT, P, Resident, Single>>();
}

constexpr SequenceKernel kList[] = {
    kernel<1, 2, GruPath::kBlock, true>(), kernel<1, 4, GruPath::kBlock, true>(), kernel<1, 2, GruPath::kBlock>(),
    kernel<1, 4, GruPath::kBlock>(),       kernel<2, 0, GruPath::kBlock>(),       kernel<4, 0, GruPath::kBlock>(),
};

}  // namespace

std::span<const SequenceKernel> sequences_f32_block() { return kList; }

}  // namespace lowbit::cuda::gru
