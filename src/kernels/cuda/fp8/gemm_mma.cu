// The product of FP8 codes by mma.sync on f16: W8A16 in the field's words, with both operands stored as FP8.
//
// The bits of an E4M3 code, moved, are those of an f16 number 2^-8 as large, its subnormals included. So products are
// exact, and a block's scale takes 2^16 in. NaN has other bits: rows and columns with one are noted. Codes 0, 2, 1, 3
// of a word follow each other.

#include "kernels/cuda/fp8/gemm_mma.cuh"

namespace lowbit::cuda {
namespace {

/// Codes 0 and 2 of a word, and 1 and 3, as f16 times 2^-8.
__device__ __forceinline__ uint2 as_halves(uint32_t codes) {
  return uint2{(codes & 0x007f007fu) << 7 | (codes & 0x00800080u) << 8,
               (codes & 0x7f007f00u) >> 1 | (codes & 0x80008000u)};
}

struct HalfCores {
  static constexpr int kBytes = 2;
  static constexpr float kFactor = 0x1p16f;
  static constexpr bool kMarksNan = true;
  static __device__ __forceinline__ void store(uint8_t* to, int row, int piece, const uint4& c) {
    const uint2 x = as_halves(c.x), y = as_halves(c.y), z = as_halves(c.z), w = as_halves(c.w);
    *reinterpret_cast<uint4*>(to + fp8::place<HalfCores>(row, 2 * piece)) = uint4{x.x, x.y, y.x, y.y};
    *reinterpret_cast<uint4*>(to + fp8::place<HalfCores>(row, 2 * piece + 1)) = uint4{z.x, z.y, w.x, w.y};
  }
  static __device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                  uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

}  // namespace

cudaError_t fp8::launch_mma_halves(const DeviceGemm& g, const Fp8Groups& groups, const Device& device,
                                   cudaStream_t stream) {
  return launch_mma<HalfCores>(g, groups, device, stream);
}

bool gemm_fp8_mma(const DeviceGemm& g, const Fp8Groups& groups, cudaStream_t stream, cudaError_t* error) {
  if (g.b_rows % kMmaScaleRows != 0) return false;
  Device device;
  *error = current_device(&device);
  if (*error != cudaSuccess) return true;
  *error = device.arch == kFirstWithE4m3 ? fp8::launch_mma_e4m3(g, groups, device, stream)
                                         : fp8::launch_mma_halves(g, groups, device, stream);
  return true;
}

}  // namespace lowbit::cuda
