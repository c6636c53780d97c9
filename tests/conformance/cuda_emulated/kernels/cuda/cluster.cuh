#pragma once
// In place of src/kernels/cuda/cluster.cuh, for a host compiler: behind block_fibers.h.

namespace lowbit::cuda {

inline void cluster_begins() { fibers::arrive_at_cluster(); }
inline void cluster_arrives() { fibers::arrive_at_cluster(); }
inline void cluster_waits() { fibers::wait_for_cluster(); }
inline void store_in_block(float* to, int rank, float v) { *fibers::in_block(to, rank) = v; }

}  // namespace lowbit::cuda
