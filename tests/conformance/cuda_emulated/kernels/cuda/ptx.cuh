#pragma once
// In place of src/kernels/cuda/ptx.cuh: what kernels of cuda/block/ need of it, for a host compiler. Launches run one
// after the other, copies at once.

#include <cstdint>
#include <cstring>

#include "tests/conformance/cuda_emulated/block_fibers.h"

#define LOWBIT_SM90 1

namespace lowbit::cuda {

/// Shared memory is NaN until a block has written it.
#define LOWBIT_DYNAMIC_SHARED(name)            \
  alignas(128) static uint8_t name[227 << 10]; \
  shared_memory = name;                        \
  if (threadIdx.x == 0) std::memset(name, 0xff, sizeof(name))
inline uint8_t* shared_memory = nullptr;
inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(p) - shared_memory);
}

inline void let_successor_start() {}
inline void wait_for_predecessor() {}
inline void wait_for_predecessor_with(const void*, const void*, uint32_t, int, int) {}
inline void copy_to_shared_16(void* to, const void* from) { std::memcpy(to, from, 16); }
inline void copy_async_16(uint32_t to, const void* from) { std::memcpy(shared_memory + to, from, 16); }
inline void wait_for_all_copies() {}

/// How many of a barrier's phases are over; a copy ends one, or all arrivals do that it wants.
struct PhaseBarrier {
  uint32_t phases;
  uint16_t wanted, arrived;
};
inline PhaseBarrier& barrier_at(uint32_t barrier) { return *reinterpret_cast<PhaseBarrier*>(shared_memory + barrier); }
inline void barrier_init(uint32_t barrier, uint32_t wanted) {
  barrier_at(barrier) = {0, static_cast<uint16_t>(wanted), 0};
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (barrier_at(barrier).phases % 2 == parity) fibers::yield();
}
inline void barrier_expect(uint32_t, uint32_t) {}
inline void barriers_visible_to_copies() {}
inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  std::memcpy(shared_memory + to, from, bytes);
  ++barrier_at(barrier).phases;
}

}  // namespace lowbit::cuda
