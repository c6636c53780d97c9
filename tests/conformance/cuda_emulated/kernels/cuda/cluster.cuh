#pragma once
// Clusters on fibers: the emulated device has none, so that nobody calls these.

#include <cuda_runtime.h>

#include <cstdint>

namespace lowbit::cuda {

inline void arrive_in_cluster() {}
inline void wait_for_cluster() {}
inline uint32_t address_in_cluster(const void*, int) { return 0; }
inline void store_in_cluster(uint32_t, float, uint32_t) {}
inline void store_in_cluster(uint32_t, float2, uint32_t) {}
inline void expect_in_cluster(uint64_t*, int) {}
inline void wait_for_stores(uint64_t*) {}

}  // namespace lowbit::cuda
