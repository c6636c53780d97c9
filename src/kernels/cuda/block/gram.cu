// Gram matrices of activations: x^T x, chunk by chunk, in the order of backend/cpu/hessian_sum.cc.

#include <algorithm>

#include "kernels/cuda/block/tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_block_api.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int64_t kBlocksWanted = 512;  // thread blocks that keep a large device busy
constexpr int kThreads = 256;

int64_t tiles_of(int64_t k) { return (k + kTile - 1) / kTile; }
/// Of the products: the upper triangle of [k, k], or all of [n, k].
int64_t product_tiles(int64_t n, int64_t k) {
  return n > 0 ? tiles_of(n) * tiles_of(k) : tiles_of(k) * (tiles_of(k) + 1) / 2;
}
/// Chunks that are multiplied at once, each into a part of the workspace of its own.
int64_t chunks_at_once(int64_t rows, int64_t n, int64_t k, int64_t chunk) {
  const int64_t chunks = std::max<int64_t>(1, (rows + chunk - 1) / chunk), tiles = product_tiles(n, k);
  return std::clamp<int64_t>((kBlocksWanted + tiles - 1) / tiles, 1, chunks);
}

/// One tile of the upper triangle of one chunk's x^T x; with y [rows, n], of y^T x.
__global__ void __launch_bounds__(kTileThreads, 2)
    multiply_chunk(const float* x, const float* y, int64_t rows, int64_t n, int64_t k, int64_t chunk, float* products) {
  const int64_t tiles = (k + kTile - 1) / kTile;
  int64_t j0 = blockIdx.x, i0 = 0;
  if (y == nullptr) {
    for (int64_t left = tiles; j0 >= left; --left, ++i0) j0 -= left;
    j0 += i0;
  } else {
    i0 = j0 / tiles;
    j0 %= tiles;
  }
  const int64_t first = int64_t{blockIdx.y} * chunk, count = min(chunk, rows - first);
  const int64_t width = y == nullptr ? k : n;
  const OutputsAreColumns a{(y == nullptr ? x : y) + first * width, width, count, i0 * kTile},
      b{x + first * k, k, count, j0 * kTile};
  Sums sums = {};
  each_step(a, b, count, [&](int64_t, const TileRows& rows_a, const TileRows& rows_b) {
#pragma unroll
    for (int d = 0; d < kTileDepth; ++d) {
      float unused[kMicro];
      add_step(rows_a[d], rows_b[d], sums, unused);
    }
  });
  float* const to = products + int64_t{blockIdx.y} * width * k;
#pragma unroll
  for (int i = 0; i < kMicro; ++i)
#pragma unroll
    for (int j = 0; j < kMicro; ++j) {
      const int64_t row = i0 * kTile + output_row(i), column = j0 * kTile + output_column(j);
      if (row < width && column < k) to[row * k + column] = sums[i][j];
    }
}

__global__ void add_products(const float* products, int64_t count, int64_t n, int64_t k, bool upper, double* sum) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n * k || (upper && at / k > at % k)) return;
  double total = sum[at];
  for (int64_t i = 0; i < count; ++i) total = __dadd_rn(total, static_cast<double>(products[i * n * k + at]));
  sum[at] = total;
}

__global__ void scale_sums(const double* sum, int64_t n, int64_t k, double scale, bool upper, float* h) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n * k) return;
  const int64_t row = at / k, column = at % k;
  const int64_t from = upper ? min(row, column) * k + max(row, column) : at;
  h[at] = __double2float_rn(__dmul_rn(sum[from], scale));
}

dim3 blocks_for(int64_t count) { return dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)); }

}  // namespace

int64_t gram_workspace_bytes(int64_t rows, int64_t k, int64_t n, int64_t chunk) {
  const auto floats = [&](int64_t of) { return chunks_at_once(rows, of, k, chunk) * (of > 0 ? of : k) * k; };
  return std::max(floats(0), floats(n)) * int64_t(sizeof(float));
}

Status add_gram(const AddGram& call) {
  auto* const stream = static_cast<cudaStream_t>(call.stream);
  const bool upper = call.y == nullptr;
  const int64_t k = call.k, n = upper ? 0 : call.n, width = upper ? k : n;
  const int64_t at_once = chunks_at_once(call.rows, n, k, call.chunk) * call.chunk;
  for (int64_t first = 0; first < call.rows; first += at_once) {
    const int64_t rows = std::min(at_once, call.rows - first), chunks = (rows + call.chunk - 1) / call.chunk;
    const dim3 grid(static_cast<unsigned>(product_tiles(n, k)), static_cast<unsigned>(chunks));
    const float* const y = upper ? nullptr : call.y + first * n;
    auto e = launch(multiply_chunk, grid, dim3(kTileThreads), 0, stream, false, call.x + first * k, y, rows, n, k,
                    call.chunk, call.workspace);
    if (e == cudaSuccess)
      e = launch(add_products, blocks_for(width * k), dim3(kThreads), 0, stream, false, call.workspace, chunks, width,
                 k, upper, call.sum);
    if (auto status = check_cuda(e, "Hessian"); !status) return status;
  }
  return {};
}

Status finish_gram(const double* sum, int64_t n, int64_t k, double scale, float* h, void* stream) {
  const bool upper = n == 0;
  const int64_t rows = upper ? k : n;
  return check_cuda(launch(scale_sums, blocks_for(rows * k), dim3(kThreads), 0, static_cast<cudaStream_t>(stream),
                           false, sum, rows, k, scale, upper, h),
                    "Hessian");
}

}  // namespace lowbit::cuda
