// Sequences in f32, a tile in blocks that exchange through global memory; the last two read the weights from there.

#include "kernels/cuda/gru/sequences.cuh"

namespace lowbit::cuda::gru {
namespace {

template <int NT, int KT, GruPath P, bool Single = false, bool Resident = true>
constexpr SequenceKernel kernel() {
  return sequence_kernel<Config<Floats, NT, KT, P, Resident, Single>>();
}

constexpr SequenceKernel kList[] = {
    kernel<1, 0, GruPath::kGrid>(),
    kernel<2, 0, GruPath::kGrid>(),
    kernel<4, 0, GruPath::kGrid>(),
    kernel<1, 0, GruPath::kGrid, false, false>(),
    kernel<4, 0, GruPath::kGrid, false, false>(),
};

}  // namespace

std::span<const SequenceKernel> sequences_f32_grid() { return kList; }

}  // namespace lowbit::cuda::gru
