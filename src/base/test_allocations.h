#pragma once
// Counts calls of malloc and of what ends there. For a test program's only translation unit: it replaces the functions.
// Defines LOWBIT_COUNTS_ALLOCATIONS where that can be done; sanitizers replace them themselves.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <utility>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LOWBIT_COUNTS_ALLOCATIONS 1

namespace lowbit {
inline std::atomic<int64_t> allocations{0};
inline thread_local bool fail_next_allocation = false;  // of malloc, by this thread
}  // namespace lowbit

// glibc's own names of the functions that these replace; operator new ends here, too.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* p, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
  lowbit::allocations.fetch_add(1, std::memory_order_relaxed);
  if (std::exchange(lowbit::fail_next_allocation, false)) return nullptr;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  lowbit::allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}
void* realloc(void* p, size_t bytes) {
  lowbit::allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(p, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  lowbit::allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, bytes);
}
}

#endif
