#pragma once
// In place of src/kernels/cuda/step_copies.cuh, for a host compiler.

#include "kernels/cuda/half_matrices.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {

inline void copy_async_8(uint32_t to, const void* from) { std::memcpy(shared_memory + to, from, 8); }

template <int kCount>
void sync_threads_at(int barrier) {
  static fibers::Meeting meetings[16];
  meetings[barrier].wanted = kCount;
  fibers::meet(meetings[barrier]);
}

}  // namespace lowbit::cuda
