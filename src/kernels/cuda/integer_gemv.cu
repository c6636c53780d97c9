#include "kernels/cuda/bit_gemv.cuh"

#include <algorithm>

#include "kernels/cuda/launch.h"

namespace lowbit::cuda {
namespace {

constexpr int kMostBlocks = 28;  // of a chunk: 28 KB of weights
constexpr int kMostBuffers = 16;
constexpr int kMostWarps = 16,
              kMostResidentWarps = 12;     // the fewer, the more launches a multiprocessor holds at a time
constexpr int kInFlightBytes = 160 << 10;  // of weights per thread block
constexpr int kSumBytes = 24 << 10;
constexpr int kSmallestShared = 99 << 10;  // of a thread block, on compute capability 8.6 and 8.9
constexpr int kMostTiles = 128;            // of a thread block
// bit_gemv.cuh: it is as fast as the integers or faster where launches of different widths follow each other, as in a
// model. Weights of three thread blocks fit a multiprocessor, so that the next launch's are on their way while this one
// multiplies.
constexpr int kMostBitBytes = 72 << 10;  // of weights of a thread block

int ceil_div(int a, int b) { return (a + b - 1) / b; }
int round_up(int a, int b) { return ceil_div(a, b) * b; }

struct Launch {
  int grid, threads, shared_bytes;
  bool resident;  // every chunk has a buffer of its own
};

/// Tiles that a round of all teams may touch.
int reach(const GemvArgs& a) { return (a.chunks_of_tile + a.teams - 2) / a.chunks_of_tile + 1; }

/// Teams and their warps: the least time by a model of what a warp does, in cycles.
void choose_teams(GemvArgs& a, int chunks) {
  constexpr int kBlockCycles = 120, kChunkCycles = 150;  // of a block; of waiting for a chunk and adding its sums
  const int most = a.m == 1 && chunks <= a.buffers ? kMostResidentWarps : kMostWarps;
  int best = 0;
  for (int teams = 1; teams <= std::min({most, chunks, a.buffers}); ++teams) {
    const int warps = std::min(most / teams, a.blocks_of_chunk), rounds = ceil_div(chunks, teams);
    const int cycles = rounds * (ceil_div(a.blocks_of_chunk, warps) * kBlockCycles + kChunkCycles);
    if (best != 0 && cycles >= best) continue;
    if (chunks > a.buffers && 2 * teams > std::max(a.buffers, 2))
      continue;  // streaming: half of the buffers are in flight
    best = cycles;
    a.teams = teams;
    a.team_warps = ceil_div(a.blocks_of_chunk, ceil_div(a.blocks_of_chunk, warps));
  }
}

/// Lays out shared memory behind the weights; returns the bytes up to its end.
int place_shared(GemvArgs& a, int at, int tiles, bool grouped) {
  const auto place = [&at](int bytes) {
    const int here = at;
    at = round_up(at + bytes, 16);
    return here;
  };
  a.x_at = place(a.m * a.x_stride);
  a.sums_at = place(a.batch * kTileRows * a.m * a.groups * 4);
  a.x_sums_at = place(4 * a.m * a.groups);
  a.largest_at = place(4 * a.m * a.groups);
  a.x_scales_at = place(4 * a.m * a.groups);
  a.barriers_at = place(8 * kMostBuffers);
  a.scales_at = place(grouped ? 0 : 4 * tiles * kTileRows);
  return at;
}

/// Cuts the work of `a` (its shape is set) for a device. shared_bytes is larger than the device's when it does not fit.
Launch cut(GemvArgs& a, int processors, int device_shared, bool grouped, int columns_of_block) {
  Launch l{};
  a.blocks_of_row = std::max(1, ceil_div(a.k, columns_of_block));
  const int all_tiles = ceil_div(a.n, kTileRows);
  l.grid = std::max(std::min(all_tiles, processors), ceil_div(all_tiles, kMostTiles));
  a.least_tiles = all_tiles / l.grid;
  a.longer = all_tiles % l.grid;
  const int tiles = ceil_div(all_tiles, l.grid);
  a.chunks_of_tile = ceil_div(a.blocks_of_row, kMostBlocks);
  a.blocks_of_chunk = ceil_div(a.blocks_of_row, a.chunks_of_tile);
  a.chunks_of_tile = ceil_div(a.blocks_of_row, a.blocks_of_chunk);
  a.chunk_bytes = a.blocks_of_chunk * kTileBlockBytes;
  a.x_stride =
      round_up(a.blocks_of_row * columns_of_block, 128) + 64;  // tokens' rows meet alternating halves of the banks
  const int chunks = tiles * a.chunks_of_tile;
  // First the least that works, then as many chunks in flight as there is room for.
  a.teams = a.team_warps = a.buffers = 1;
  a.batch = std::min(tiles, reach(a));
  const int room = std::min(kInFlightBytes, device_shared - place_shared(a, 0, tiles, grouped) - kSumBytes);
  a.buffers = std::clamp(room / a.chunk_bytes, 1, std::min(kMostBuffers, chunks));
  choose_teams(a, chunks);
  const int sums_of_tile = kTileRows * a.m * a.groups * 4;
  while (a.teams > 1 && std::min(tiles, reach(a)) * sums_of_tile > kSumBytes) --a.teams;
  a.batch = std::min(tiles, std::max(reach(a), kSumBytes / sums_of_tile));
  l.threads = 32 * std::max(4, a.teams * a.team_warps);
  a.team_inverse = 65536 / a.team_warps + 1;
  l.resident = a.m == 1 && chunks <= a.buffers && tiles <= a.batch;
  l.shared_bytes = place_shared(a, a.buffers * a.chunk_bytes, tiles, grouped);
  return l;
}

/// cut() for bit_gemv.cuh with strips of `per` blocks; false when it does not fit.
template <int kPer>
bool cut_bits(GemvArgs& a, const Device& device, int columns_of_block, Launch& l) {
  a.blocks_of_row = std::max(1, ceil_div(a.k, columns_of_block));
  const int tile_bytes = a.blocks_of_row * kTileBlockBytes, all_tiles = ceil_div(a.n, kTileRows);
  const int most = std::min(kMostBitTiles, kMostBitBytes / tile_bytes);
  a.team_warps = ceil_div(a.blocks_of_row, kPer);
  if (a.m != 1 || most == 0 || a.team_warps > kBitWarps<kPer>) return false;
  l.grid = std::min(all_tiles, device.processors);
  while (ceil_div(all_tiles, l.grid) > most) l.grid += device.processors;
  a.least_tiles = all_tiles / l.grid;
  a.longer = all_tiles % l.grid;
  a.batch = ceil_div(all_tiles, l.grid);
  a.teams = std::min(a.batch, kBitWarps<kPer> / a.team_warps);
  a.team_inverse = 65536 / a.team_warps + 1;
  const int warps = a.teams * a.team_warps;
  a.planes_at = kBitWeightsAt + a.batch * tile_bytes;
  a.plain = a.y_element == Element::kF32 && a.offsets == nullptr && a.bias == nullptr && !a.x_groups;
  l.shared_bytes = a.planes_at + warps * kExchangeWords<kPer> * 4;
  l.threads = 32 * warps;
  return l.shared_bytes <= device.shared_bytes;
}

using GemvKernel = void (*)(GemvArgs);

template <int B, bool kGrouped>
GemvKernel choose_kernel(bool float_x, bool one_token, bool resident) {
  if constexpr (kGrouped) {  // scaling takes the time: where one token is not resident, the kernel for more does it
    return resident ? integer_gemv<B, true, 1, true> : integer_gemv<B, true, kMaxGemvRows, false>;
  } else {
    if (resident)
      return float_x ? integer_gemv<B, false, 1, true, GemvX::kFloats> : integer_gemv<B, false, 1, true, GemvX::kCodes>;
    return one_token ? integer_gemv<B, false, 1, false> : integer_gemv<B, false, kMaxGemvRows, false>;
  }
}

/// Cuts for bit_gemv.cuh; null when it does not take the layer. Strips of one block where few tiles are left to hide
/// behind.
template <int B, bool kCounted = false>
GemvKernel choose_bits(GemvArgs& a, const Device& device, Launch& l) {
  constexpr int kColumns = GemvOrder<B>::kColumns;
  const bool floats = a.x_element != Element::kInt8;
  if constexpr (B == 2)
    if (!floats && ceil_div(a.n, kTileRows) <= 2 * device.processors && cut_bits<1>(a, device, kColumns, l))
      return bit_gemv<B, 1, false, kCounted>;
  if (!cut_bits<2>(a, device, kColumns, l)) return nullptr;
  return floats ? bit_gemv<B, 2, true, kCounted> : bit_gemv<B, 2, false, kCounted>;
}

cudaError_t start_one(GemvKernel kernel, const GemvArgs& a, const Launch& l, const Device& device, bool overlap,
                      cudaStream_t stream) {
  return launch(kernel, dim3(static_cast<unsigned>(l.grid)), dim3(static_cast<unsigned>(l.threads)),
                static_cast<size_t>(l.shared_bytes), stream, overlap && device.bulk_copies, a);
}

template <int B, bool kGrouped>
cudaError_t start(const GemvArgs& a, const Device& device, bool overlap, cudaStream_t stream) {
  GemvArgs part = a;
  Launch l{};
  if constexpr (!kGrouped && B <= 2)
    if (const GemvKernel kernel = choose_bits<B>(part, device, l); kernel != nullptr) {
      const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device);
      return e == cudaSuccess ? start_one(kernel, part, l, device, overlap, stream) : e;
    }
  int rows = std::min(a.m, kMaxGemvRows);  // as many tokens at a time as fit beside the weights
  for (;; --rows) {
    part.m = rows;
    l = cut(part, device.processors, device.shared_bytes, kGrouped, GemvOrder<B>::kColumns);
    if (l.shared_bytes <= device.shared_bytes) break;
    if (rows == 1) return cudaErrorInvalidValue;
  }
  const GemvKernel kernel = choose_kernel<B, kGrouped>(a.x_element != Element::kInt8, rows == 1, l.resident);
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const int64_t x_bytes = element_bytes(a.x_element) * a.ldx, y_bytes = element_bytes(a.y_element) * a.ldy;
  for (int m0 = 0; m0 < a.m; m0 += rows) {
    GemvArgs now = part;
    now.m = std::min(rows, a.m - m0);
    now.x = static_cast<const uint8_t*>(a.x) + m0 * x_bytes;
    now.y = static_cast<uint8_t*>(a.y) + m0 * y_bytes;
    if (a.x_scales != nullptr) now.x_scales = a.x_scales + static_cast<int64_t>(m0) * (a.x_groups ? a.groups : 1);
    if (const auto e = start_one(kernel, now, l, device, overlap, stream); e != cudaSuccess) return e;
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
  return cut(a, 100, kSmallestShared, groups > 1, GemvOrder<B>::kColumns).shared_bytes <= kSmallestShared;
}

cudaError_t launch_counted_gemv(const GemvArgs& a, bool overlap, cudaStream_t stream) {
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  for (int row = 0; row < a.m; ++row) {
    GemvArgs part = a;
    Launch l{};
    part.m = 1;
    part.x = static_cast<const uint8_t*>(a.x) + row * a.ldx * element_bytes(a.x_element);
    part.y = static_cast<uint8_t*>(a.y) + row * a.ldy * element_bytes(a.y_element);
    if (a.x_scales != nullptr) part.x_scales = a.x_scales + row;
    const GemvKernel kernel = choose_bits<2, true>(part, device, l);
    if (kernel == nullptr) return cudaErrorInvalidValue;
    if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
    if (const auto e = start_one(kernel, part, l, device, overlap, stream); e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

bool counted_gemv_fits(int k) {
  GemvArgs a{};
  Launch l{};
  a.n = 1 << 20;
  a.k = k;
  a.m = 1;
  Device smallest;
  smallest.processors = 100;
  smallest.shared_bytes = kSmallestShared;
  return cut_bits<2>(a, smallest, GemvOrder<2>::kColumns, l);
}

#define LOWBIT_GEMV(B)                                                                    \
  template cudaError_t launch_integer_gemv<B>(const GemvArgs&, bool, bool, cudaStream_t); \
  template bool gemv_fits<B>(int, int);
LOWBIT_GEMV(1)
LOWBIT_GEMV(2)
LOWBIT_GEMV(4)
LOWBIT_GEMV(8)
#undef LOWBIT_GEMV

}  // namespace lowbit::cuda
