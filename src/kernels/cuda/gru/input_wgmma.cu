// The input product of many rows on sm_90a: bytes of x, sums in int32. A persistent block is two threads that ask for
// boxes of x and of W and two warpgroups that multiply, each its own rows of W by the tile's 128 rows of x. Weights
// come from shared memory to registers while the products before are under way; codes leave through shared memory as
// boxes.

#include <algorithm>

#include "kernels/cuda/gemm/primitives/ptx.cuh"
#include "kernels/cuda/gemm/primitives/wgmma.cuh"
#include "kernels/cuda/gru/device_cell.h"
#include "kernels/cuda/gru/rounding.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"

namespace lowbit::cuda::gru {
namespace {

constexpr int kWarpgroups = 2, kThreads = 128 * (kWarpgroups + 1);
constexpr int kRows = 128;                                      // of x in a tile
constexpr int kStageK = 128;                                    // columns of a stage: four ksteps
constexpr int kStageTileBytes = kStageK / kStepK * kTileBytes;  // of 16 rows of W
constexpr int kMostShared = 227 << 10;

/// 64 MmaRows rows of W for each warpgroup; codes of ih have Bytes bytes.
template <int MmaRows, int Bytes>
struct Tile {
  static constexpr int kMmaRows = MmaRows, kBytes = Bytes;
  static constexpr int kTiles = 4 * kMmaRows * kWarpgroups;  // of 16 rows of W
  static constexpr int kXStage = kRows * kStageK, kStage = kXStage + kTiles * kStageTileBytes;
  static constexpr int kBox = kRows * 64 * Bytes;  // codes of 64 rows of W
  static constexpr int kOut = kWarpgroups * kMmaRows * kBox;
  static constexpr int kStages = (kMostShared - kOut - 256) / kStage;
  static constexpr int kBarriers = kStages * kStage + kOut, kSharedBytes = kBarriers + 16 * kStages;
};

struct InputArgs {
  const int64_t* bias;
  const int32_t* shift;
  int32_t low, high, exact;
  int32_t tiles, stages;  // 16-row tiles of W, stages of K
  int32_t across, count;  // tiles of the product side by side, in all
  uint32_t* flags;
  int32_t flag_count;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// d[64, 128] (+)= a[64, 32] x[128, 32]^T, signed times unsigned.
__device__ __forceinline__ void wgmma_s8_u8(int* d, const uint4& a, uint64_t x, int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.u8 {" LOWBIT_R_64
               "}, {%64, %65, %66, %67}, %68, p; }"
               : LOWBIT_D_64("+r")
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(x), "r"(add));
}

template <class T>
struct Pipeline {
  uint32_t base;
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ uint32_t x() const { return base + uint32_t(stage * T::kStage); }
  __device__ __forceinline__ uint32_t full() const { return base + uint32_t(T::kBarriers + 16 * stage); }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
  __device__ __forceinline__ void next() {
    if (++stage == T::kStages) stage = 0, phase ^= 1;
  }
};

/// Asks for the stages of all tiles of the block: boxes of x, or of W.
template <class T, bool OfX>
__device__ __forceinline__ void ask(const InputArgs& p, const CUtensorMap* map, uint32_t base) {
  Pipeline<T> pipeline{base};
  int asked = 0;
  for (int at = int(blockIdx.x); at < p.count; at += int(gridDim.x))
    for (int s = 0; s < p.stages; ++s, ++asked, pipeline.next()) {
      if (asked >= T::kStages) barrier_wait(pipeline.empty(), pipeline.phase ^ 1);
      barrier_expect(pipeline.full(), OfX ? T::kXStage : T::kStage - T::kXStage);
      if (OfX)
        box_load(pipeline.x(), map, s * kStageK, at / p.across * kRows, pipeline.full());
      else  // in words of eight bytes
        box_load(pipeline.x() + T::kXStage, map, s * kStageTileBytes / 8, at % p.across * T::kTiles, pipeline.full());
    }
}

template <class T>
struct Multiplier {
  Pipeline<T> pipeline;
  const uint8_t* weights;  // the lane's, in stage 0
  int d[T::kMmaRows][64];

  __device__ __forceinline__ void load(int half, uint4 (&a)[T::kMmaRows][2]) const {
    const uint8_t* const from = weights + pipeline.stage * T::kStage + half * 2 * kTileBytes;
#pragma unroll
    for (int u = 0; u < T::kMmaRows; ++u)
#pragma unroll
      for (int k = 0; k < 2; ++k)
        a[u][k] = *reinterpret_cast<const uint4*>(from + u * 4 * kStageTileBytes + k * kTileBytes);
  }
  __device__ __forceinline__ void multiply(int half, const uint4 (&a)[T::kMmaRows][2], bool add) {
    const uint64_t x = x_descriptor(pipeline.x()) + 4 * half;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int u = 0; u < T::kMmaRows; ++u) wgmma_s8_u8(d[u], a[u][k], x + 2 * k, k > 0 || add);
    wgmma_commit();
  }
  __device__ __forceinline__ void release(const Pipeline<T>& at) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(at.empty());
  }
  /// The tile's sums. Two groups of products are under way; behind stage `signal` the other warpgroup may begin.
  __device__ __forceinline__ void sum(int stages, int signal) {
    uint4 first[T::kMmaRows][2], second[T::kMmaRows][2];
    barrier_wait(pipeline.full(), pipeline.phase);
    load(0, first);
    Pipeline<T> previous = pipeline;
    for (int s = 0; s < stages; ++s) {
      multiply(0, first, s > 0);
      wgmma_wait<1>();
      if (s > 0) release(previous);
      load(1, second);
      multiply(1, second, true);
      wgmma_wait<1>();
      if (s == signal) named_arrive(kStagger, 256);
      previous = pipeline;
      pipeline.next();
      if (s + 1 < stages) {
        barrier_wait(pipeline.full(), pipeline.phase);
        load(0, first);
      }
    }
    wgmma_wait<0>();
    release(previous);
  }
  static constexpr int kStagger = 8;  // named barrier
};

/// A row's sums to codes.
struct Row {
  int32_t bias, low, high;
  Shift32 shift;
  __device__ __forceinline__ Row(const InputArgs& p, int row)
      : bias(int32_t(p.bias[row])), low(p.low), high(p.high), shift(p.shift[row]) {}
  __device__ __forceinline__ uint32_t code(int sum) const {
    return uint32_t(clamp<int32_t>(shift(int32_t(uint32_t(sum) + uint32_t(bias))), low, high) - low);
  }
};

/// Row for sums below 2^24, in f32, since integer instructions were the bottleneck of making codes. Adding 1.5 * 2^23
/// rounds half to even; what is too large for that is clamped, and the code is the last bits of what remains.
struct ExactRow {
  static constexpr float kMagic = 12582912.0f;
  static constexpr int kMostShift = 60;  // more give the same: 0, or a limit
  float bias, scale, low, high, to_code;
  __device__ __forceinline__ ExactRow(const InputArgs& p, int row)
      : bias(float(int32_t(p.bias[row]))),
        scale(__int_as_float((127 - max(-kMostShift, min(kMostShift, p.shift[row]))) << 23)),
        low(kMagic + float(p.low)),
        high(kMagic + float(p.high)),
        to_code(-float(p.low)) {}
  __device__ __forceinline__ uint32_t code(int sum) const {
    const float rounded = __fmaf_rn(__fadd_rn(float(sum), bias), scale, kMagic);
    return uint32_t(__float_as_int(__fadd_rn(fminf(fmaxf(rounded, low), high), to_code)));
  }
};

/// The codes of 64 rows of W into their box: rows of x of 64 Bytes bytes, 16-byte parts exchanged as the copy engine
/// puts them back.
template <class T, class R>
__device__ __forceinline__ void put_codes(const R& first, const R& second, const int* d, uint8_t* box) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4;
  const int byte = (16 * warp + 2 * (lane / 4)) * T::kBytes;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = 2 * (lane % 4) + e;  // and every eighth from there
    const int part = (byte / 16) ^ (T::kBytes == 1 ? row >> 1 & 3 : row);
    uint8_t* const to = box + row * 64 * T::kBytes + part * 16 + byte % 16;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const uint32_t one = first.code(d[4 * j + e]), two = second.code(d[4 * j + e + 2]);
      if constexpr (T::kBytes == 1)
        *reinterpret_cast<uint16_t*>(to + j * 8 * 64) = uint16_t(__byte_perm(one, two, 0x0040));
      else
        *reinterpret_cast<uint32_t*>(to + j * 8 * 128) = __byte_perm(one, two, 0x5410);
    }
  }
}

template <class T>
__device__ __forceinline__ void multiply_tiles(const InputArgs& p, const CUtensorMap* out_map, uint8_t* shared,
                                               uint32_t base) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4, warpgroup = warpgroup_of_thread();
  const int first_tile16 = warpgroup * T::kMmaRows * 4;
  Multiplier<T> m{{base}, shared + T::kXStage + (first_tile16 + warp) * kStageTileBytes + lane * 16, {}};
  uint8_t* const boxes = shared + T::kStages * T::kStage + warpgroup * T::kMmaRows * T::kBox;
  wait_for_previous_kernel();
  for (int i = int(blockIdx.x * 256 + threadIdx.x); i < p.flag_count; i += int(gridDim.x * 256)) p.flags[i] = 0;
  for (int at = int(blockIdx.x); at < p.count; at += int(gridDim.x)) {
    const int tile16 = at % p.across * T::kTiles + first_tile16, row0 = at / p.across * kRows;
    // Both warpgroups in step would turn sums into codes at the same time and leave the matrix unit idle: the second
    // begins half a pipeline later, and stays behind.
    const bool begins = at == int(blockIdx.x);
    if (begins && warpgroup == 1) named_barrier(Multiplier<T>::kStagger, 256);
    m.sum(p.stages, begins && warpgroup == 0 ? min(T::kStages / 2, p.stages) - 1 : -1);
    if (threadIdx.x % 128 == 0) store_wait();  // of the boxes before
    named_barrier(1 + warpgroup, 128);
#pragma unroll
    for (int u = 0; u < T::kMmaRows; ++u) {
      const int row = min(tile16 + 4 * u + warp, p.tiles - 1) * 16 + 2 * (lane / 4);
      if (p.exact != 0)
        put_codes<T>(ExactRow(p, row), ExactRow(p, row + 1), m.d[u], boxes + u * T::kBox);
      else
        put_codes<T>(Row(p, row), Row(p, row + 1), m.d[u], boxes + u * T::kBox);
    }
    fence_async();
    named_barrier(1 + warpgroup, 128);
    if (threadIdx.x % 128 == 0)
#pragma unroll
      for (int u = 0; u < T::kMmaRows; ++u)
        box_store(out_map, (tile16 + 4 * u) * 16 * T::kBytes, row0, shared_address(boxes + u * T::kBox));
  }
  store_wait();
}
#endif

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    input_boxes(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap out_map, const __grid_constant__ InputArgs p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  if (threadIdx.x == 0) {
    for (Pipeline<T> r{base}; r.phase == 0; r.next()) {
      barrier_init(r.full(), 2);
      barrier_init(r.empty(), 4 * kWarpgroups);
    }
    barrier_init_done();
  }
  let_next_kernel_start();
  __syncthreads();
  if (warpgroup_of_thread() == kWarpgroups) {
    give_registers<40>();
    const int role = (int(threadIdx.x) - 128 * kWarpgroups) / 32;
    if (role == 0 && elected()) ask<T, false>(p, &w_map, base);
    if (role == 1 && elected()) {
      wait_for_previous_kernel();
      ask<T, true>(p, &x_map, base);
    }
  } else {
    take_registers<232>();
    multiply_tiles<T>(p, &out_map, shared, base);
  }
#endif
}

/// Boxes of `height` rows of `width` elements of `bytes` bytes; rows are `stride` bytes apart.
bool make_map(CUtensorMap* map, const void* data, int bytes, int64_t columns, int64_t rows, int64_t stride, int width,
              int height, CUtensorMapSwizzle swizzle) {
  const cuuint64_t sizes[2] = {cuuint64_t(columns), cuuint64_t(rows)}, strides[1] = {cuuint64_t(stride)};
  const cuuint32_t box[2] = {cuuint32_t(width), cuuint32_t(height)}, steps[2] = {1, 1};
  return encode_tiled() != nullptr &&
         encode_tiled()(map, bytes == 8 ? CU_TENSOR_MAP_DATA_TYPE_UINT64 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 2,
                        const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class T>
int tile_count(const Cell& cell, int64_t rows) {
  return int((3 * cell.groups + T::kTiles - 1) / T::kTiles * ((rows + kRows - 1) / kRows));
}

template <class T>
cudaError_t launch_one(const Cell& cell, const Call& call, cudaStream_t stream) {
  const auto kernel = input_boxes<T>;
  Device device;
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const int64_t rows = call.s.steps * call.s.batch, tiles = 3 * int64_t{cell.groups};
  InputArgs p{};
  p.bias = cell.x.bias, p.shift = cell.x.shift;
  p.low = cell.x.low, p.high = cell.x.high, p.exact = cell.x.exact;
  p.tiles = int32_t(tiles), p.stages = (cell.x.ksteps + 3) / 4;
  p.across = int32_t((tiles + T::kTiles - 1) / T::kTiles);
  p.count = tile_count<T>(cell, rows);
  p.flags = call.flags, p.flag_count = call.flag_count;
  CUtensorMap x, w, out;
  const int64_t tile_bytes = int64_t{cell.x.ksteps} * kTileBytes, out_bytes = int64_t{cell.ih_stride} * cell.ih_bytes;
  if (!make_map(&x, call.s.x.data, 1, call.s.x.stride, rows, call.s.x.stride, kStageK, kRows,
                CU_TENSOR_MAP_SWIZZLE_128B) ||
      !make_map(&w, cell.x.tiles, 8, tile_bytes / 8, tiles, tile_bytes, kStageTileBytes / 8, T::kTiles,
                CU_TENSOR_MAP_SWIZZLE_NONE) ||
      !make_map(&out, call.ih, 1, out_bytes, rows, out_bytes, 64 * T::kBytes, kRows,
                T::kBytes == 1 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B))
    return cudaErrorInvalidValue;
  return launch(kernel, dim3(unsigned(std::min(p.count, int32_t{device.processors}))), dim3(kThreads),
                size_t(T::kSharedBytes), stream, device.bulk_copies, x, w, out, p);
}

}  // namespace

bool has_input_boxes(const Cell& cell, int64_t rows, bool skinny_too) {
  Device device;
  return cell.x.tiles != nullptr && cell.x.narrow != 0 && cell.x.limbs == 1 && current_device(&device) == cudaSuccess &&
         device.arch == 90 && (skinny_too || tile_count<Tile<2, 1>>(cell, rows) >= device.processors);
}

cudaError_t launch_input_boxes(const Cell& cell, const Call& call, cudaStream_t stream) {
  return cell.ih_bytes == 1 ? launch_one<Tile<2, 1>>(cell, call, stream) : launch_one<Tile<2, 2>>(cell, call, stream);
}

}  // namespace lowbit::cuda::gru
