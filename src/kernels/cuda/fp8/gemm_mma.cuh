#pragma once
// The product of FP8 codes by mma.sync, on whatever Cores multiply: docs/kernels.md#on-a-gpu.
//
// A block of 128 columns is summed in f32 by the tensor cores, and then scaled. Codes become what is multiplied once,
// on their way to shared memory; the next ones are in registers meanwhile. The order of columns within a block is free:
// lane t of four takes 16 bytes of a row, for two products.
//
// Cores: kBytes of a code in shared memory; kFactor, what the sums are too small by; kMarksNan, whether NaN has to be
// looked for; store(), 16 codes; multiply().

#include "kernels/cuda/fp8/gemm_mma.h"

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/fp8/groups.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda::fp8 {

constexpr int kMmaThreads = 256, kCodes = kFp8Block;

/// Warps, Down of them over each other, each with 16 MF rows of a and 8 NF of b.
template <class Cores, int Down, int MF, int NF>
struct MmaTile {
  static constexpr int kAcross = 8 / Down, kM = 16 * MF * Down, kN = 8 * NF * kAcross;
  static constexpr int kRowBytes = Cores::kBytes * kCodes;
  static constexpr int kAPieces = (kM * 8 + kMmaThreads - 1) / kMmaThreads, kBPieces = kN * 8 / kMmaThreads;
  static_assert(kN * 8 % kMmaThreads == 0);
  static constexpr int kShared = (kM + kN) * (kRowBytes + 4);
};

/// Codes [at, at + 16) of a row, zeros from `left` on.
__device__ __forceinline__ uint4 load_codes(const uint8_t* codes, int64_t left, bool aligned) {
  if (left <= 0) return uint4{0, 0, 0, 0};
  if (aligned && left >= 16) return __ldg(reinterpret_cast<const uint4*>(codes));
  uint32_t word[4] = {};
  for (int i = 0; i < 16; ++i)
    if (i < left) word[i / 4] |= uint32_t{codes[i]} << (8 * (i % 4));
  return uint4{word[0], word[1], word[2], word[3]};
}

/// Piece of 16 bytes of a row; two neighbouring rows have theirs in other banks.
template <class Cores>
__device__ __forceinline__ int place(int row, int piece) {
  return row * (Cores::kBytes * kCodes) + ((piece ^ ((row & 1) << 2)) << 4);
}

__device__ __forceinline__ bool has_nan(uint32_t codes) {
  return (((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0;
}

/// A block of K of kRows rows of one operand.
template <int kRows, int kPieces>
struct Fetched {
  uint4 codes[kPieces];
  __device__ __forceinline__ void load(const uint8_t* from, int64_t ld, int64_t row0, int64_t rows, int64_t k0,
                                       int64_t k, bool aligned) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int i = static_cast<int>(threadIdx.x) + kMmaThreads * j;
      const int64_t row = row0 + i / 8, at = k0 + i % 8 * 16;
      codes[j] = load_codes(from + row * ld + at, i < 8 * kRows && row < rows ? k - at : 0, aligned);
    }
  }
  template <class Cores>
  __device__ __forceinline__ void store(uint8_t* to, int* nan) const {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int i = static_cast<int>(threadIdx.x) + kMmaThreads * j, row = i / 8;
      if (i >= 8 * kRows) break;
      const uint4 c = codes[j];
      if (Cores::kMarksNan && (has_nan(c.x) || has_nan(c.y) || has_nan(c.z) || has_nan(c.w))) nan[row] = 1;
      Cores::store(to, row, i % 8, c);
    }
  }
};

template <class Cores, class T, int MF, int NF>
__device__ __forceinline__ void multiply_block(const uint8_t* a, const uint8_t* b, float (&s)[MF][NF][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4,
            t = lane % 4;
  const int row0 = warp / T::kAcross * 16 * MF + g, column0 = warp % T::kAcross * 8 * NF + g;
#pragma unroll
  for (int sub = 0; sub < T::kRowBytes / 64; ++sub) {
    uint4 of_b[NF];
#pragma unroll
    for (int j = 0; j < NF; ++j)
      of_b[j] = *reinterpret_cast<const uint4*>(b + place<Cores>(column0 + 8 * j, 4 * sub + t));
#pragma unroll
    for (int i = 0; i < MF; ++i) {
      const uint4 upper = *reinterpret_cast<const uint4*>(a + place<Cores>(row0 + 16 * i, 4 * sub + t));
      const uint4 lower = *reinterpret_cast<const uint4*>(a + place<Cores>(row0 + 16 * i + 8, 4 * sub + t));
#pragma unroll
      for (int j = 0; j < NF; ++j) {
        Cores::multiply(s[i][j], upper.x, lower.x, upper.y, lower.y, of_b[j].x, of_b[j].y);
        Cores::multiply(s[i][j], upper.z, lower.z, upper.w, lower.w, of_b[j].z, of_b[j].w);
      }
    }
  }
}

__device__ __forceinline__ void store_result(const DeviceGemm& g, int64_t i, int64_t j, float v) {
  const int64_t at = i * g.ldc + j;
  if (g.bias != nullptr) v = __fadd_rn(v, g.bias[j]);
  if (g.element == Fp8Element::kF32)
    static_cast<float*>(g.c)[at] = v;
  else
    static_cast<uint16_t*>(g.c)[at] = g.element == Fp8Element::kF16 ? f16_nearest(v) : f32_to_bf16(v);
}

template <class T, int MF, int NF>
__device__ __forceinline__ void store_results(const DeviceGemm& g, int64_t m0, int64_t n0, const int* a_nan,
                                              const int* b_nan, const float (&acc)[MF][NF][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp / T::kAcross * 16 * MF + lane / 4, column0 = warp % T::kAcross * 8 * NF + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2 * MF; ++i) {
    const int row = row0 + 8 * i;
    if (m0 + row >= g.m) continue;
#pragma unroll
    for (int j = 0; j < 2 * NF; ++j) {
      const int column = column0 + 8 * (j / 2) + j % 2;
      if (n0 + column >= g.n) continue;
      const float v = acc[i / 2][j / 2][i % 2 * 2 + j % 2];
      store_result(g, m0 + row, n0 + column, (a_nan[row] | b_nan[column]) != 0 ? bits_to_f32(0x7fc00000u) : v);
    }
  }
}

template <class Cores, int Down, int MF, int NF>
__global__ void __launch_bounds__(kMmaThreads, 2)
    multiply_mma(const __grid_constant__ DeviceGemm whole, const __grid_constant__ Fp8Groups groups, bool a_aligned,
                 bool b_aligned) {
  using T = MmaTile<Cores, Down, MF, NF>;
  DeviceGemm g = whole;
  LOWBIT_DYNAMIC_SHARED(shared);
  uint8_t *const a = shared, *const b = shared + T::kM * T::kRowBytes;
  int *const a_nan = reinterpret_cast<int*>(b + T::kN * T::kRowBytes), *const b_nan = a_nan + T::kM;
  const int64_t across = (g.n + T::kN - 1) / T::kN, n0 = blockIdx.x % across * T::kN;
  TileOfGroup rows{0, g.m, 0, static_cast<int>(blockIdx.x / across)};
  if (groups.count > 0) rows = tile_of_groups<T::kM>(groups, g.m, blockIdx.x / across, 1);
  const int64_t m0 = rows.first + int64_t{rows.tile} * T::kM;
  if (!rows.exists()) return;
  g.m = rows.last;
  g.b += rows.group * g.n * g.ldb;
  g.b_scales += rows.group * ((g.n + g.b_rows - 1) / g.b_rows) * g.ldb_scales;
  for (int i = static_cast<int>(threadIdx.x); i < T::kM + T::kN; i += kMmaThreads) a_nan[i] = 0;
  const int row0 = static_cast<int>(threadIdx.x) / 32 / T::kAcross * 16 * MF + static_cast<int>(threadIdx.x) % 32 / 4;
  const float* const b_scales = g.b_scales + n0 / g.b_rows * g.ldb_scales;
  float acc[MF][NF][4] = {};
  Fetched<T::kM, T::kAPieces> of_a;
  Fetched<T::kN, T::kBPieces> of_b;
  of_a.load(g.a, g.lda, m0, g.m, 0, g.k, a_aligned);
  of_b.load(g.b, g.ldb, n0, g.n, 0, g.k, b_aligned);
  for (int64_t k0 = 0, block = 0; k0 < g.k; k0 += kCodes, ++block) {
    __syncthreads();
    of_a.template store<Cores>(a, a_nan);
    of_b.template store<Cores>(b, b_nan);
    __syncthreads();
    of_a.load(g.a, g.lda, m0, g.m, k0 + kCodes, g.k, a_aligned);
    of_b.load(g.b, g.ldb, n0, g.n, k0 + kCodes, g.k, b_aligned);
    float s[MF][NF][4] = {}, scales[2 * MF];
#pragma unroll
    for (int i = 0; i < 2 * MF; ++i) {
      const int64_t row = min(m0 + row0 + 8 * i, g.m - 1);
      scales[i] = g.a_scales[g.a_scales_by_column ? block * g.lda_scales + row : row * g.lda_scales + block];
    }
    const float b_scale = b_scales[block];
    multiply_block<Cores, T>(a, b, s);
#pragma unroll
    for (int i = 0; i < MF; ++i)
#pragma unroll
      for (int j = 0; j < NF; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          acc[i][j][e] =
              __fmaf_rn(__fmul_rn(__fmul_rn(s[i][j][e], Cores::kFactor), scales[2 * i + e / 2]), b_scale, acc[i][j][e]);
  }
  __syncthreads();
  store_results<T>(g, m0, n0, a_nan, b_nan, acc);
}

template <class Cores, int Down, int MF, int NF>
cudaError_t launch_tiles(const DeviceGemm& g, const Fp8Groups& groups, const Device& device, cudaStream_t stream) {
  using T = MmaTile<Cores, Down, MF, NF>;
  const int64_t tiles = most_group_tiles(groups, g.m, T::kM) * ((g.n + T::kN - 1) / T::kN);
  if (tiles == 0) return cudaSuccess;
  if (tiles > (int64_t{1} << 31) - 1) return cudaErrorInvalidConfiguration;
  const auto kernel = multiply_mma<Cores, Down, MF, NF>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const auto aligned = [](const void* p, int64_t ld) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && ld % 16 == 0;
  };
  return launch(kernel, dim3(static_cast<unsigned>(tiles)), dim3(kMmaThreads), T::kShared, stream, false, g, groups,
                aligned(g.a, g.m > 1 ? g.lda : 0), aligned(g.b, g.n > 1 ? g.ldb : 0));
}

/// A product on such cores.
template <class Cores>
cudaError_t launch_mma(const DeviceGemm& g, const Fp8Groups& groups, const Device& device, cudaStream_t stream) {
  constexpr int kSkinnyTokens = 32;
  const int64_t rows = groups.count > 0 ? g.m / groups.count : g.m;  // of a group, in the mean
  return rows <= kSkinnyTokens ? launch_tiles<Cores, 1, 1, 1>(g, groups, device, stream)
                               : launch_tiles<Cores, 4, 2, 4>(g, groups, device, stream);
}

}  // namespace lowbit::cuda::fp8
