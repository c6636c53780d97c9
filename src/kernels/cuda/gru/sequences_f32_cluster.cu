// Sequences in f32, a tile in a cluster.

#include "kernels/cuda/gru/sequences.cuh"

namespace lowbit::cuda::gru {
namespace {

template <int NT, int KT, GruPath P, bool Single = false, bool Resident = true>
constexpr SequenceKernel kernel() {
  return sequence_kernel<Config<Floats, NT, KT, P, Resident, Single>>();
}

constexpr SequenceKernel kList[] = {
    kernel<1, 8, GruPath::kCluster, true>(), kernel<1, 0, GruPath::kCluster, true>(), kernel<1, 8, GruPath::kCluster>(),
    kernel<1, 0, GruPath::kCluster>(),       kernel<2, 0, GruPath::kCluster>(),       kernel<4, 0, GruPath::kCluster>(),
};

}  // namespace

std::span<const SequenceKernel> sequences_f32_cluster() { return kList; }

}  // namespace lowbit::cuda::gru
