#pragma once
// A chain of matmuls with one row of x in one launch: the outputs of each, or the first ones of them, are the x of the next.
// Ternary weights in counted codes with one scale per row, x quantized by its largest magnitude: the numbers of bit_gemv.cuh.
//
// Shapes:   one thread block per multiprocessor, all of them at once. Tiles of 16 rows go round the thread blocks, each
//           linear's from where the last one's ended.
// Memory:   one warp copies tiles and their scales to a ring in shared memory, as far ahead as it has room, whatever linear
//           they belong to: reading weights never waits for x. Outputs are handed over in device memory, one place for each; a
//           place that is not written yet holds a NaN that arithmetic does not give, so that the values are their own flags.
//           There are two halves of such places: one is in use, the other is made empty for the next launch.
// Numerics: integer sums are exact and equal the reference's; floats as if each were a matmul of its own with f32 x and y.
// Limits:   the chain store - second-level cache - load - largest magnitude - planes - products - store, or reading weights.

#include <cstddef>

#include "kernels/cuda/bit_gemv.cuh"
#include "kernels/cuda/matmul_chain.h"
#include "kernels/cuda/matmul_chain_ptx.cuh"

namespace lowbit::cuda {

inline constexpr uint32_t kEmpty = 0xffffffffu;
inline constexpr int kChainThreads = 32 * kChainWarps + 32, kMostChainTiles = 16, kPlaneWords = 144;

/// A linear whose tiles are in the ring or on their way, as this thread block sees it.
struct alignas(16) ChainFlight {
  int at, wrap;         // where its first tile is; which tile is the first of those that begin at the ring's beginning
  int stride, count;    // bytes of a tile and its scales; tiles
  int first_row, left;  // rows from there on whose outputs are wanted
  int out, teams;       // where the first one's goes in the exchange, in bytes; teams
};

struct ChainShared {
  ChainLinear linears[kMostChainLinears];
  ChainFlight flights[kChainFlights];
  uint64_t barriers[kChainFlights];
  uint32_t ends[kChainFlights];  // in bytes that the ring has held
  alignas(16) uint32_t planes[kChainWarps][kPlaneWords];
  alignas(16) int sums[kMostChainTiles * kTileRows];
  int sum_x[kChainWarps];         // of strips
  uint32_t largest[kChainWarps];  // magnitudes of x in strips, as bits
  float x_scale;
  int finished;  // linears
};

inline constexpr uint32_t kShapeAt = offsetof(ChainShared, linears) + offsetof(ChainLinear, k),
                          kLargestAt = offsetof(ChainShared, largest), kScaleAt = offsetof(ChainShared, x_scale),
                          kFinishedAt = offsetof(ChainShared, finished);

/// The tiles of this thread block of a linear.
struct ChainRange {
  int first, count;
  __device__ explicit ChainRange(const ChainLinear& l) {
    int b = static_cast<int>(blockIdx.x) - l.turn;
    if (b < 0) b += static_cast<int>(gridDim.x);
    first = b * l.least + min(b, l.longer);
    count = l.least + (b < l.longer ? 1 : 0);
  }
};

#if LOWBIT_SM90
/// Waits until all tiles of a linear are there.
__device__ __forceinline__ void wait_for_tiles(uint32_t barriers, int linear) {
  barrier_wait(barriers + 8 * (linear % kChainFlights), (linear / kChainFlights) & 1);
}

/// Brings weights, as many tiles as there is room for. One thread.
struct ChainCopies {
  const ChainArgs& a;
  ChainShared& shared;
  uint32_t ring;
  int linear = 0;               // the next to be copied
  int finished = 0;             // linears
  uint32_t head = 0, tail = 0;  // bytes that were given away, and given back

  __device__ void run() {
    while (linear < a.count) {
      const ChainLinear& l = shared.linears[linear];
      const ChainRange range(l);
      const auto room = static_cast<uint32_t>(a.ring_bytes);
      const uint32_t tile_bytes = l.strips * kTileBlockBytes, bytes = tile_bytes + 4 * kTileRows;
      const int slot = linear % kChainFlights;
      const uint32_t barrier = shared_address(shared.barriers) + 8 * slot;
      uint32_t at = head % room;
      wait_for_room(0, linear - finished >= kChainFlights);
      const int first_row = range.first * kTileRows;
      shared.flights[slot] = {static_cast<int>(at),
                              static_cast<int>((room - at) / bytes),
                              static_cast<int>(bytes),
                              range.count,
                              first_row,
                              (linear + 1 < a.count ? l.out_count : l.n) - first_row,
                              l.out + first_row * (a.half ? 2 : 4),
                              l.teams};
      const uint8_t* codes = l.codes + static_cast<int64_t>(range.first) * tile_bytes;
      const float* scales = l.scales + range.first * kTileRows;
      for (int i = 0; i < range.count; ++i, codes += tile_bytes, scales += kTileRows) {
        if (at + bytes > room) {  // a tile lies in one piece
          head += room - at;
          at = 0;
        }
        wait_for_room(bytes, false);
        if (i + 1 < range.count) {
          expect_more(barrier, bytes);
        } else {
          barrier_expect(barrier, bytes);
        }
        copy_bulk(ring + at, codes, tile_bytes, barrier);
        copy_bulk(ring + at + tile_bytes, scales, 4 * kTileRows, barrier);
        at += bytes;
        head += bytes;
      }
      if (range.count == 0) barrier_expect(barrier, 0);
      shared.ends[slot] = head;
      ++linear;
    }
  }
  /// Until `bytes` are free, and, if `next`, a barrier is.
  __device__ void wait_for_room(uint32_t bytes, bool next) {
    while (head + bytes - tail > static_cast<uint32_t>(a.ring_bytes) || next) {
      const int now = load_finished(shared_address(&shared.finished));
      if (now == finished) continue;
      finished = now;
      tail = shared.ends[(finished - 1) % kChainFlights];
      next = linear - finished >= kChainFlights;
    }
  }
};
#endif

/// The products of a warp with a tile: lanes t < 2 of four get the sum of row g + 8 t, as sum_planes() of bit_gemv.cuh does.
__device__ __forceinline__ int chain_products(const uint4& low, const uint4& high, const uint4& planes, int t) {
  int c[4] = {};
  mma_bits(c, low.x, high.x, low.y, high.y, planes.x, planes.y);
  mma_bits(c, low.z, high.z, low.w, high.w, planes.z, planes.w);
  const int more = t == 3 ? -2 : 2;
  const int row = (c[0] + c[1] * more) << 2 * t, behind = (c[2] + c[3] * more) << 2 * t;
  int sum = (t & 1) == 0 ? row : behind;
  sum += __shfl_xor_sync(0xffffffffu, (t & 1) == 0 ? behind : row, 1);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

__device__ __forceinline__ uint32_t quantize_word(const uint4& v, float inverse) {
  const uint32_t raw[4] = {v.x, v.y, v.z, v.w};
  uint32_t code[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)  // 1.5 * 2^23 is added: the nearest integer, ties to even, in the low bits
    code[i] = f32_to_bits(__fadd_rn(__fmul_rn(bits_to_f32(raw[i]), inverse), 12582912.0f));
  const uint32_t word =
      __byte_perm(__byte_perm(code[0], code[1], 0x0040), __byte_perm(code[2], code[3], 0x0040), 0x5410);
  return inverse == 0.0f ? 0 : word;
}

/// x of a strip in the lanes of its warp: eight columns each, four and, 16 behind, four; lanes of the upper half 32 behind.
__device__ __forceinline__ void load_given(const ChainArgs& a, int first, int k, uint4 (&v)[2]) {
  const int bytes = element_bytes(a.x_element);
  const bool aligned = (static_cast<int>(reinterpret_cast<uintptr_t>(a.x)) & (4 * bytes - 1)) == 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float f[4];
    load_four(a.x, a.x_element, first + 16 * i, k, aligned, f);
    v[i] = {f32_to_bits(f[0]), f32_to_bits(f[1]), f32_to_bits(f[2]), f32_to_bits(f[3])};
  }
}

/// The same of what a predecessor in the chain gives. Asked for early, taken when it is there.
template <bool kHalf>
struct ChainStrip {
  const uint8_t* from;
  int first, k;
  uint32_t raw[2][kHalf ? 2 : 4];

  __device__ void ask() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (first + 16 * i >= k) continue;
      if constexpr (kHalf) {
        load_exchange_8(from + 32 * i, raw[i]);
      } else {
        load_exchange_16(from + 64 * i, raw[i]);
      }
    }
  }
  __device__ bool has_come() const {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < (kHalf ? 2 : 4); ++j) most = max(most, raw[i][j]);
    }
    return most != kEmpty;
  }
  __device__ void take(uint4 (&v)[2]) {
    while (!has_come()) ask();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kHalf) {
        v[i] = {raw[i][0] << 16, raw[i][0] & 0xffff0000u, raw[i][1] << 16, raw[i][1] & 0xffff0000u};
      } else {
        v[i] = {raw[i][0], raw[i][1], raw[i][2], raw[i][3]};
      }
      const int left = k - first - 16 * i;  // behind the last column there is what nobody asked for
      if (left < 4) {
        v[i].w = 0;
        if (left < 3) v[i].z = 0;
        if (left < 2) v[i].y = 0;
        if (left < 1) v[i].x = 0;
      }
    }
  }
};

__device__ __forceinline__ uint32_t largest_of(const uint4 (&v)[2]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t x = v[i].x & 0x7fffffffu, y = v[i].y & 0x7fffffffu, z = v[i].z & 0x7fffffffu,
                   w = v[i].w & 0x7fffffffu;
    most = max(most, max(max(x, y), max(z, w)));
  }
  return most;
}

/// Quantizes a strip, cuts it into planes and puts them, and its sum, where all warps find them. place: of the lane's planes.
__device__ __forceinline__ void cut_strip(uint32_t place, uint32_t sum_place, int lane, const uint4 (&v)[2],
                                          float inverse) {
  const bool upper = lane >= 16;
  const int down = upper ? 4 : 0;
  const uint32_t own[2] = {quantize_word(v[0], inverse), quantize_word(v[1], inverse)};
  uint32_t cells[2];  // of the upper half four planes, of the lower four
#pragma unroll
  for (int f = 0; f < 2; ++f) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, own[f], 16);
    const uint32_t before = upper ? other : own[f], behind = upper ? own[f] : other;
    cells[f] = (before >> down & 0x0f0f0f0fu) | (behind >> down << 4 & 0xf0f0f0f0u);
  }
  transpose_cells<2, 2>(cells);
#pragma unroll
  for (int f = 0; f < 2; ++f) {
#pragma unroll
    for (int e = 0; e < 2; ++e) store_shared_4(place + (2 * f + e) * 64, (cells[f] >> e & 0x55555555u) * 3);
  }
  int sum = __dp4a(static_cast<int>(own[0]), 0x01010101, __dp4a(static_cast<int>(own[1]), 0x01010101, 0));
  sum = __reduce_add_sync(0xffffffffu, sum);
  if (lane == 0) store_shared_4(sum_place, static_cast<uint32_t>(sum));
}

template <bool kHalf>
__global__ void __launch_bounds__(kChainThreads, 1) matmul_chain(const __grid_constant__ ChainArgs a) {
#if LOWBIT_SM90
  uint8_t* const smem = shared_memory();
  ChainShared& shared = *reinterpret_cast<ChainShared*>(smem);
  const uint8_t* const ring = smem + a.ring_at;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, thread = static_cast<int>(threadIdx.x);
  uint32_t base = shared_address(smem);
  const uint32_t half = *reinterpret_cast<volatile uint32_t*>(a.state) & 1;
  for (int i = thread; i < a.count * static_cast<int>(sizeof(ChainLinear) / 4); i += kChainThreads)
    reinterpret_cast<int*>(shared.linears)[i] = reinterpret_cast<const int*>(a.linears)[i];
  if (thread < kMostChainTiles * kTileRows) shared.sums[thread] = 0;
  if (thread == 0) shared.finished = 0;
  if (thread < kChainFlights) barrier_init(shared_address(shared.barriers) + 8 * thread, 1);
  barriers_visible_to_copies();
  __syncthreads();

  if (warp == kChainWarps) {
    ChainCopies copies{a, shared, shared_address(ring)};
    if (lane == 0) copies.run();
    return;
  }

  settle(lane);
  settle(warp);
  settle(thread);
  settle(base);
  constexpr int kBytes = kHalf ? 2 : 4;
  uint8_t* const now = a.exchange + static_cast<int64_t>(half) * a.half_bytes;
  const int64_t to_other = half != 0 ? -static_cast<int64_t>(a.half_bytes) : a.half_bytes;
  for (int at = 0; at < a.count; ++at) {
    const uint4 shape = load_shared_16(base + kShapeAt + at * static_cast<uint32_t>(sizeof(ChainLinear)));
    const int k = static_cast<int>(shape.x), strips = static_cast<int>(shape.z);
    const int team = (warp * static_cast<int>(shape.w)) >> 16, strip = warp - team * strips;
    const int first = strip * 256 + (lane >> 2 & 3) * 64 + (lane >> 4) * 32 + 4 * (lane & 3);
    ChainStrip<kHalf> handed{now + shape.y + first * kBytes, first, k, {}};
    if (at > 0 && team == 0) handed.ask();
    wait_for_tiles(base + static_cast<uint32_t>(offsetof(ChainShared, barriers)), at);
    const uint32_t flight = base + static_cast<uint32_t>(offsetof(ChainShared, flights)) +
                            at % kChainFlights * static_cast<uint32_t>(sizeof(ChainFlight));
    const uint4 tile_of = load_shared_16(flight), rows = load_shared_16(flight + 16);
    const int wrap = static_cast<int>(tile_of.y), stride = static_cast<int>(tile_of.z),
              count = static_cast<int>(tile_of.w), teams = static_cast<int>(rows.w);
    if (team > 0 && (team >= teams || team >= count) && 64 * warp >= count * kTileRows && warp + 1 < kChainWarps) {
      meet(2, 32 * kChainWarps);  // nothing to do in this one
      meet(3, 32 * kChainWarps);
      continue;
    }
    const auto place = [&](int tile) {
      return base + a.ring_at + (tile < wrap ? tile_of.x + tile * stride : (tile - wrap) * stride);
    };
    // Whatever does not need x: two rows of a thread that will finish them, the weights of the first tile, addresses.
    const bool finishes = 2 * thread < count * kTileRows;
    const int row = static_cast<int>(rows.x) + 2 * thread, left = static_cast<int>(rows.y) - 2 * thread;
    uint8_t* to = now + rows.z + 2 * kBytes * thread;
    uint8_t* clear = to + to_other;
    float2 scale = {0.0f, 0.0f};
    if (finishes) {
      const uint32_t from = place(thread / 8) + stride - 4 * kTileRows + 8 * (thread % 8);
      scale = {bits_to_f32(load_shared_4(from)), bits_to_f32(load_shared_4(from + 4))};
    }
    settle(to);
    settle(clear);
    uint4 low{}, high{};
    const int part = strip * kTileBlockBytes + lane * 16;
    const auto fetch = [&](int tile) {
      const uint32_t from = place(tile) + part;
      low = load_shared_16(from);
      high = load_shared_16(from + 8 * kBlockBytes);
    };
    const int tiles = team < teams ? count : 0;
    if (team < tiles) fetch(team);
    const uint32_t strip_planes = base + static_cast<uint32_t>(offsetof(ChainShared, planes)) + strip * kPlaneWords * 4;
    uint32_t planes_at = strip_planes + (lane >> 4) * 64 + lane * 16;
    uint32_t cut_at = strip_planes + (lane >> 4) * 320 + (lane & 3) * 16 + (lane >> 2 & 3) * 4;
    uint32_t sum_at = base + static_cast<uint32_t>(offsetof(ChainShared, sum_x)) + 4 * strip;
    uint32_t sums_at = base + static_cast<uint32_t>(offsetof(ChainShared, sums)) +
                       4 * (team * kTileRows + (lane >> 2) + 8 * (lane & 3));
    uint32_t own_sums = base + static_cast<uint32_t>(offsetof(ChainShared, sums)) + 8 * thread;
    settle(planes_at);
    uint32_t largest_at = base + kLargestAt + 4 * strip;
    settle(cut_at);
    settle(sum_at);
    settle(largest_at);
    settle(sums_at);
    settle(own_sums);

    if (team == 0) {
      uint4 v[2];
      if (at == 0) {
        load_given(a, first, k, v);
      } else {
        handed.take(v);
      }
      const uint32_t most = __reduce_max_sync(0xffffffffu, largest_of(v));
      if (lane == 0) store_shared_4(largest_at, most);
      meet(1, 32 * strips);
      const uint32_t others = lane < strips ? load_shared_4(base + kLargestAt + 4 * lane) : 0;
      cut_strip(cut_at, sum_at, lane, v, quantizer_of(__reduce_max_sync(0xffffffffu, others)).inverse);
    }
    meet(2, 32 * kChainWarps);
    if (team < tiles) {
      const uint4 planes = load_shared_16(planes_at);
      const int less = static_cast<int>(load_shared_4(sum_at));
      for (int tile = team; tile < tiles; tile += teams) {
        const int sum = chain_products(low, high, planes, lane & 3) - less;
        if (tile + teams < tiles) fetch(tile + teams);
        if ((lane & 3) < 2) add_shared_at(sums_at, sum);
        sums_at += teams * kTileRows * 4;
      }
    }
    if (warp == kChainWarps - 1) {  // it has the fewest tiles
      const uint32_t others = lane < strips ? load_shared_4(base + kLargestAt + 4 * lane) : 0;
      const float x_scale = quantizer_of(__reduce_max_sync(0xffffffffu, others)).scale;
      if (lane == 0) store_shared_4(base + kScaleAt, f32_to_bits(x_scale));
    }
    meet(3, 32 * kChainWarps);
    if (finishes) {
      const float x_scale = bits_to_f32(load_shared_4(base + kScaleAt));
      const int2 sum = take_sums(own_sums);
      const float y0 = __fmaf_rn(__fmaf_rn(static_cast<float>(sum.x), scale.x, 0.0f), x_scale, 0.0f);
      const float y1 = __fmaf_rn(__fmaf_rn(static_cast<float>(sum.y), scale.y, 0.0f), x_scale, 0.0f);
      if (at + 1 == a.count) {
        if (left > 0) a.y[row] = y0;
        if (left > 1) a.y[row + 1] = y1;
      } else if (left > 0) {
        if constexpr (kHalf) {
          store_exchange(to, bf16_pair(y0, y1));
          store_exchange(clear, kEmpty);
        } else {
          store_exchange_8(to, f32_to_bits(y0), left > 1 ? f32_to_bits(y1) : 0);
          store_exchange_8(clear, kEmpty, left > 1 ? kEmpty : 0);
        }
      }
    }
    if (thread == 32 * kChainWarps - 1) store_finished(base + kFinishedAt, at + 1);
  }
  // The last thread block to come here makes the other half the one in use.
  if (thread == 0 && atomicAdd(a.state + 1, 1) == gridDim.x - 1) {
    a.state[1] = 0;
    a.state[0] = half ^ 1;
  }
#endif
}

}  // namespace lowbit::cuda
