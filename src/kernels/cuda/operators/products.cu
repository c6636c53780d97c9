// Products of few bits whose operands lie in memory as users have them: docs/kernels.md#on-a-gpu.
//
// With up to eight tokens a warp reads rows of w once, 16 bytes a lane, and multiplies them by all of x in shared
// memory. With more rows tiles go through tensor cores (many_rows.cuh).

#include <algorithm>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/operators/many_rows.cuh"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace operators;  // NOLINT

constexpr int kSharedX = 32 << 10;  // bytes of x at a time, all rows together
constexpr int kOwnRows = 2;         // of w, of a warp

__device__ __forceinline__ int warp_sum(int v) { return __reduce_add_sync(0xffffffffu, v); }

/// A lane multiplies at a time: kX pieces of 16 bytes of x and 16 bytes of w. Piece j of lane l lies at (32 j + l) * 16
/// in shared memory, so that a warp's loads meet every bank once.
struct GemvInt2 {
  using Kind = Int2Rows;
  using End = Int2End;
  static constexpr int kX = 4;
  __device__ static int64_t row_bytes(const Int2Product& p) { return (p.k + 3) / 4; }
  __device__ static int64_t x_bytes(const Int2Product& p) { return p.k; }
  __device__ static int dot(const uint4 (&x)[kX], const uint4& w, int sum) {
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < kX; ++j) {
      const uint4 c = Int2Rows::spread(words[j]);
      sum = __dp4a(static_cast<int>(x[j].x), static_cast<int>(c.x), sum);
      sum = __dp4a(static_cast<int>(x[j].y), static_cast<int>(c.y), sum);
      sum = __dp4a(static_cast<int>(x[j].z), static_cast<int>(c.z), sum);
      sum = __dp4a(static_cast<int>(x[j].w), static_cast<int>(c.w), sum);
    }
    return sum;
  }
  __device__ static int value(int sum, int x_sum, const Int2Product&) { return sum - 2 * x_sum; }
};
struct GemvBits {
  using Kind = Bits;
  using End = BitEnd;
  static constexpr int kX = 1;
  __device__ static int64_t row_bytes(const BitProduct& p) { return (p.k + 7) / 8; }
  __device__ static int64_t x_bytes(const BitProduct& p) { return (p.k + 7) / 8; }
  __device__ static int dot(const uint4 (&x)[kX], const uint4& w, int sum) {
    return sum + __popc(x[0].x ^ w.x) + __popc(x[0].y ^ w.y) + __popc(x[0].z ^ w.z) + __popc(x[0].w ^ w.w);
  }
  __device__ static int value(int differ, int, const BitProduct& p) { return static_cast<int>(p.k) - 2 * differ; }
};

__device__ __forceinline__ const uint8_t* weight_row(const Int2Product& p, int64_t row) {
  return p.weight + row * p.weight_stride;
}
__device__ __forceinline__ const uint8_t* weight_row(const BitProduct& p, int64_t row) {
  return p.weight + row * p.weight_stride;
}
__device__ __forceinline__ uint4 whole_columns(const Int2Product&, uint4 w, int64_t) { return w; }
__device__ __forceinline__ uint4 whole_columns(const BitProduct& p, uint4 w, int64_t byte) {
  return first_bits(w, p.k - 8 * byte);
}

/// Bytes [first, first + columns) of kRows tokens to shared memory, with the sums of their codes.
template <class Gemv, int kRows, class Problem>
__device__ __forceinline__ void stage_x(const Problem& p, int64_t m0, int64_t first, int bytes, bool aligned, uint4* x,
                                        int* x_sums) {
  constexpr int kSpan = 512 * Gemv::kX;  // bytes of x that a warp multiplies at a time
#pragma unroll 1
  for (int r = 0; r < kRows; ++r) {
    int sum = 0;
    for (int i = static_cast<int>(threadIdx.x); 16 * i < bytes; i += kThreads) {
      const uint4 v = Gemv::Kind::load_x(p, m0 + r, first + 16 * i, aligned);
      const int span = 16 * i / kSpan, in = i % (kSpan / 16);
      x[(r * bytes + span * kSpan) / 16 + in % Gemv::kX * 32 + in / Gemv::kX] = v;
      if constexpr (Gemv::Kind::kSums) sum = add_bytes(v, sum);
    }
    if constexpr (Gemv::Kind::kSums) {
      sum = warp_sum(sum);
      if (threadIdx.x % 32 == 0) atomicAdd(x_sums + r, sum);
    }
  }
}

template <class Gemv, int kRows>
__global__ void __launch_bounds__(kThreads)
    gemv_rows(const __grid_constant__ typename Gemv::End end, bool x_aligned, bool w_aligned) {
  constexpr int kBytes = kSharedX / kRows, kSpan = 512 * Gemv::kX;  // of a token's row at a time
  __shared__ uint4 x[kSharedX / 16];
  __shared__ int x_sums[kRows];
  const auto& p = end.p;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row0 = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * kOwnRows, all = Gemv::x_bytes(p);
  if (threadIdx.x < kRows) x_sums[threadIdx.x] = 0;
  __syncthreads();
  int sums[kOwnRows][kRows] = {};
  for (int64_t first = 0; first < all; first += kBytes) {
    const int bytes = static_cast<int>(min(int64_t{kBytes}, (all - first + kSpan - 1) / kSpan * kSpan));
    if (first > 0) __syncthreads();
    stage_x<Gemv, kRows>(p, 0, first, bytes, x_aligned, x, x_sums);
    __syncthreads();
#pragma unroll 2
    for (int span = 0; span < bytes; span += kSpan) {
      const int64_t byte = (first + span) / Gemv::kX + 16 * lane;
      uint4 w[kOwnRows];
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i)
        w[i] = whole_columns(
            p, load_16(weight_row(p, row0 + i) + byte, row0 + i < p.n ? Gemv::row_bytes(p) - byte : 0, w_aligned),
            byte);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        uint4 own[Gemv::kX];
#pragma unroll
        for (int j = 0; j < Gemv::kX; ++j) own[j] = x[(r * bytes + span) / 16 + 32 * j + lane];
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) sums[i][r] = Gemv::dot(own, w[i], sums[i][r]);
      }
    }
  }
  for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int sum = warp_sum(sums[i][r]);
      if (lane != r || r >= p.m || row0 + i >= p.n) continue;
      const float y = end.of(Gemv::value(sum, x_sums[r], p), end.row(r), end.column(row0 + i));
      store_element(p.y, p.y_element, r * p.ldy + row0 + i, y);
    }
  }
}

/// Tiles of 16 x 32: a thread block has 16 rows of w, its warps take blocks of 32 columns in turn, a lane a word of 16
/// of them.
template <int kRows>
__global__ void __launch_bounds__(kThreads) gemv_tiles(const __grid_constant__ Int2End end, bool x_aligned) {
  constexpr int kBytes = kSharedX / kRows;
  __shared__ uint4 x[kSharedX / 16];
  __shared__ int sums[16][kRows], x_sums[kRows];
  const Int2Product& p = end.p;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  for (int i = thread; i < 16 * kRows; i += kThreads) sums[i / kRows][i % kRows] = 0;
  if (thread < kRows) x_sums[thread] = 0;
  __syncthreads();
  const int64_t blocks = p.k / 32;
  const auto* const words = reinterpret_cast<const uint32_t*>(p.weight) + blockIdx.x * blocks * 32 + lane;
  int own[kRows] = {};
  for (int64_t first = 0; first < p.k; first += kBytes) {
    const int bytes = static_cast<int>(min(int64_t{kBytes}, p.k - first));
    if (first > 0) __syncthreads();
    for (int r = 0; r < kRows; ++r) {
      int sum = 0;
      for (int i = thread; 16 * i < bytes; i += kThreads) {
        const uint4 v = Int2Tiles::load_x(p, r, first + 16 * i, x_aligned);
        x[r * (kBytes / 16) + i] = v;
        sum = add_bytes(v, sum);
      }
      sum = warp_sum(sum);
      if (lane == 0) atomicAdd(x_sums + r, sum);
    }
    __syncthreads();
#pragma unroll 4
    for (int b = warp; b < bytes / 32; b += kWarps) {
      const uint4 c = Int2Rows::spread(__ldg(words + (first / 32 + b) * 32));
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint4 v = x[r * (kBytes / 16) + 2 * b + lane % 16 / 8];
        int sum = __dp4a(static_cast<int>(v.x), static_cast<int>(c.x), own[r]);
        sum = __dp4a(static_cast<int>(v.y), static_cast<int>(c.y), sum);
        sum = __dp4a(static_cast<int>(v.z), static_cast<int>(c.z), sum);
        own[r] = __dp4a(static_cast<int>(v.w), static_cast<int>(c.w), sum);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) atomicAdd(&sums[lane / 16 * 8 + lane % 8][r], own[r]);
  __syncthreads();
  for (int i = thread; i < 16 * kRows; i += kThreads) {
    const int r = i / 16;
    const int64_t row = blockIdx.x * int64_t{16} + i % 16;
    if (r >= p.m) continue;
    const float y = end.of(sums[i % 16][r] - 2 * x_sums[r], end.row(r), end.column(row));
    store_element(p.y, p.y_element, r * p.ldy + row, y);
  }
}

constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;

/// calls f with the number of rows that a kernel is compiled for.
template <class F>
cudaError_t with_rows(int64_t m, F f) {
  if (m <= 1) return f(std::integral_constant<int, 1>());
  if (m <= 2) return f(std::integral_constant<int, 2>());
  if (m <= 4) return f(std::integral_constant<int, 4>());
  return f(std::integral_constant<int, 8>());
}

template <class Kind>
Status launch_many(const typename Kind::End& end, int64_t bytes_of_row, bool x_aligned, bool w_aligned,
                   cudaStream_t stream, const char* what) {
  Device device;
  if (const auto e = current_device(&device); e != cudaSuccess) return check_cuda(e, what);
  const auto tiles = [&](int64_t m, int64_t n) { return (end.p.m + m - 1) / m * ((end.p.n + n - 1) / n); };
  const bool large = tiles(128, 128) >= device.processors;
  const int64_t blocks = large ? tiles(128, 128) : tiles(32, 64);
  if (blocks > kMostBlocks)
    return fail(ErrorCode::kUnsupported, what, std::to_string(blocks) + " tiles", "at most 2^31 - 1");
  const auto run = [&](auto kernel) {
    return launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, false, end,
                  static_cast<int>(bytes_of_row), x_aligned, w_aligned);
  };
  return check_cuda(large ? run(many_rows<Kind, 4, 4>) : run(many_rows<Kind, 1, 2>), what);
}

}  // namespace

Status int2_product(const Int2Product& p, void* handle) {
  if (p.m == 0 || p.n == 0) return {};
  const char* const what = "bitlinear_int8xint2";
  const auto stream = static_cast<cudaStream_t>(handle);
  const Int2End end{p};
  const bool x = in_sixteens(p.x, p.m > 1 ? p.ldx : 0);
  if (p.tiles && reinterpret_cast<uintptr_t>(p.weight) % 16 != 0)
    return fail(ErrorCode::kInvalidArgument, what, "tiles at an address that 16 does not divide", "one that it does");
  const bool w = p.tiles || in_sixteens(p.weight, p.weight_stride);
  if (p.m > kMostGemvTokens)
    return p.tiles ? launch_many<Int2Tiles>(end, p.k, x, w, stream, what)
                   : launch_many<Int2Rows>(end, p.k, x, w, stream, what);
  return check_cuda(with_rows(p.m,
                              [&](auto rows) {
                                if (p.tiles)
                                  return launch(gemv_tiles<rows>, dim3(static_cast<unsigned>(p.n / 16)), dim3(kThreads),
                                                0, stream, false, end, x);
                                const int64_t blocks = (p.n + kWarps * kOwnRows - 1) / (kWarps * kOwnRows);
                                return launch(gemv_rows<GemvInt2, rows>, dim3(static_cast<unsigned>(blocks)),
                                              dim3(kThreads), 0, stream, false, end, x, w);
                              }),
                    what);
}

Status bit_product(const BitProduct& p, void* handle) {
  if (p.m == 0 || p.n == 0) return {};
  const char* const what = "binary_matmul";
  const auto stream = static_cast<cudaStream_t>(handle);
  const BitEnd end{p};
  const bool x = in_sixteens(p.x, p.m > 1 ? p.x_stride : 0), w = in_sixteens(p.weight, p.weight_stride);
  if (p.m > kMostGemvTokens) return launch_many<Bits>(end, (p.k + 7) / 8, x, w, stream, what);
  return check_cuda(with_rows(p.m,
                              [&](auto rows) {
                                const int64_t blocks = (p.n + kWarps * kOwnRows - 1) / (kWarps * kOwnRows);
                                return launch(gemv_rows<GemvBits, rows>, dim3(static_cast<unsigned>(blocks)),
                                              dim3(kThreads), 0, stream, false, end, x, w);
                              }),
                    what);
}

}  // namespace lowbit::cuda
