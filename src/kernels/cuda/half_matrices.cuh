#pragma once
// Products of f16 matrices on tensor cores, what brings their operands to shared memory, and powers of two.

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {

/// Two f16 in a word, the first in its low half.
__device__ __forceinline__ uint32_t f16_pair(float first, float second) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

/// c[16, 8] += a[16, 16] b[16, 8] in f16 with f32 sums. Lane 4 g + t holds rows g and g + 8 of a at columns 2 t.. and
/// 8 + 2 t.., column g of b at the same, and c[g][2t], c[g][2t+1], c[g+8][2t], c[g+8][2t+1]. Not volatile: the compiler
/// may move products that do not depend on each other.
__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// Four matrices of 8 x 8 elements of 16 bits from shared memory; lane 8 i + r points to row r of matrix i. Lane 4 g +
/// t holds columns 2 t and 2 t + 1 of row g; transposed: rows 2 t and 2 t + 1 of column g.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_transposed_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

/// The transposed matrix of 8 x 8 elements of 16 bits: lane 4 g + t has columns 2 t and 2 t + 1 of row g, before and
/// behind.
__device__ __forceinline__ uint32_t transposed_matrix(uint32_t pair) {
  uint32_t to;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pair));
  return to;
}

/// Copies of this thread since the last end form a group; waits until at most kLeft groups are under way.
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// 2 to the power of x, to about 22 bits; results that are not normal are 0.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace lowbit::cuda
