#pragma once
// Functions with one copy for each width of vector, chosen when the program starts. Internal to src/quantize.
//
// Without contraction (-ffp-contract=off) every copy rounds the same way. Sanitizers do not support functions resolved
// that early.

#include <cstddef>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define LOWBIT_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
/// For copies that are written out, of one name and one file: which processors a copy is for.
#define LOWBIT_HAS_VECTOR_VERSIONS 1
#define LOWBIT_VECTOR_VERSION(isa) __attribute__((target(isa)))
#else
#define LOWBIT_VECTOR_CLONES
#define LOWBIT_VECTOR_VERSION(isa)
#endif
/// Likewise for copies with fused multiply-adds, which clang has, too: without them each is a call.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LOWBIT_HAS_FUSED_VERSIONS 1
#define LOWBIT_FUSED_VERSION(isa) __attribute__((target(isa)))
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wunused-function"  // clang takes copies for that
#endif
#else
#define LOWBIT_FUSED_VERSION(isa)
#endif

namespace lowbit {

/// a * b + c, rounded once, in each lane: one instruction in a copy for avx2,fma or avx512f. The copy for other
/// processors calls the C library.
template <class Vec>
[[gnu::always_inline]] inline Vec fused(Vec a, Vec b, Vec c) {
  Vec sum;
  constexpr size_t kLanes = sizeof(Vec) / sizeof(a[0]);
#pragma GCC unroll 16
  for (size_t i = 0; i < kLanes; ++i) {
    if constexpr (sizeof(a[0]) == sizeof(double))
      sum[i] = __builtin_fma(a[i], b[i], c[i]);
    else
      sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
  }
  return sum;
}

}  // namespace lowbit
