#pragma once
// In place of src/kernels/cuda/team_barrier.cuh.

#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {

inline void team_barrier(int id, int threads) {
  static fibers::Meeting meetings[16];
  fibers::Meeting& meeting = meetings[id];
  meeting.wanted = threads;
  fibers::meet(meeting);
}

inline void barrier_arrive(uint32_t barrier) {
  PhaseBarrier& at = barrier_at(barrier);
  if (++at.arrived == at.wanted) at.arrived = 0, ++at.phases;
}

}  // namespace lowbit::cuda
