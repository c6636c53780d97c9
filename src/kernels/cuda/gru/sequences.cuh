#pragma once
// All steps of a tile of sequences in one launch: R stays on the chip, h goes round.
//
// A warp owns a group of 16 units: their three gates' rows of R times the codes of h of 8 NT sequences on the matrix
// unit, then gates and state in the lanes that hold the sums (a lane has units 2 i and 2 i + 1 of two sequences per 8).
// Or two warps do, each with half of the columns, which then all fit its registers, and for half of the sequences. New
// codes go to
//   kBlock:   the other half of shared memory, one __syncthreads a step;
//   kCluster: every block's shared memory by st.async or bulk copies, which count bytes on the receiver's barrier: one
//             trip a step. A block sends step s + 1 only after it has all of step s, which every warp sent after its
//             last read of step s - 1: two halves suffice;
//   kGrid:    global memory, then a flag per block; blocks that share a tile run at the same time (cooperative launch).
// A step is a chain of dependent instructions, so nothing stands in it that can be done beside it: what is constant is
// held in registers, ih is copied into shared memory steps ahead, y is written while codes of h are on their way to
// other blocks or, in one block and through global memory, while the matrix unit works on the next step.

#include <span>

#include "kernels/cuda/gru/sequence_gates.cuh"

namespace lowbit::cuda::gru {

template <class C>
__device__ __forceinline__ void step_once(Warp<C>& w, int step, int steps, int slot, uint32_t epoch) {
  const int half = C::kHalves == 2 ? step % 2 : 0;
  const uint32_t now = half != 0 ? w.half_bytes : 0;
  typename C::T parts[C::kOwnTiles][C::kPerTile][3];
  if (C::kPartsAhead && w.works) w.load_parts(step, parts);
  // Warps without units send nothing, so nobody waits for them: they may not wait for a phase that has gone by.
  if (C::P == GruPath::kCluster && step > 0 && w.works) wait_for_h(w, step);
  if (w.works) {
    typename Warp<C>::Sums acc = {};
    multiply(w, w.h_get + now, acc);
    if (!C::kSingle && !C::kWorksBehind) work_beside(w, step);
    if (!C::kPartsAhead) w.load_parts(step, parts);
    if constexpr (C::S == 1) {
      update_state(w, acc, parts, step);
    } else {
      int sums[3][C::kElements];
      gather(w, acc, sums);
      update_state(w, sums, parts, step);
    }
  }
  if (C::P == GruPath::kBlock) {
    w.put(w.h_put + w.half_bytes - now, w.plane_bytes);
    __syncthreads();
  } else if (C::P == GruPath::kGrid) {
    exchange_h(w, slot, epoch, 1 - half);
  } else if (w.works && step + 1 < steps) {
    send_h(w, 1 - half);
    if (C::kWorksBehind) work_beside(w, step + 1);
  }
}

template <class C>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) run_sequences(const __grid_constant__ SequenceArgs args) {
  const Elements<typename C::N> elements(args.cell);
  Warp<C> w(args, elements, block_memory());
  w.load_constants();
  if (C::P == GruPath::kCluster) {
    init_barriers(w);
    cluster_sync();
  }
  wait_for_predecessor();
  const int slot = int(blockIdx.x) / args.blocks;
  uint32_t epoch = 0;
  for (int tile = slot; tile * C::kTile < args.call.s.batch; tile += args.at_once) {
    __syncthreads();
    const int steps = w.begin(tile);
    __syncthreads();
    for (int step = 0; step < steps; ++step, ++epoch) step_once(w, step, steps, slot, epoch);
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
