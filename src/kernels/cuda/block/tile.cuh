#pragma once
// 128 x 128 outputs of a product in f32 on 256 threads. Every output is one chain of fma that ascends along the
// reduction: the order of docs/numerics.md#matmul, whatever the tile.

#include <cuda_runtime.h>

#include <cstdint>

namespace lowbit::cuda::block {

constexpr int kTile = 128, kTileDepth = 16, kTileThreads = 256;
constexpr int kPitch =
    kTile + 4;             // of a row in shared memory: float4s stay aligned, transposed stores spread over the banks
constexpr int kMicro = 8;  // outputs of a thread: kMicro x kMicro

using TileRows = float[kTileDepth][kPitch];  // [step of the reduction][output]

/// The elements that a thread copies from global to shared memory.
struct Parcel {
  float4 part[2];
};

__device__ __forceinline__ float4 load_parcel(const float* p, int64_t count, bool aligned) {
  if (aligned && count >= 4) return *reinterpret_cast<const float4*>(p);
  float4 v = {0, 0, 0, 0};
  if (count > 0) v.x = p[0];
  if (count > 1) v.y = p[1];
  if (count > 2) v.z = p[2];
  if (count > 3) v.w = p[3];
  return v;
}

/// Outputs are rows of [outputs, depth].
struct OutputsAreRows {
  const float* data;
  int64_t outputs, depth, first;

  __device__ __forceinline__ void load(int64_t step, Parcel& parcel) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kTileThreads;
      const int64_t row = first + at / 4, column = step * kTileDepth + at % 4 * 4;
      parcel.part[i] = load_parcel(data + row * depth + column, row < outputs ? depth - column : 0, depth % 4 == 0);
    }
  }
  __device__ __forceinline__ void store(const Parcel& parcel, TileRows& to) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kTileThreads, row = at / 4, column = at % 4 * 4;
      to[column][row] = parcel.part[i].x;
      to[column + 1][row] = parcel.part[i].y;
      to[column + 2][row] = parcel.part[i].z;
      to[column + 3][row] = parcel.part[i].w;
    }
  }
};

/// Outputs are columns of [depth, outputs].
struct OutputsAreColumns {
  const float* data;
  int64_t outputs, depth, first;

  __device__ __forceinline__ void load(int64_t step, Parcel& parcel) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kTileThreads;
      const int64_t row = step * kTileDepth + at / 32, column = first + at % 32 * 4;
      parcel.part[i] = load_parcel(data + row * outputs + column, row < depth ? outputs - column : 0, outputs % 4 == 0);
    }
  }
  __device__ __forceinline__ void store(const Parcel& parcel, TileRows& to) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kTileThreads;
      *reinterpret_cast<float4*>(&to[at / 32][at % 32 * 4]) = parcel.part[i];
    }
  }
};

/// Where in the tile a thread's outputs are: a warp has 64 x 32 of them, a lane two runs of four in each direction.
__device__ __forceinline__ int output_row(int i) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  return warp / 4 * 64 + i / 4 * 32 + lane / 4 * 4 + i % 4;
}
__device__ __forceinline__ int output_column(int j) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  return warp % 4 * 32 + j / 4 * 16 + lane % 4 * 4 + j % 4;
}

using Sums = float[kMicro][kMicro];

/// One step of the reduction; `rows` gets a's elements.
__device__ __forceinline__ void add_step(const float (&a)[kPitch], const float (&b)[kPitch], Sums& sums,
                                         float (&rows)[kMicro]) {
  float columns[kMicro];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    *reinterpret_cast<float4*>(&rows[4 * half]) = *reinterpret_cast<const float4*>(&a[output_row(4 * half)]);
    *reinterpret_cast<float4*>(&columns[4 * half]) = *reinterpret_cast<const float4*>(&b[output_column(4 * half)]);
  }
#pragma unroll
  for (int i = 0; i < kMicro; ++i)
#pragma unroll
    for (int j = 0; j < kMicro; ++j) sums[i][j] = __fmaf_rn(rows[i], columns[j], sums[i][j]);
}

/// Calls use(step, a, b) for every kTileDepth of the reduction, with both operands' tiles in shared memory, the next
/// ones on their way. Behind the last of them come zeros, which change no sum.
template <class A, class B, class Use>
__device__ __forceinline__ void each_step(const A& a, const B& b, int64_t depth, const Use& use) {
  __shared__ __align__(16) float tiles[2][2][kTileDepth][kPitch];
  const int64_t steps = (depth + kTileDepth - 1) / kTileDepth;
  Parcel from_a, from_b;
  a.load(0, from_a);
  b.load(0, from_b);
  a.store(from_a, tiles[0][0]);
  b.store(from_b, tiles[0][1]);
  __syncthreads();
  for (int64_t step = 0; step < steps; ++step) {
    const int now = static_cast<int>(step % 2);
    const bool more = step + 1 < steps;
    if (more) {
      a.load(step + 1, from_a);
      b.load(step + 1, from_b);
    }
    use(step, tiles[now][0], tiles[now][1]);
    if (more) {
      a.store(from_a, tiles[1 - now][0]);
      b.store(from_b, tiles[1 - now][1]);
    }
    __syncthreads();
  }
}

}  // namespace lowbit::cuda::block
