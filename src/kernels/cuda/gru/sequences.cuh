#pragma once
// All steps of a tile of sequences in one launch: R stays on the chip, h goes round.
//
// A warp owns a group of 16 units: their three gates' rows of R times the codes of h of 8 NT sequences on the matrix unit, then
// gates and state in the lanes that hold the sums (a lane has units 2 i and 2 i + 1 of two sequences per 8). New codes go to
//   kBlock:   the other half of shared memory, one __syncthreads a step;
//   kCluster: every block's shared memory by st.async, which counts bytes on the receiver's barrier: one trip a step. A block sends
//             step s + 1 only after it has all of step s, which every warp sent after its last read of step s - 1: two halves suffice;
//   kGrid:    global memory, then a flag per block; blocks that share a tile run at the same time (cooperative launch).
// The output row of a step is written during the next one, out of shared memory.

#include <span>

#include "kernels/cuda/gru/elements.cuh"
#include "kernels/cuda/gru/matrix.cuh"

namespace lowbit::cuda::gru {

struct SequenceArgs {
  Cell cell;
  Call call;
  int32_t blocks, at_once;
};

template <class N_, int NT_, int KT_, GruPath P_, bool Resident_, bool Single_>
struct Config {
  using N = N_;
  using T = typename N::T;
  static constexpr bool kF32 = N::kNumber == Number::kF32, kResident = Resident_, kSingle = Single_;
  static constexpr int L = kF32 ? 1 : 2, NT = NT_, KT = KT_;
  static constexpr GruPath P = P_;
  static constexpr int kTile = 8 * NT;                         // sequences
  static constexpr int kHalves = P == GruPath::kGrid ? 1 : 2;  // of h in shared memory
  static constexpr int kChains = NT == 1 ? 2 : 1;              // sums per output, to hide the matrix unit's latency
  // Of a lane: units 2 i and 2 i + 1 of sequences 2 j and 2 j + 1; kSingle: one unit of the first sequence, in every two lanes.
  static constexpr int kPerTile = kSingle ? 1 : 4, kSequences = kSingle ? 1 : 2;
  static constexpr int kSent = kSingle ? 1 : kTile;  // sequences whose h goes to the other blocks
  static_assert(!kSingle || NT == 1);
};

/// Where things lie in shared memory, in bytes.
struct SharedLayout {
  int weights, h, stage, tables, barriers, bytes;
};
inline LOWBIT_HD int align_up(int v, int to) { return (v + to - 1) / to * to; }
inline LOWBIT_HD int stride_of_h(int hidden) { return align_up(hidden, 64) + 16; }
inline LOWBIT_HD SharedLayout shared_layout(const Cell& c, int warps, int planes, int tile, bool weights, bool grid,
                                            bool block, bool f32) {
  SharedLayout s{};
  int at = 0;
  s.weights = at;
  if (weights) at += warps * c.r.ksteps * 3 * kTileBytes;
  s.h = at;
  at += (grid ? 1 : 2) * planes * tile * stride_of_h(c.h);
  s.stage = at;
  if (!block) at += warps * planes * tile * 16;
  s.tables = at;
  if (f32)
    for (int i = 0; i < 3; ++i) at += align_up(4 * c.table[i].entries, 16);
  s.barriers = at;
  at += 16;
  s.bytes = at;
  return s;
}

/// One warp's view of its tile.
template <class C>
struct Warp {
  using N = typename C::N;
  using T = typename C::T;
  const SequenceArgs& a;
  const Cell& c;
  SharedLayout at;
  uint8_t* shared;
  uint32_t base;
  int lane, warp, warps, block, group, hs;
  bool works;
  int32_t bias32[3][2];  // where the sums begin (kF32), else bias[] is added behind
  T bias[3][2], scale_low, scale_high, h_base;
  typename N::Shift shift[3][2];
  uint32_t table[3];  // kF32: address in shared memory of the entry 0, less the bits that code_of leaves
  T table_base[3], table_centre[3];
  uint4 weights[C::KT > 0 ? C::KT * 3 : 1];
  // Of the tile.
  int length[C::NT][C::kSequences], row[C::NT][C::kSequences];  // of the lane's sequences: steps, row at step 0
  int y_length, y_row, row_step;
  T old[C::NT][C::kPerTile];                                             // centered
  uint32_t ih[C::NT][C::kSequences][3], ahead[C::NT][C::kSequences][3];  // of this step, of the next

  __device__ __forceinline__ Warp(const SequenceArgs& args, uint8_t* memory)
      : a(args),
        c(args.cell),
        at(shared_layout(args.cell, int(blockDim.x) / 32, C::L, C::kTile, C::kResident && C::KT == 0,
                         C::P == GruPath::kGrid, C::P == GruPath::kBlock, C::kF32)),
        shared(memory),
        base(shared_address(memory)),
        lane(int(threadIdx.x) % 32),
        warp(int(threadIdx.x) / 32),
        warps(int(blockDim.x) / 32),
        block(int(blockIdx.x) % args.blocks),
        group(block * warps + warp),
        hs(stride_of_h(args.cell.h)),
        works(group < args.cell.groups),
        scale_low(T(args.cell.r.low)),
        scale_high(T(args.cell.r.high)),
        h_base(N::code_base(zero_of(args.cell.grid[kSlotH]))),
        shift{{row_shift(0, 0), row_shift(0, 1)},
              {row_shift(1, 0), row_shift(1, 1)},
              {row_shift(2, 0), row_shift(2, 1)}} {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int64_t b = works ? c.r.bias[row_of_unit(gate, u)] : 0;
        bias32[gate][u] = C::kF32 ? int32_t(b) : 0;
        bias[gate][u] = T(b);
      }
    constexpr int kInputs[3] = {kSlotUi, kSlotRi, kSlotNi}, kOutputs[3] = {kSlotU, kSlotR, kSlotN};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      table_base[i] = N::code_base(zero_of(c.grid[kInputs[i]]));
      table_centre[i] = T(-zero_of(c.grid[kOutputs[i]]));
      table[i] = 0;
    }
  }
  /// Row of bias and shift of the lane's unit u (0 or 1).
  __device__ __forceinline__ int row_of_unit(int gate, int u) const {
    return gate * c.padded + group * kGroup + 2 * (lane / 4) + u;
  }
  __device__ __forceinline__ typename N::Shift row_shift(int gate, int u) const {
    return typename N::Shift(works ? c.r.shift[row_of_unit(gate, u)] : 0);
  }
  /// Unit (0 or 1), sequence (0 or 1) of the lane's element e.
  __device__ __forceinline__ int unit_of(int e) const { return C::kSingle ? lane % 2 : e / 2; }
  __device__ __forceinline__ static constexpr int sequence_of(int e) { return C::kSingle ? 0 : e % 2; }
  /// Sequence of the tile of the lane's sequence q in eight nt.
  __device__ __forceinline__ int in_tile(int nt, int q) const { return C::kSingle ? 0 : nt * 8 + 2 * (lane % 4) + q; }

  /// R, and the tables, onto the chip.
  __device__ __forceinline__ void load_constants() {
    const int64_t group_bytes = int64_t(c.r.ksteps) * 3 * kTileBytes;
    if constexpr (C::KT > 0) {
#pragma unroll
      for (int i = 0; i < C::KT * 3; ++i)
        weights[i] = works && i < c.r.ksteps * 3
                         ? *reinterpret_cast<const uint4*>(c.r.tiles + group * group_bytes + i * kTileBytes + lane * 16)
                         : uint4{0, 0, 0, 0};
    } else if constexpr (C::kResident) {
      const int64_t bytes = group_bytes * min(warps, c.groups - block * warps);
      for (int64_t i = 16 * int64_t(threadIdx.x); i < bytes; i += 16 * int64_t(blockDim.x))
        copy_async_16(base + at.weights + uint32_t(i), c.r.tiles + block * warps * group_bytes + i);
    }
    if constexpr (C::kF32) {
      int to = at.tables;
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        auto* const entries = reinterpret_cast<float*>(shared + to);
        for (int e = int(threadIdx.x); e < c.table[i].entries; e += int(blockDim.x))
          entries[e] = float(c.table[i].data[e]) + table_centre[i];
        table[i] = base + uint32_t(to);
        to += align_up(4 * c.table[i].entries, 16);
      }
    }
    wait_for_all_copies();
  }

  __device__ __forceinline__ uint32_t h_offset(int half, int plane, int sequence) const {
    return uint32_t(at.h + ((half * C::L + plane) * C::kTile + sequence) * hs);
  }

  /// The tile's sequences and first states. Returns the steps of the longest.
  __device__ __forceinline__ int begin(int tile) {
    const GruSequences& s = a.call.s;
    const int first = tile * C::kTile, batch = int(s.batch);
    row_step = (s.batch_first ? 1 : batch) * (s.reverse ? -1 : 1);
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt) {
#pragma unroll
      for (int q = 0; q < C::kSequences; ++q) {
        const int i = first + in_tile(nt, q);
        length[nt][q] = i < batch ? s.length[i] : 0;
        row[nt][q] = length[nt][q] > 0 ? int(row_of(s, 0, s.order[i], length[nt][q])) : 0;
      }
#pragma unroll
      for (int e = 0; e < C::kPerTile; ++e) {
        const int i = first + in_tile(nt, sequence_of(e)), unit = group * kGroup + 2 * (lane / 4) + unit_of(e);
        old[nt][e] =
            i < batch && unit < c.h ? T(int(s.state[int64_t(i) * c.h + unit]) - zero_of(c.grid[kSlotH])) : T{0};
      }
    }
    const int mine = first + lane % C::kTile;
    y_length = mine < batch ? s.length[mine] : 0;
    y_row = y_length > 0 ? int(row_of(s, 0, s.order[mine], y_length)) : 0;
    for (int i = int(threadIdx.x); i < C::kTile * hs; i += int(blockDim.x)) {
      const int sequence = i / hs, unit = i % hs;
      const uint32_t code =
          first + sequence < batch && unit < c.h ? s.state[int64_t(first + sequence) * c.h + unit] : 0;
      shared[h_offset(0, 0, sequence) + unit] = uint8_t(code);
      if (C::L == 2) shared[h_offset(0, C::L - 1, sequence) + unit] = uint8_t(code >> 8);
    }
    return s.length[first];
  }

  /// Of sequences that have ended some row is read, and thrown away.
  __device__ __forceinline__ void load_ih(int step, uint32_t (&to)[C::NT][C::kSequences][3]) const {
    const bool bytes = c.ih_bytes == 1;
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt)
#pragma unroll
      for (int q = 0; q < C::kSequences; ++q) {
        const int last = max(length[nt][q] - 1, 0);
        const int64_t place = int64_t(row[nt][q] + min(step, last) * row_step) * c.ih_stride + row_of_unit(0, 0);
        const uint8_t* const from = a.call.ih + (bytes ? place : 2 * place);
        const int gate_bytes = bytes ? c.padded : 2 * c.padded;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          to[nt][q][gate] = bytes ? *reinterpret_cast<const uint16_t*>(from + gate * gate_bytes)
                                  : *reinterpret_cast<const uint32_t*>(from + gate * gate_bytes);
      }
  }
  __device__ __forceinline__ void advance_ih() {
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt)
#pragma unroll
      for (int q = 0; q < C::kSequences; ++q)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) ih[nt][q][gate] = ahead[nt][q][gate];
  }
  __device__ __forceinline__ T ih_code(uint32_t pair, int u) const {
    return N::from_code(c.ih_bytes == 1 ? pair >> (8 * u) & 0xff : pair >> (16 * u) & 0xffff);
  }

  /// R times the tile's h.
  __device__ __forceinline__ void multiply(int half, int (&acc)[C::kChains][C::L][3][C::NT][4]) const {
    const uint32_t h = base + h_offset(half, 0, lane % 8) + 16 * (lane / 8);
    const auto pair = [&](int kp, auto&& weight) {
      uint32_t b[C::L][C::NT][4];
#pragma unroll
      for (int l = 0; l < C::L; ++l)
#pragma unroll
        for (int nt = 0; nt < C::NT; ++nt) load_blocks(b[l][nt], h + uint32_t((l * C::kTile + nt * 8) * hs + kp * 64));
#pragma unroll
      for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          const uint4 w = weight((2 * kp + k) * 3 + gate);
#pragma unroll
          for (int l = 0; l < C::L; ++l)
#pragma unroll
            for (int nt = 0; nt < C::NT; ++nt)
              mma_s8_u8(acc[C::kChains == 2 ? k : 0][l][gate][nt], w, b[l][nt][2 * k], b[l][nt][2 * k + 1]);
        }
    };
    if constexpr (C::KT > 0) {
#pragma unroll
      for (int kp = 0; kp < C::KT / 2; ++kp)
        if (2 * kp < c.r.ksteps) pair(kp, [&](int i) { return weights[i]; });
    } else {
      const uint32_t mine = base + at.weights + uint32_t(warp * c.r.ksteps * 3 * kTileBytes + lane * 16);
      const uint8_t* const far = c.r.tiles + int64_t(group) * c.r.ksteps * 3 * kTileBytes + lane * 16;
#pragma unroll 2
      for (int kp = 0; kp < c.r.ksteps / 2; ++kp)
        pair(kp, [&](int i) {
          if constexpr (C::kResident)
            return load_shared_16(mine + uint32_t(i * kTileBytes));
          else
            return __ldg(reinterpret_cast<const uint4*>(far + int64_t(i) * kTileBytes));
        });
    }
  }

  /// Where sums begin.
  __device__ __forceinline__ void begin_sums(int (&acc)[C::kChains][C::L][3][C::NT][4]) const {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int nt = 0; nt < C::NT; ++nt)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int chain = 0; chain < C::kChains; ++chain)
#pragma unroll
            for (int l = 0; l < C::L; ++l) acc[chain][l][gate][nt][e] = 0;
          acc[0][0][gate][nt][e] = bias32[gate][e / 2];
        }
  }
  /// Centered hh of the lane's element e.
  __device__ __forceinline__ T hh(const int (&acc)[C::kChains][C::L][3][C::NT][4], int gate, int nt, int e) const {
    int parts[C::L];
#pragma unroll
    for (int l = 0; l < C::L; ++l) {
      const auto all = [&](int i) {
        return int(uint32_t(acc[0][l][gate][nt][i]) +
                   (C::kChains == 2 ? uint32_t(acc[C::kChains - 1][l][gate][nt][i]) : 0));
      };
      if constexpr (C::kSingle) {  // sequence 0 lies in the first lane of four
        const int first = __shfl_sync(0xffffffffu, all(0), lane & ~3),
                  second = __shfl_sync(0xffffffffu, all(2), lane & ~3);
        parts[l] = lane % 2 == 0 ? first : second;
      } else {
        parts[l] = all(e);
      }
    }
    const bool odd = unit_of(e) != 0;
    const T b = odd ? bias[gate][1] : bias[gate][0];
    const T sum = N::product(parts[0], parts[C::L - 1], b);
    const T shifted = C::kSingle ? (odd ? shift[gate][1](sum) : shift[gate][0](sum)) : shift[gate][e / 2](sum);
    return N::clamp(shifted, scale_low, scale_high);
  }

  __device__ __forceinline__ T look_up(int i, T x) const {
    const uint32_t code = N::code_of(x, table_base[i]);
    if constexpr (C::kF32) {
      return load_shared_f32(table[i] + 4 * code);
    } else {
      return N::add(N::from_code(__ldg(c.table[i].data + code)), table_centre[i]);
    }
  }

  /// Gates and state; `old` becomes new.
  __device__ __forceinline__ void update(const Elements<N>& elements, const int (&acc)[C::kChains][C::L][3][C::NT][4],
                                         int step) {
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt)
#pragma unroll
      for (int e = 0; e < C::kPerTile; ++e) {
        const int u = unit_of(e);
        const int q = sequence_of(e);
        const T next =
            elements(ih_code(ih[nt][q][0], u), ih_code(ih[nt][q][1], u), ih_code(ih[nt][q][2], u), hh(acc, 0, nt, e),
                     hh(acc, 1, nt, e), hh(acc, 2, nt, e), old[nt][e], [&](int i, T x) { return look_up(i, x); });
        old[nt][e] = step < length[nt][q] ? next : old[nt][e];
      }
  }

  /// The lane's codes into rows of 16 units of a group, `stride` bytes apart.
  __device__ __forceinline__ void put(uint32_t to, int plane_bytes, int stride) const {
    if constexpr (C::kSingle) {
      const uint32_t code = N::code_of(old[0][0], h_base);
#pragma unroll
      for (int l = 0; l < C::L; ++l)
        if (lane % 4 < 2) shared[to + l * plane_bytes + 2 * (lane / 4) + lane % 2] = uint8_t(code >> (8 * l));
    } else {
#pragma unroll
      for (int nt = 0; nt < C::NT; ++nt)
#pragma unroll
        for (int q = 0; q < C::kSequences; ++q) {
          const uint32_t first = N::code_of(old[nt][q], h_base),
                         second = N::code_of(old[nt][C::kPerTile / 2 + q], h_base);
#pragma unroll
          for (int l = 0; l < C::L; ++l)
            *reinterpret_cast<uint16_t*>(shared + to + l * plane_bytes + in_tile(nt, q) * stride + 2 * (lane / 4)) =
                uint16_t((first >> (8 * l) & 0xff) | (second >> (8 * l) & 0xff) << 8);
        }
    }
  }
  __device__ __forceinline__ uint32_t stage() const { return uint32_t(at.stage + warp * C::L * C::kTile * 16); }
  __device__ __forceinline__ uint32_t barrier(int half) const { return base + uint32_t(at.barriers + 8 * half); }

  __device__ __forceinline__ void send(int half) const {
    put(stage(), C::kTile * 16, 16);
    __syncwarp();
    constexpr int kItems = C::L * C::kSent;
    for (int i = lane; i < kItems * a.blocks; i += 32) {
      const int item = i % kItems, plane = item / C::kSent, sequence = item % C::kSent;
      const auto rank = uint32_t(i / kItems);
      const uint4 v = load_shared_16(base + stage() + uint32_t((plane * C::kTile + sequence) * 16));
      const uint32_t to = base + h_offset(half, plane, sequence) + uint32_t(group * kGroup);
      send_16(shared_of(to, rank), v, shared_of(barrier(half), rank));
    }
    __syncwarp();
  }

  /// Through global memory; all threads of all blocks of the tile. `epoch` counts steps over all tiles.
  __device__ __forceinline__ void exchange(int slot, uint32_t epoch) const {
    constexpr int kItems = C::L * C::kTile;
    uint8_t* const half = a.call.shared_h + (int64_t(slot) * 2 + epoch % 2) * kItems * hs;
    if (works) {
      put(stage(), C::kTile * 16, 16);
      __syncwarp();
      for (int item = lane; item < kItems; item += 32)
        *reinterpret_cast<uint4*>(half + int64_t(item) * hs + group * kGroup) =
            load_shared_16(base + stage() + uint32_t(item * 16));
    }
    __syncthreads();
    uint32_t* const flags = a.call.flags + int64_t(slot) * a.blocks;
    if (threadIdx.x == 0) {
      __threadfence();
      store_release(flags + block, epoch + 1);
    }
    for (int i = int(threadIdx.x); i < a.blocks; i += int(blockDim.x))
      while (int32_t(load_acquire(flags + i) - (epoch + 1)) < 0) {
      }
    __syncthreads();
    for (int i = 16 * int(threadIdx.x); i < kItems * hs; i += 16 * int(blockDim.x))
      copy_async_16(base + h_offset(0, 0, 0) + uint32_t(i), half + i);
    wait_for_all_copies();
    __syncthreads();
  }

  /// The output of `step`, out of shared memory.
  __device__ __forceinline__ void write_y(int half, int step) const {
    if (lane >= C::kTile || step >= y_length) return;
    const GruCodes& y = a.call.s.y;
    const int count = min(kGroup, c.h - group * kGroup);
    const int64_t place = int64_t(y_row + step * row_step) * y.stride + a.call.s.y_column + group * kGroup;
#pragma unroll
    for (int l = 0; l < C::L; ++l) {
      if (l >= c.r.limbs) break;
      const uint32_t from = h_offset(half, l, lane) + uint32_t(group * kGroup);
      uint8_t* const to = y.data + l * y.plane_bytes + place;
      if (count == kGroup && a.call.s.y_column % 16 == 0) {
        *reinterpret_cast<uint4*>(to) = load_shared_16(base + from);
      } else {
        for (int i = 0; i < count; ++i) to[i] = shared[from + uint32_t(i)];
      }
    }
  }

  __device__ __forceinline__ void write_state(int tile) const {
    const GruSequences& s = a.call.s;
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt)
#pragma unroll
      for (int e = 0; e < C::kPerTile; ++e) {
        const int i = tile * C::kTile + in_tile(nt, sequence_of(e));
        const int unit = group * kGroup + 2 * (lane / 4) + unit_of(e);
        if (works && i < s.batch && unit < c.h)
          s.state[int64_t(i) * c.h + unit] = uint16_t(N::code_of(old[nt][e], h_base));
      }
  }
};

template <class C>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) run_sequences(const __grid_constant__ SequenceArgs args) {
  Warp<C> w(args, block_memory());
  const Elements<typename C::N> elements(args.cell);
  w.load_constants();
  const uint32_t expected = uint32_t(args.cell.groups * kGroup * C::kSent * C::L);
  if (C::P == GruPath::kCluster) {
    if (threadIdx.x == 0) {
      barrier_init(w.barrier(0), 1);
      barrier_init(w.barrier(1), 1);
      barriers_visible();
      expect_bytes(w.barrier(0), expected);
      expect_bytes(w.barrier(1), expected);
    }
    cluster_sync();
  }
  wait_for_predecessor();
  const int slot = int(blockIdx.x) / args.blocks;
  uint32_t epoch = 0;
  for (int tile = slot; tile * C::kTile < args.call.s.batch; tile += args.at_once) {
    __syncthreads();
    const int steps = w.begin(tile);
    __syncthreads();
    if (w.works) w.load_ih(0, w.ih);
    for (int step = 0; step < steps; ++step, ++epoch) {
      const int half = C::kHalves == 2 ? step % 2 : 0;
      if (C::P == GruPath::kCluster && step > 0) {
        wait_for_bytes(w.barrier(half), uint32_t((step - 1) / 2 % 2));
        if (threadIdx.x == 0) expect_bytes(w.barrier(half), expected);
      }
      if (w.works) {
        int acc[C::kChains][C::L][3][C::NT][4];
        w.begin_sums(acc);
        w.load_ih(step + 1, w.ahead);
        w.multiply(half, acc);
        if (step > 0) w.write_y(half, step - 1);
        w.update(elements, acc, step);
        w.advance_ih();
      }
      if (C::P == GruPath::kBlock) {
        if (w.works) w.put(w.h_offset(1 - half, 0, 0) + uint32_t(w.group * kGroup), C::kTile * w.hs, w.hs);
        __syncthreads();
      } else if (C::P == GruPath::kGrid) {
        w.exchange(slot, epoch);
      } else if (w.works && step + 1 < steps) {
        w.send(1 - half);
      } else if (w.works) {
        w.put(w.h_offset(1 - half, 0, 0) + uint32_t(w.group * kGroup), C::kTile * w.hs, w.hs);
        __syncwarp();
      }
    }
    if (w.works && steps > 0) w.write_y(C::kHalves == 2 ? steps % 2 : 0, steps - 1);
    w.write_state(tile);
  }
  __syncthreads();
  if (C::P == GruPath::kCluster) cluster_sync();  // shared memory stays until no block sends
}

/// A kernel and the shape that it is for.
struct SequenceKernel {
  Number number;
  bool resident, single;
  GruPath path;
  int tiles8, register_ksteps;
  void (*run)(SequenceArgs);
};
template <class C>
constexpr SequenceKernel sequence_kernel() {
  return {C::N::kNumber, C::kResident, C::kSingle, C::P, C::NT, C::KT, run_sequences<C>};
}
// One per translation unit, so that they compile side by side.
std::span<const SequenceKernel> sequences_f32_block();
std::span<const SequenceKernel> sequences_f32_cluster();
std::span<const SequenceKernel> sequences_f32_grid();
std::span<const SequenceKernel> sequences_f64();
std::span<const SequenceKernel> sequences_int64();

}  // namespace lowbit::cuda::gru
