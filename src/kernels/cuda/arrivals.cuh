#pragma once
// Thread blocks that wait for nobody, of which the last one goes on.

#include <cstdint>

namespace lowbit::cuda {

/// One thread of a block, behind a barrier: true for the last of `count` blocks; then *arrived is zero again. Stores of
/// the others' threads are there for load_from_others().
__device__ __forceinline__ bool arrives_last(uint32_t* arrived, uint32_t count) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
  if (before + 1 != count) return false;
  *arrived = 0;
  return true;
}
/// Reads a number that another block has stored, past the multiprocessor's own cache.
template <class T>
__device__ __forceinline__ T load_from_others(const T* from) {
  return __ldcg(from);
}

}  // namespace lowbit::cuda
