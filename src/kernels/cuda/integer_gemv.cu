#include "kernels/cuda/integer_gemv.cuh"

#include <algorithm>

#include "kernels/cuda/launch.h"

namespace lowbit::cuda {
namespace {

constexpr int kMostBlocks = 28;           // of a unit: 28 KB of weights
constexpr int kMostWarps = 16;
constexpr int kMostBuffers = 8;
constexpr int kInFlightBytes = 80 << 10;  // of weights per thread block: two such blocks fit a multiprocessor side by side
constexpr int kSumBytes = 24 << 10;
constexpr int kMostTiles = 128;           // of a thread block

int ceil_div(int a, int b) { return (a + b - 1) / b; }
int round_up(int a, int b) { return ceil_div(a, b) * b; }
/// The next stride whose rows of 64 bytes fall into alternating halves of the banks.
int odd_half_stride(int bytes) { return round_up(bytes, 128) + 64; }

struct Launch {
  int grid, threads, shared_bytes;
};

/// Cuts the work of `a` (its shape is set) for a device of `processors` multiprocessors.
Launch cut(GemvArgs& a, int processors, bool grouped, int columns_of_block) {
  Launch l{};
  a.blocks_of_row = std::max(1, ceil_div(a.k, columns_of_block));
  a.tiles = ceil_div(a.n, kTileRows);
  l.grid = std::max(std::min(a.tiles, processors), ceil_div(a.tiles, kMostTiles));
  const int tiles = ceil_div(a.tiles, l.grid);
  a.segments = ceil_div(a.blocks_of_row, kMostBlocks);
  a.segment = ceil_div(a.blocks_of_row, a.segments);
  a.segments = ceil_div(a.blocks_of_row, a.segment);
  const int each = ceil_div(a.segment, kMostWarps), warps = ceil_div(a.segment, each);
  l.threads = 32 * std::max(4, warps);
  const int row = a.segment * kBlockBytes;
  a.unit_stride = row % 128 == 64 ? row : row + 64;
  a.unit_bytes = kTileRows * a.unit_stride;
  a.buffers = std::clamp(kInFlightBytes / a.unit_bytes, 1, std::min(kMostBuffers, tiles * a.segments));
  a.x_stride = odd_half_stride(a.blocks_of_row * columns_of_block);
  const int sums_of_tile = kTileRows * a.m * a.groups * 4;
  a.batch = std::clamp(kSumBytes / sums_of_tile, 1, tiles);
  int at = a.buffers * a.unit_bytes;
  const auto place = [&at](int bytes) {
    const int here = at;
    at = round_up(at + bytes, 16);
    return here;
  };
  a.x_at = place(a.m * a.x_stride);
  a.sums_at = place(a.batch * sums_of_tile);
  a.x_sums_at = place(4 * a.m * a.groups);
  a.x_scales_at = place(4 * a.m * a.groups);
  a.largest_at = place(4 * a.m * a.groups);
  a.barriers_at = place(8 * kMostBuffers);
  a.scales_at = place(grouped ? 0 : 4 * tiles * kTileRows);
  l.shared_bytes = at;
  return l;
}

template <int B, bool kGrouped>
cudaError_t start(GemvArgs a, const Device& device, bool overlap, cudaStream_t stream) {
  // As many rows of x at a time as fit beside the weights.
  for (int rows = std::min(a.m, kMaxGemvRows); rows >= 1; --rows) {
    GemvArgs part = a;
    part.m = rows;
    const Launch l = cut(part, device.processors, kGrouped, GemvOrder<B>::kColumns);
    if (l.shared_bytes > device.shared_bytes && rows > 1) continue;
    if (l.shared_bytes > device.shared_bytes) return cudaErrorInvalidValue;
    const auto kernel = device.bulk_copies ? integer_gemv<B, kGrouped, true> : integer_gemv<B, kGrouped, false>;
    if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
    for (int m0 = 0; m0 < a.m; m0 += rows) {
      GemvArgs now = part;
      now.m = std::min(rows, a.m - m0);
      const int64_t x_bytes = element_bytes(a.x_element) * a.ldx, y_bytes = element_bytes(a.y_element) * a.ldy;
      now.x = static_cast<const uint8_t*>(a.x) + m0 * x_bytes;
      now.y = static_cast<uint8_t*>(a.y) + m0 * y_bytes;
      if (a.x_scales != nullptr) now.x_scales = a.x_scales + static_cast<int64_t>(m0) * (a.x_groups ? a.groups : 1);
      const auto e = launch(kernel, dim3(static_cast<unsigned>(l.grid)), dim3(static_cast<unsigned>(l.threads)),
                            static_cast<size_t>(l.shared_bytes), stream, overlap && device.bulk_copies, now);
      if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
  }
  return cudaSuccess;
}

}  // namespace

template <int B>
cudaError_t launch_integer_gemv(const GemvArgs& a, bool grouped, bool overlap, cudaStream_t stream) {
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  return grouped ? start<B, true>(a, device, overlap, stream) : start<B, false>(a, device, overlap, stream);
}

template <int B>
bool gemv_fits(int k, int groups) {
  GemvArgs a{};
  a.n = 1 << 20;
  a.k = k;
  a.m = 1;
  a.groups = groups;
  constexpr int kSmallestShared = 99 << 10;  // of a thread block, on compute capability 8.6 and 8.9
  return cut(a, 100, groups > 1, GemvOrder<B>::kColumns).shared_bytes <= kSmallestShared;
}

#define LOWBIT_GEMV(B)                                                                        \
  template cudaError_t launch_integer_gemv<B>(const GemvArgs&, bool, bool, cudaStream_t);     \
  template bool gemv_fits<B>(int, int);
LOWBIT_GEMV(1)
LOWBIT_GEMV(2)
LOWBIT_GEMV(4)
LOWBIT_GEMV(8)
#undef LOWBIT_GEMV

}  // namespace lowbit::cuda
