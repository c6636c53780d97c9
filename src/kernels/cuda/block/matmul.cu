// y = x W^T with f32 activations, in the order of the CPU's sums.

#include <algorithm>

#include "kernels/cuda/block/row_tiles.cuh"
#include "kernels/cuda/block/tile.cuh"
#include "kernels/cuda/block/weight_values.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_matmul_api.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

/// kPlain: no scales. kScaled: groups are whole steps of the reduction. kAny: groups of any width, offsets.
enum class Scaling { kPlain, kScaled, kAny };

/// Outputs are rows of weights. A parcel has their words, which become values on their way to shared memory: so nobody
/// waits for them before.
template <ValueType kType>
struct OutputsAreWeights {
  const uint8_t* data;
  int64_t outputs, row_bytes, first;
  static constexpr int kWords = 4 / kWordColumns<kType>;  // of four columns

  __device__ __forceinline__ void load(int64_t step, Parcel& parcel) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kTileThreads;
      const int64_t row = first + at / 4, byte = (step * kTileDepth + at % 4 * 4) / kWordColumns<kType> * 4;
      float4& to = parcel.part[i];
      to = {0, 0, 0, 0};
      if (row >= outputs || byte >= row_bytes) continue;
      const uint8_t* const from = data + row * row_bytes + byte;
      if constexpr (kWords == 4) to = *reinterpret_cast<const float4*>(from);
      if constexpr (kWords == 2) {
        const float2 words = *reinterpret_cast<const float2*>(from);
        to.x = words.x, to.y = words.y;
      }
      if constexpr (kWords == 1) to.x = *reinterpret_cast<const float*>(from);
    }
  }
  __device__ __forceinline__ void store(const Parcel& parcel, TileRows& to) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kTileThreads, row = at / 4, column = at % 4 * 4;
      const float4& from = parcel.part[i];
      const float words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        float v[kWordColumns<kType>];
        values_of_word<kType>(__float_as_uint(words[w]), v);
#pragma unroll
        for (int j = 0; j < kWordColumns<kType>; ++j) to[column + w * kWordColumns<kType> + j][row] = v[j];
      }
    }
  }
};

/// The sums of a group join those of the row: acc = fma(S, scale, acc), then fma(sum of x, offset, acc).
__device__ __forceinline__ void scale_accumulate(const F32Matmul& call, int64_t group, int64_t first_column, Sums& sums,
                                                 float (&x_sums)[kMicro], Sums& acc) {
#pragma unroll
  for (int j = 0; j < kMicro; ++j) {
    const int64_t column = first_column + output_column(j);
    const bool inside = column < call.n;
    const float scale = inside ? call.scales[group * call.n + column] : 0.0f;
    const float offset = inside && call.offsets != nullptr ? call.offsets[group * call.n + column] : 0.0f;
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
      acc[i][j] = __fmaf_rn(sums[i][j], scale, acc[i][j]);
      if (call.offsets != nullptr) acc[i][j] = __fmaf_rn(x_sums[i], offset, acc[i][j]);
      sums[i][j] = 0;
    }
  }
#pragma unroll
  for (float& sum : x_sums) sum = 0;
}

__device__ __forceinline__ void store_outputs(const F32Matmul& call, int64_t first_row, int64_t first_column,
                                              const Sums& acc) {
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
    const int64_t row = first_row + output_row(i);
    if (row >= call.m) continue;
#pragma unroll
    for (int j = 0; j < kMicro; ++j) {
      const int64_t column = first_column + output_column(j);
      if (column < call.n)
        call.y[row * call.n + column] = __fadd_rn(acc[i][j], call.bias == nullptr ? 0.0f : call.bias[column]);
    }
  }
}

template <Scaling kScaling, ValueType kType>
__global__ void __launch_bounds__(kTileThreads, kScaling == Scaling::kPlain ? 2 : 1)
    matmul_tiles(const __grid_constant__ F32Matmul call) {
  const int64_t first_row = int64_t{blockIdx.y} * kTile, first_column = int64_t{blockIdx.x} * kTile;
  const OutputsAreRows x{call.x, call.m, call.k, first_row};
  const OutputsAreWeights<kType> w{call.values, call.n, value_row_bytes(kType, call.k), first_column};
  Sums sums = {}, acc = {};
  float x_sums[kMicro] = {};
  each_step(x, w, call.k, [&](int64_t step, const TileRows& a, const TileRows& b) {
    const int64_t begin = step * kTileDepth, end = min(begin + kTileDepth, call.k);
    if constexpr (kScaling == Scaling::kAny) {
#pragma unroll 1
      for (int64_t k = begin; k < end; ++k) {
        float rows[kMicro];
        add_step(a[k - begin], b[k - begin], sums, rows);
#pragma unroll
        for (int i = 0; i < kMicro; ++i) x_sums[i] = __fadd_rn(x_sums[i], rows[i]);
        if ((k + 1) % call.group == 0 || k + 1 == call.k)
          scale_accumulate(call, k / call.group, first_column, sums, x_sums, acc);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kTileDepth; ++k) {
        float rows[kMicro];
        add_step(a[k], b[k], sums, rows);
      }
      if (kScaling == Scaling::kScaled && (end % call.group == 0 || end == call.k))
        scale_accumulate(call, begin / call.group, first_column, sums, x_sums, acc);
    }
  });
  store_outputs(call, first_row, first_column, kScaling == Scaling::kPlain ? sums : acc);
}

template <ValueType kType>
auto* tiles_kernel(const F32Matmul& call) {
  const bool whole = call.group % kTileDepth == 0 || call.group >= call.k;
  return call.scales == nullptr             ? &matmul_tiles<Scaling::kPlain, kType>
         : whole && call.offsets == nullptr ? &matmul_tiles<Scaling::kScaled, kType>
                                            : &matmul_tiles<Scaling::kAny, kType>;
}
struct RowTileLaunch {
  void (*kernel)(F32Matmul);
  int tokens, warps, bytes;
};
template <ValueType kType, int kTokens, int kWarps>
RowTileLaunch row_tile_launch() {
  return {&matmul_row_tiles<kType, kTokens, kWarps>, kTokens, kWarps, kRowTileBytes<kType, kTokens, kWarps>};
}
template <ValueType kType>
RowTileLaunch row_tile_launch(const F32Matmul& call) {
  const bool one = call.scales == nullptr || call.group >= call.k;
  if (call.m <= 16) return one ? row_tile_launch<kType, 16, 1>() : row_tile_launch<kType, 16, kGroupWarps>();
  return one ? row_tile_launch<kType, 32, 1>() : row_tile_launch<kType, 32, kGroupWarps>();
}
/// Up to so many rows: beyond them tiles of 128 by 128 are many enough.
constexpr int64_t kMostTiledRows = 64;
bool takes_row_tiles(const F32Matmul& call) {
  const bool one = call.scales == nullptr || call.group >= call.k;
  return call.m <= kMostTiledRows && call.offsets == nullptr && (one || call.group % kStepColumns == 0);
}
Status multiply_row_tiles(const F32Matmul& call) {
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return check_cuda(e, "f32 matmul");
  const auto how = with_value_type(call.type, [&]<ValueType kType>() { return row_tile_launch<kType>(call); });
  if (const auto e = allow_shared(reinterpret_cast<const void*>(how.kernel), device); e != cudaSuccess)
    return check_cuda(e, "f32 matmul");
  const dim3 grid(static_cast<unsigned>((call.n + kTileWeights - 1) / kTileWeights),
                  static_cast<unsigned>((call.m + how.tokens - 1) / how.tokens));
  return check_cuda(launch(how.kernel, grid, dim3(static_cast<unsigned>(32 * how.warps)),
                           static_cast<size_t>(how.bytes), static_cast<cudaStream_t>(call.stream), false, call),
                    "f32 matmul");
}

ExactProducts exact_product_of(const F32Matmul& call) {
  ExactProducts few;
  few.count = 1;
  few.parts[0] = {call.values, value_row_bytes(call.type, call.k), call.n, call.scales, 1, 1, call.n, call.bias, call.y,
                  call.n};
  few.type = call.type;
  few.m = call.m, few.k = call.k, few.group = call.group;
  few.rows = call.x;
  few.stream = call.stream;
  return few;
}

}  // namespace

Status f32_matmul(const F32Matmul& call) {
  if (call.m == 0 || call.n == 0) return {};
  if (call.m <= kMostStepRows && call.offsets == nullptr)
    if (const ExactProducts few = exact_product_of(call); takes_exact_products(few)) return exact_products(few);
  if (takes_row_tiles(call)) return multiply_row_tiles(call);
  const dim3 grid(static_cast<unsigned>((call.n + kTile - 1) / kTile),
                  static_cast<unsigned>((call.m + kTile - 1) / kTile));
  auto* const kernel = with_value_type(call.type, [&]<ValueType kType>() { return tiles_kernel<kType>(call); });
  return check_cuda(launch(kernel, grid, dim3(kTileThreads), 0, static_cast<cudaStream_t>(call.stream), false, call),
                    "f32 matmul");
}

}  // namespace lowbit::cuda
