#pragma once
// y[m, n] = sum_k x[m, k] real(w)[n, k] for 1 to 8 tokens: integer weights of 1, 2, 4 or 8 bits, int8 activations.
//
// Shapes:   a thread block takes consecutive tiles of 16 rows of w and all of x. A chunk is a tile, or a part of a long
//           tile's K; teams of warps take chunks in turn and share the blocks of one.
// Memory:   weights are copied to shared memory before x is touched, so that a dependent launch fills the time in which
//           its predecessor finishes; copies of `buffers` chunks are under way at once.
// Numerics: integer sums are exact and equal the reference's; floats are scaled and added in its order
//           (docs/numerics.md#matmul).
// Limits:   reading the weights; for few rows of w, the chain wait - read x - mma - add over warps - store.
// Source:   seed 002 sections 4.2 to 4.4, with the faults of its row sections and fixed shapes left out.

#include "kernels/cuda/gemv_staging.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {

__device__ __forceinline__ uint4 shared_16(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }

/// The tiles of this thread block.
struct GemvRange {
  int first, count;
  __device__ explicit GemvRange(const GemvArgs& a) {
    const int b = blockIdx.x;
    first = b * a.least_tiles + min(b, a.longer);
    count = a.least_tiles + (b < a.longer ? 1 : 0);
  }
};

/// Starts the copy of a chunk into its buffer. Bulk copies: one thread calls it; others: all threads.
__device__ __forceinline__ void start_chunk(const GemvArgs& a, uint8_t* smem, int tile, int k_chunk, int buffer) {
  const int blocks = min(a.blocks_of_chunk, a.blocks_of_row - k_chunk * a.blocks_of_chunk);
  const uint32_t barrier = shared_address(smem + a.barriers_at) + 8 * buffer;
  const uint32_t to = shared_address(smem) + buffer * a.chunk_bytes;
  const uint8_t* const from =
      a.codes + (static_cast<int64_t>(tile) * a.blocks_of_row + k_chunk * a.blocks_of_chunk) * kTileBlockBytes;
#if LOWBIT_SM90
  barrier_expect(barrier, blocks * kTileBlockBytes);
  copy_bulk(to, from, blocks * kTileBlockBytes, barrier);
#else
  for (int i = threadIdx.x; i < blocks * (kTileBlockBytes / 16); i += blockDim.x)
    copy_async_16(to + 16 * i, from + 16 * i);
  copies_arrive(barrier);
#endif
}

/// A position in the sequence of a thread block's chunks. Buffers are reused in turn.
struct GemvChunk {
  int position = 0, tile = 0, k_chunk = 0, buffer = 0, phase = 0;
  int slot = 0;  // tile modulo batch
  __device__ void advance(const GemvArgs& a, int by) {
    position += by;
    for (k_chunk += by; k_chunk >= a.chunks_of_tile; k_chunk -= a.chunks_of_tile) {
      ++tile;
      if (++slot == a.batch) slot = 0;
    }
    for (buffer += by; buffer >= a.buffers; buffer -= a.buffers) phase ^= 1;
  }
};

/// Adds the sums of a lane (rows g and g + 8, columns 2 t and 2 t + 1) to those of the thread block [groups][m][rows].
template <int kRows>
__device__ __forceinline__ void add_sums(const GemvArgs& a, int* sums, int group, int row, const int (&c)[4]) {
  const int rows = a.batch * kTileRows, t = threadIdx.x & 3;
  if constexpr (kRows == 1) {
    if (t != 0) return;
    atomicAdd(sums + group * rows + row, c[0]);
    atomicAdd(sums + group * rows + row + 8, c[2]);
    return;
  }
  int* const to = sums + (group * a.m + 2 * t) * rows + row;
  if (2 * t < a.m) {
    atomicAdd(to, c[0]);
    atomicAdd(to + 8, c[2]);
  }
  if (2 * t + 1 < a.m) {
    atomicAdd(to + rows, c[1]);
    atomicAdd(to + rows + 8, c[3]);
  }
}

/// A block of 64 bytes, scales per row: fields stay where they are, each has a sum of its own that is 2^(B f) too
/// large.
template <int B, int kSums>
__device__ __forceinline__ void add_block(const uint8_t* weights, const uint8_t* x, int (&c)[kSums][4]) {
  using Order = GemvOrder<B>;
  const uint4 low = shared_16(weights), high = shared_16(weights + 8 * kBlockBytes);
  const uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t v[Order::kSlots];
#pragma unroll
  for (int i = 0; i < Order::kFields; ++i) {
    const uint4 part = shared_16(x + i * 64);
    v[4 * i] = part.x, v[4 * i + 1] = part.y, v[4 * i + 2] = part.z, v[4 * i + 3] = part.w;
  }
#pragma unroll
  for (int f = 0; f < Order::kFields; ++f) {
    const int sum = f % kSums, shift = B * (f - sum);
    const uint32_t mask = Order::kMask << (B * sum);
#pragma unroll
    for (int j = 0; j < 4; j += 2)
      mma_u8_s8(c[sum], (w[j] >> shift) & mask, (w[4 + j] >> shift) & mask, (w[j + 1] >> shift) & mask,
                (w[5 + j] >> shift) & mask, v[j * Order::kFields + f], v[(j + 1) * Order::kFields + f]);
  }
}

/// add_block() with sums per group of 32 << group_shift columns, which are added to the thread block's where a group
/// ends.
template <int B, int kRows>
__device__ __forceinline__ void add_block_groups(const GemvArgs& a, const uint8_t* weights, const uint8_t* x,
                                                 int first_step, int row, int* sums) {
  using Order = GemvOrder<B>;
  const uint4 low = shared_16(weights), high = shared_16(weights + 8 * kBlockBytes);
  const uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  int c[4] = {};
#pragma unroll
  for (int i = 0; i < Order::kFields; ++i) {
    const uint4 part = shared_16(x + i * 64);
    const uint32_t v[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
    for (int h = 0; h < 4; h += 2) {
      const int s = 4 * i + h, j0 = s / Order::kFields, j1 = (s + 1) / Order::kFields;
      const int f0 = B * (s % Order::kFields), f1 = B * ((s + 1) % Order::kFields);
      mma_u8_s8(c, (w[j0] >> f0) & Order::kMask, (w[4 + j0] >> f0) & Order::kMask, (w[j1] >> f1) & Order::kMask,
                (w[4 + j1] >> f1) & Order::kMask, v[h], v[h + 1]);
      const int step = first_step + s / 2, group = step >> a.group_shift;
      const bool ends = ((step + 1) & ((1 << a.group_shift) - 1)) == 0 || s + 2 == Order::kSlots;
      if (ends) {
        if (group < a.groups) add_sums<kRows>(a, sums, group, row, c);
        c[0] = c[1] = c[2] = c[3] = 0;
      }
    }
  }
}

/// y of `tiles` tiles from their sums, which are zeroed again. `first`: the first tile, within the range; `slot`: its
/// sums'.
template <bool kGrouped, int kRows>
__device__ __forceinline__ void finish_tiles(const GemvArgs& a, uint8_t* smem, const GemvRange& range, int first,
                                             int tiles, int slot) {
  const int rows = a.batch * kTileRows, first_row = (range.first + first) * kTileRows;
  int* const sums = reinterpret_cast<int*>(smem + a.sums_at);
  const int* const x_sums = reinterpret_cast<const int*>(smem + a.x_sums_at);
  const float* const x_scales = reinterpret_cast<const float*>(smem + a.x_scales_at);
  const float* const staged = reinterpret_cast<const float*>(smem + a.scales_at) + first * kTileRows;
  const int outputs = tiles * kTileRows, count = kRows == 1 ? outputs : outputs * a.m;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int m = kRows == 1 ? 0 : i / outputs, r = i - m * outputs;
    const int row = first_row + r, row_read = min(row, a.n - 1);
    const int wrapped = slot * kTileRows + r, at = wrapped < rows ? wrapped : wrapped - rows;
    int* const sum_at = sums + m * rows + at;  // of group g: m * rows later
    const int next_group = a.m * rows, groups = kGrouped ? a.groups : 1;
    float acc = 0, part = 0, part_x = 0;
    int scale_ends = a.groups_per_scale;
#pragma unroll 8
    for (int g = 0; g < groups; ++g) {
      const int sum_x = x_sums[m * a.groups + g], sum = a.mul * sum_at[g * next_group] + a.add * sum_x;
      const float x_scale = a.x_groups ? x_scales[m * a.groups + g] : 1.0f;
      part = __fmaf_rn(static_cast<float>(sum), x_scale, part);
      part_x = __fmaf_rn(static_cast<float>(sum_x), x_scale, part_x);
      if (g + 1 != scale_ends && g + 1 != groups) continue;
      scale_ends += a.groups_per_scale;
      const float scale = kGrouped ? a.scales[static_cast<int64_t>(g) * a.factor_rows + row_read] : staged[r];
      acc = __fmaf_rn(part, scale, acc);
      if (a.offsets != nullptr)
        acc = __fmaf_rn(part_x, a.offsets[static_cast<int64_t>(g) * a.factor_rows + row_read], acc);
      part = part_x = 0;
    }
    for (int g = 0; g < groups; ++g) sum_at[g * next_group] = 0;
    if (row >= a.n) continue;
    const float bias = a.bias == nullptr ? 0.0f : a.bias[row];
    const float y = a.x_groups ? __fadd_rn(acc, bias) : __fmaf_rn(acc, x_scales[m], bias);
    store_element(a.y, a.y_element, m * a.ldy + row, y);
  }
}

/// Prepares everything that needs no x: barriers, the first weights, scales, and zeros.
template <bool kGrouped>
__device__ __forceinline__ void begin_block(const GemvArgs& a, uint8_t* smem, const GemvRange& range) {
  const int chunks = min(a.buffers, range.count * a.chunks_of_tile);
  const int first_row = range.first * kTileRows, rows = min(range.count * kTileRows, a.n - first_row);
#if LOWBIT_SM90
  if (threadIdx.x == 0) {
    for (int b = 0; b < chunks; ++b) barrier_init(shared_address(smem + a.barriers_at) + 8 * b, 1);
    barriers_visible_to_copies();
    GemvChunk u;
    for (int i = 0; i < chunks; ++i, u.advance(a, 1)) start_chunk(a, smem, range.first + u.tile, u.k_chunk, u.buffer);
  }
#else
  if (threadIdx.x == 0)
    for (int b = 0; b < chunks; ++b) barrier_init(shared_address(smem + a.barriers_at) + 8 * b, blockDim.x);
  __syncthreads();
#endif
  if constexpr (kGrouped) {
    for (int r = 0; r < rows; r += 32)
      for (int g = threadIdx.x; g < a.groups; g += blockDim.x)
        prefetch_to_l2(a.scales + static_cast<int64_t>(g) * a.factor_rows + first_row + r);
  } else {
    for (int i = threadIdx.x; i < rows; i += blockDim.x)
      copy_async_4(shared_address(smem + a.scales_at) + 4 * i, a.scales + first_row + i);
  }
#if !LOWBIT_SM90
  GemvChunk u;
  for (int i = 0; i < chunks; ++i, u.advance(a, 1)) start_chunk(a, smem, range.first + u.tile, u.k_chunk, u.buffer);
#endif
  // Sums of products, sums of x and largest magnitudes lie side by side.
  int* const zeros = reinterpret_cast<int*>(smem + a.sums_at);
  for (int i = threadIdx.x; i < (a.x_scales_at - a.sums_at) / 4; i += blockDim.x) zeros[i] = 0;
}

/// One chunk: this warp's blocks of it, added to the thread block's sums. `chunk` and `x` are where this lane reads.
template <int B, bool kGrouped, int kRows>
__device__ __forceinline__ void add_chunk(const GemvArgs& a, const GemvChunk& u, int warp, const uint8_t* chunk,
                                          const uint8_t* x, int row, int* sums) {
  constexpr int kSums = GemvOrder<B>::kFields < 4 ? GemvOrder<B>::kFields : 4, kXBytes = GemvOrder<B>::kFields * 64;
  const int first = u.k_chunk * a.blocks_of_chunk, blocks = min(a.blocks_of_chunk, a.blocks_of_row - first);
  if constexpr (kGrouped) {
#pragma unroll 1
    for (int b = warp; b < blocks; b += a.team_warps)
      add_block_groups<B, kRows>(a, chunk + b * kTileBlockBytes, x + (first + b) * kXBytes,
                                 (first + b) * (GemvOrder<B>::kSlots / 2), row, sums);
  } else {
    int c[kSums][4] = {};
#pragma unroll 1
    for (int b = warp; b < blocks; b += a.team_warps)
      add_block<B, kSums>(chunk + b * kTileBlockBytes, x + (first + b) * kXBytes, c);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int f = 1; f < kSums; ++f) c[0][i] += c[f][i] >> (B * f);
    }
    if (warp < blocks) add_sums<kRows>(a, sums, 0, row, c[0]);
  }
}

/// All chunks with their buffers refilled and their sums written in rounds. Returns the first tile that is left to
/// finish, and its slot.
template <int B, bool kGrouped, int kRows>
__device__ __forceinline__ int2 stream_chunks(const GemvArgs& a, uint8_t* smem, const GemvRange& range, int team,
                                              int warp, const uint8_t* x, int* sums) {
  const int lane = threadIdx.x & 31, g = lane >> 2, chunks = range.count * a.chunks_of_tile;
  const int reach = (a.chunks_of_tile + a.teams - 2) / a.chunks_of_tile + 1;  // tiles that a round may touch
  GemvChunk mine, head;  // this team's next chunk; the first chunk of the round
  mine.advance(a, team);
  int finished = 0, slot = 0;  // tiles whose y is written, modulo batch
#pragma unroll 1
  for (int round = 0; round < chunks; round += a.teams) {
    if (mine.position < chunks && team < a.teams) {
      barrier_wait(shared_address(smem + a.barriers_at) + 8 * mine.buffer, mine.phase);
      add_chunk<B, kGrouped, kRows>(a, mine, warp, smem + mine.buffer * a.chunk_bytes + lane * 16, x,
                                    mine.slot * kTileRows + g, sums);
    }
    mine.advance(a, a.teams);
    GemvChunk from = head;
    from.advance(a, a.buffers);
    const bool last = round + a.teams >= chunks, refill = from.position < chunks;
    head.advance(a, a.teams);
    const bool finish = !last && head.tile - finished + reach > a.batch;
    if (refill || finish) __syncthreads();
    if (refill) {
#if LOWBIT_SM90
      if (threadIdx.x == 0)
#endif
        for (int i = 0; i < a.teams && from.position < chunks; ++i, from.advance(a, 1))
          start_chunk(a, smem, range.first + from.tile, from.k_chunk, from.buffer);
    }
    if (finish && head.tile > finished) {
      finish_tiles<kGrouped, kRows>(a, smem, range, finished, head.tile - finished, slot);
      __syncthreads();
      finished = head.tile;
      slot = head.slot;
    }
  }
  return {finished, slot};
}

/// The type of x; kEither: told by the arguments.
enum class GemvX { kCodes, kFloats, kEither };

/// kResident: all chunks have a buffer of their own and all sums room of their own, so nothing waits in between.
template <int B, bool kGrouped, int kRows, bool kResident, GemvX kX = GemvX::kEither>
__global__ void __launch_bounds__(512, kResident ? 2 : 1) integer_gemv(const __grid_constant__ GemvArgs a) {
  extern __shared__ __align__(128) uint8_t smem[];
  let_successor_start();
  const GemvRange range(a);
  begin_block<kGrouped>(a, smem, range);
  __syncthreads();
  wait_for_predecessor();
  const int quads = a.blocks_of_row * GemvOrder<B>::kColumns / 16;
  if (kX == GemvX::kFloats || (kX == GemvX::kEither && a.x_element != Element::kInt8)) {
    stage_floats<kGrouped, kRows>(a, smem, quads);
  } else {
    stage_codes<kGrouped, kRows>(a, smem, quads);
  }
#if LOWBIT_SM90
  if constexpr (!kGrouped) wait_for_all_copies();  // the scales; elsewhere the first chunk's barrier speaks for them
#endif
  __syncthreads();

  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int team = ((threadIdx.x >> 5) * a.team_inverse) >> 16, warp = (threadIdx.x >> 5) - team * a.team_warps;
  const uint8_t* const x = smem + a.x_at + (kRows == 1 ? 0 : min(g, a.m - 1) * a.x_stride) + t * 16;
  int* const sums = reinterpret_cast<int*>(smem + a.sums_at);
  int2 rest = {0, 0};
  if constexpr (kResident) {
    GemvChunk mine;
    mine.advance(a, team);
    if (team < a.teams) {
#pragma unroll 1
      for (const int chunks = range.count * a.chunks_of_tile; mine.position < chunks; mine.advance(a, a.teams)) {
        barrier_wait(shared_address(smem + a.barriers_at) + 8 * mine.position, 0);
        add_chunk<B, kGrouped, kRows>(a, mine, warp, smem + mine.position * a.chunk_bytes + lane * 16, x,
                                      mine.tile * kTileRows + g, sums);
      }
    }
  } else {
    rest = stream_chunks<B, kGrouped, kRows>(a, smem, range, team, warp, x, sums);
  }
  __syncthreads();
  finish_tiles<kGrouped, kRows>(a, smem, range, rest.x, range.count - rest.x, rest.y);
}

}  // namespace lowbit::cuda
