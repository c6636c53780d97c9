// The product of FP8 codes by mma.sync on E4M3, as they are: from compute capability 8.9 on. NaN needs no care. On 9.0
// sums have all bits of f32, on 8.9 they are the hardware's.

#include "kernels/cuda/fp8/gemm_mma.cuh"

namespace lowbit::cuda::fp8 {
namespace {

struct E4m3Cores {
  static constexpr int kBytes = 1;
  static constexpr float kFactor = 1;
  static constexpr bool kMarksNan = false;
  static __device__ __forceinline__ void store(uint8_t* to, int row, int piece, const uint4& c) {
    *reinterpret_cast<uint4*>(to + place<E4m3Cores>(row, piece)) = c;
  }
  static __device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                  uint32_t b0, uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
  }
};

}  // namespace

cudaError_t launch_mma_e4m3(const DeviceGemm& g, const Fp8Groups& groups, const Device& device, cudaStream_t stream) {
  return launch_mma<E4m3Cores>(g, groups, device, stream);
}

}  // namespace lowbit::cuda::fp8
