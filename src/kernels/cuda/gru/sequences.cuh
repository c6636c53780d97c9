#pragma once
// All steps of a tile of sequences in one launch: R stays on the chip, h goes round.
//
// A warp owns a group of 16 units: their three gates' rows of R times the codes of h of 8 NT sequences on the matrix unit, then
// gates and state in the lanes that hold the sums (a lane has units 2 i and 2 i + 1 of two sequences per 8). Or two warps do, each
// with half of the columns, which then all fit its registers, and for half of the sequences. New codes go to
//   kBlock:   the other half of shared memory, one __syncthreads a step;
//   kCluster: every block's shared memory by st.async, which counts bytes on the receiver's barrier: one trip a step. A block sends
//             step s + 1 only after it has all of step s, which every warp sent after its last read of step s - 1: two halves suffice;
//   kGrid:    global memory, then a flag per block; blocks that share a tile run at the same time (cooperative launch).
// A step is a chain of dependent instructions, so nothing stands in it that can be done beside it: what is constant is held in
// registers, ih is copied into shared memory steps ahead, y of the step before is written while the matrix unit works.

#include <span>

#include "kernels/cuda/gru/sequence_warp.cuh"

namespace lowbit::cuda::gru {

template <class C>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) run_sequences(const __grid_constant__ SequenceArgs args) {
  const Elements<typename C::N> elements(args.cell);
  Warp<C> w(args, elements, block_memory());
  w.load_constants();
  const uint32_t expected = uint32_t(args.cell.groups * kGroup * C::kSent * C::L);
  if (C::P == GruPath::kCluster) {
    if (threadIdx.x == 0) {
      barrier_init(w.barrier(0), 1);
      barrier_init(w.barrier(1), 1);
      barriers_visible();
      expect_bytes(w.barrier(0), expected);
      expect_bytes(w.barrier(1), expected);
    }
    cluster_sync();
  }
  wait_for_predecessor();
  const int slot = int(blockIdx.x) / args.blocks;
  uint32_t epoch = 0;
  for (int tile = slot; tile * C::kTile < args.call.s.batch; tile += args.at_once) {
    __syncthreads();
    const int steps = w.begin(tile);
    __syncthreads();
    for (int step = 0; step < steps; ++step, ++epoch) w.step_once(step, steps, slot, epoch, expected);
    if (w.works && steps > 0) w.write_y(steps - 1);
    copies_wait<0>();
    // All blocks have read the first states once they have sent something; in one step they send nothing.
    if (C::P == GruPath::kCluster && steps == 1) cluster_sync();
    w.write_state(tile);
  }
  __syncthreads();
  if (C::P == GruPath::kCluster) cluster_sync();  // shared memory stays until no block sends
}

/// A kernel and the shape that it is for.
struct SequenceKernel {
  Number number;
  bool resident, single;
  GruPath path;
  int tiles8, in_registers, split;
  void (*run)(SequenceArgs);
};
/// For cells of `Ksteps` ksteps, and all with as many in registers.
template <class N, int NT, GruPath P, bool Single = false, bool Resident = true, int Ksteps = 4, int Split = 1>
constexpr SequenceKernel sequence_kernel() {
  constexpr int kIn = ksteps_in_registers(N::kNumber, P, NT, Resident, Ksteps, Split);
  return {N::kNumber, Resident, Single, P,
          NT,         kIn,      Split,  run_sequences<Config<N, NT, P, Resident, Single, kIn, Split>>};
}
// One list per translation unit, so that they compile side by side.
std::span<const SequenceKernel> sequences_f32_block();
std::span<const SequenceKernel> sequences_f32_cluster();
std::span<const SequenceKernel> sequences_f32_grid();
std::span<const SequenceKernel> sequences_f64();

}  // namespace lowbit::cuda::gru
