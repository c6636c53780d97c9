#pragma once
// All steps of a tile of sequences in one launch: R stays on the chip, h goes round.
//
// A warp owns a group of 16 units: their three gates' rows of R times the codes of h of 8 NT sequences on the matrix unit, then
// gates and state in the lanes that hold the sums (a lane has units 2 i and 2 i + 1 of two sequences per 8). New codes go to
//   kBlock:   the other half of shared memory, one __syncthreads a step;
//   kCluster: every block's shared memory by st.async, which counts bytes on the receiver's barrier: one trip a step. A block sends
//             step s + 1 only after it has all of step s, which every warp sent after its last read of step s - 1: two halves suffice;
//   kGrid:    global memory, then a flag per block; blocks that share a tile run at the same time (cooperative launch).
// A step is a chain of dependent instructions, so nothing stands in it that can be done beside it: what is constant is held in
// registers, ih is copied into shared memory steps ahead, y of the step before is written while the matrix unit works.

#include <span>

#include "kernels/cuda/gru/elements.cuh"
#include "kernels/cuda/gru/matrix.cuh"

namespace lowbit::cuda::gru {

struct SequenceArgs {
  Cell cell;
  Call call;
  int32_t blocks, at_once;
};

template <class N_, int NT_, GruPath P_, bool Resident_, bool Single_, int KT_>
struct Config {
  using N = N_;
  using T = typename N::T;
  static constexpr bool kF32 = N::kNumber == Number::kF32, kResident = Resident_, kSingle = Single_;
  static constexpr int L = kF32 ? 1 : 2, NT = NT_, KT = KT_;
  static constexpr GruPath P = P_;
  static constexpr int kTile = 8 * NT;                         // sequences
  static constexpr int kHalves = P == GruPath::kGrid ? 1 : 2;  // of h in shared memory
  static constexpr int kChains = NT == 1 ? 2 : 1;              // sums per output, to hide the matrix unit's latency
  // Of a lane: units 2 i and 2 i + 1 of sequences 2 j and 2 j + 1. kSingle: one of the two units, of the first sequence; every
  // column of the matrix unit's right side is that sequence, so that four lanes have the same sums.
  static constexpr int kUnits = kSingle ? 1 : 2, kSequences = kSingle ? 1 : 2;
  static constexpr int kPerTile = kUnits * kSequences;
  static constexpr int kSent = kSingle ? 1 : kTile;  // sequences whose h goes to the other blocks
  static_assert(!kSingle || NT == 1);
};

constexpr int kIhSlots = 4;  // steps of ih in shared memory, a power of two

/// Where things lie in shared memory, in bytes.
struct SharedLayout {
  int weights, h, ih, stage, tables, barriers, bytes;
};
inline LOWBIT_HD int align_up(int v, int to) { return (v + to - 1) / to * to; }
inline LOWBIT_HD int stride_of_h(int hidden) { return align_up(hidden, 64) + 16; }
/// Of a group's weights, those in shared memory.
inline LOWBIT_HD int shared_ksteps(const Cell& c, int in_registers, bool resident) {
  return resident && c.r.ksteps > in_registers ? c.r.ksteps - in_registers : 0;
}
inline LOWBIT_HD SharedLayout shared_layout(const Cell& c, int warps, int tile, int ksteps, GruPath path, bool f32) {
  SharedLayout s{};
  const int planes = f32 ? 1 : 2;
  int at = 0;
  s.weights = at;
  at += warps * ksteps * 3 * kTileBytes;
  s.h = at;
  at += (path == GruPath::kGrid ? 1 : 2) * planes * tile * stride_of_h(c.h);
  s.ih = at;
  at += warps * kIhSlots * tile * 3 * kGroup * c.ih_bytes;
  s.stage = at;
  if (path != GruPath::kBlock) at += warps * planes * tile * 16;
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
  using Sums = int[C::kChains][C::L][3][C::NT][4];
  const SequenceArgs& a;
  const Cell& c;
  const Elements<N>& elements;
  SharedLayout at;
  uint8_t* shared;
  uint32_t base;
  int lane, warp, warps, block, group, hs, ksteps;
  bool works;
  int32_t bias32[3][C::kUnits];  // kF32
  T bias[3][C::kUnits], scale[3][C::kUnits];
  int h_zero;
  T table[3];         // kF32: N::address_of_zero()
  int table_zero[3];  // else: of the inputs' codes
  T table_centre[3];  // of the outputs'
  uint4 weights[C::KT > 0 ? C::KT * 3 : 1];
  uint32_t h_get, h_put, half_bytes;  // what the lane reads of half 0 of h, where it writes; between the halves
  uint32_t sent_to;                   // kCluster: where the lane's first item goes, in half 0
  uint32_t ih_shared, ih_slot;        // the lane's codes of its first sequence; bytes of a step
  const uint8_t* ih_from;             // what the lane copies of row 0: a gate of sequences lane / 4 + 8 nt
  uint8_t* y_data;
  int ih_stride, ih_select[C::kUnits], y_stride, y_units;
  bool ih_bytes, y_pairs;
  // Of the tile.
  int length[C::NT][C::kSequences], row[C::NT][C::kSequences];  // of the lane's sequences: steps, row at step 0
  int copied_last[C::NT], copied_row[C::NT];                    // of those whose ih it copies: the last step, the row
  int row_step;
  T state[C::NT][C::kPerTile];  // biased

  __device__ __forceinline__ Warp(const SequenceArgs& args, const Elements<N>& e, uint8_t* memory)
      : a(args),
        c(args.cell),
        elements(e),
        at(shared_layout(args.cell, int(blockDim.x) / 32, C::kTile, shared_ksteps(args.cell, C::KT, C::kResident), C::P,
                         C::kF32)),
        shared(memory),
        base(shared_address(memory)),
        lane(int(threadIdx.x) % 32),
        warp(int(threadIdx.x) / 32),
        warps(int(blockDim.x) / 32),
        block(int(blockIdx.x) % args.blocks),
        group(block * warps + warp),
        hs(stride_of_h(args.cell.h)),
        ksteps(args.cell.r.ksteps),
        works(C::P == GruPath::kBlock || group < args.cell.groups),
        h_zero(zero_of(args.cell.grid[kSlotH])) {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int u = 0; u < C::kUnits; ++u) {
        const int at_row = gate * c.padded + unit_of(u);
        const int64_t b = works ? c.r.bias[at_row] : 0;
        bias32[gate][u] = C::kF32 ? int32_t(b) : 0;
        bias[gate][u] = T(b);
        scale[gate][u] = N::power(-(works ? c.r.shift[at_row] : 0));
        hold(bias32[gate][u]), hold(bias[gate][u]), hold(scale[gate][u]);
      }
    constexpr int kInputs[3] = {kSlotUi, kSlotRi, kSlotNi}, kOutputs[3] = {kSlotU, kSlotR, kSlotN};
    int to = at.tables;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      table_zero[i] = zero_of(c.grid[kInputs[i]]);
      table_centre[i] = T(-zero_of(c.grid[kOutputs[i]]));
      table[i] = N::address_of_zero(uint32_t(to + 4 * table_zero[i]));
      hold(table[i]);
      to += align_up(4 * c.table[i].entries, 16);
    }
    ih_bytes = c.ih_bytes == 1;
    ih_stride = c.ih_bytes * c.ih_stride;
    ih_slot = uint32_t(C::kTile * 3 * kGroup * c.ih_bytes);
    ih_shared = base + uint32_t(at.ih) + uint32_t(warp * kIhSlots) * ih_slot +
                uint32_t((in_tile(0, 0) * 3 * kGroup + 2 * (lane / 4)) * c.ih_bytes);
    ih_from = a.call.ih + c.ih_bytes * (min(lane % 4, 2) * c.padded + group * kGroup);
#pragma unroll
    for (int u = 0; u < C::kUnits; ++u) {
      const int code = C::kSingle ? lane % 2 : u;  // of a pair; behind its bytes zeros and the exponent
      ih_select[u] = ih_bytes ? 0x7440 | code : 0x7400 | (2 * code + 1) << 4 | 2 * code;
      hold(ih_select[u]);
    }
    y_stride = int(a.call.s.y.stride);
    y_data = a.call.s.y.data + a.call.s.y_column + unit_of(0);
    y_units = works && (!C::kSingle || lane % 4 < 2) ? max(0, min(C::kUnits, c.h - unit_of(0))) : 0;
    y_pairs = C::kUnits == 2 && y_units == 2 && a.call.s.y_column % 2 == 0;
    hold(ih_stride), hold(y_stride), hold(h_zero), hold(hs), hold(ksteps), hold(group);
  }
  /// First of the two units that the lane's four sums are for, and the lane's unit u.
  __device__ __forceinline__ int unit_of_pair() const { return group * kGroup + 2 * (lane / 4); }
  __device__ __forceinline__ int unit_of(int u) const { return unit_of_pair() + (C::kSingle ? lane % 2 : u); }
  /// Unit and sequence of the lane's element e, of its own.
  __device__ __forceinline__ static constexpr int unit_in(int e) { return e / C::kSequences; }
  __device__ __forceinline__ static constexpr int sequence_in(int e) { return e % C::kSequences; }
  /// Sequence of the tile of the lane's sequence q in eight nt.
  __device__ __forceinline__ int in_tile(int nt, int q) const { return C::kSingle ? 0 : nt * 8 + 2 * (lane % 4) + q; }

  /// R, and the tables, onto the chip.
  __device__ __forceinline__ void load_constants() {
    const uint8_t* const mine = c.r.tiles + int64_t{group} * ksteps * 3 * kTileBytes + lane * 16;
    if constexpr (C::KT > 0) {
#pragma unroll
      for (int i = 0; i < C::KT * 3; ++i)
        weights[i] =
            works && i < ksteps * 3 ? *reinterpret_cast<const uint4*>(mine + i * kTileBytes) : uint4{0, 0, 0, 0};
    }
    const int tiles = shared_ksteps(c, C::KT, C::kResident) * 3;
    if (works)
      for (int i = 0; i < tiles; ++i)
        copy_async_16(base + at.weights + uint32_t((warp * tiles + i) * kTileBytes + lane * 16),
                      mine + (C::KT * 3 + i) * kTileBytes);
    if constexpr (C::kF32) {
      int to[3], most = 0;
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        to[i] = i == 0 ? at.tables : to[i - 1] + align_up(4 * c.table[i - 1].entries, 16);
        most = max(most, c.table[i].entries);
      }
      for (int e = int(threadIdx.x); e < most; e += int(blockDim.x)) {
        uint32_t codes[3];  // three loads at once
#pragma unroll
        for (int i = 0; i < 3; ++i) codes[i] = c.table[i].data[min(e, c.table[i].entries - 1)];
#pragma unroll
        for (int i = 0; i < 3; ++i) {
          const float y = float(codes[i]) + table_centre[i];
          if (e < c.table[i].entries)
            reinterpret_cast<float*>(shared + to[i])[e] = i == 2 ? elements.shifted(y, elements.n_h) : y;
        }
      }
    }
    const int item = lane % kItems;
    sent_to = base + h_offset(0, item / C::kSent, item % C::kSent) + uint32_t(group * kGroup);
    h_get = base + h_offset(0, 0, C::kSingle ? 0 : lane % 8) + 16 * (lane / 8);
    h_put = base + h_offset(0, 0, 0) + uint32_t(group * kGroup) + first_place(hs);
    half_bytes = uint32_t(C::L * C::kTile * hs);
    hold(h_get), hold(h_put), hold(half_bytes), hold(sent_to);
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
    hold(row_step);
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt) {
#pragma unroll
      for (int q = 0; q < C::kSequences; ++q) {
        const int i = first + in_tile(nt, q);
        length[nt][q] = i < batch ? s.length[i] : 0;
        const int order = i < batch ? s.order[i] : 0;
        row[nt][q] = length[nt][q] > 0 ? int(row_of(s, 0, order, length[nt][q])) : 0;
      }
      const int from = first + (C::kSingle ? 0 : nt * 8 + lane / 4), steps = from < batch ? s.length[from] : 0;
      copied_last[nt] = max(steps - 1, 0);
      const int order = from < batch ? s.order[from] : 0;
      copied_row[nt] = steps > 0 ? int(row_of(s, 0, order, steps)) : 0;
#pragma unroll
      for (int e = 0; e < C::kPerTile; ++e) {
        const int i = first + in_tile(nt, sequence_in(e)), unit = unit_of(unit_in(e));
        const int v = i < batch && unit < c.h ? s.state[int64_t(i) * c.h + unit] - h_zero : 0;
        state[nt][e] = N::add(N::kMagic, T(v));
      }
    }
    if (works)
      for (int step = 0; step < kIhSlots - 1; ++step) copy_ih(step);
#pragma unroll 4
    for (int i = int(threadIdx.x); i < C::kSent * hs; i += int(blockDim.x)) {
      const int sequence = i / hs, unit = i % hs;
      const uint32_t code =
          first + sequence < batch && unit < c.h ? s.state[int64_t(first + sequence) * c.h + unit] : 0;
      shared[h_offset(0, 0, sequence) + unit] = uint8_t(code);
      if (C::L == 2) shared[h_offset(0, C::L - 1, sequence) + unit] = uint8_t(code >> 8);
    }
    return s.length[first];
  }

  /// Asks for ih of a step; of sequences that have ended some row comes, and is thrown away.
  __device__ __forceinline__ void copy_ih(int step) const {
    if (lane % 4 < 3 && (!C::kSingle || lane < 3)) {
#pragma unroll
      for (int nt = 0; nt < C::NT; ++nt) {
        const uint8_t* const from = row_at(ih_from, copied_row[nt] + min(step, copied_last[nt]) * row_step, ih_stride);
        const int row_bytes = kGroup * c.ih_bytes;
        const uint32_t to = base + uint32_t(at.ih + ((nt * 8 + lane / 4) * 3 + lane % 4) * row_bytes) +
                            uint32_t(warp * kIhSlots + step % kIhSlots) * ih_slot;
        copy_async_16(to, from);
        if (!ih_bytes) copy_async_16(to + 16, from + 16);
      }
    }
    copies_commit();
  }
  /// What ih gives the gates of a step.
  __device__ __forceinline__ void load_parts(int step, T (&parts)[C::NT][C::kPerTile][3]) const {
    copies_wait<kIhSlots - 2>();
    __syncwarp();
    const uint32_t slot = ih_shared + uint32_t(step % kIhSlots) * ih_slot;
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt)
#pragma unroll
      for (int q = 0; q < C::kSequences; ++q)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          const int place = ((nt * 8 + q) * 3 + gate) * kGroup;
          const uint32_t pair =
              ih_bytes ? load_shared_2(slot + uint32_t(place)) : load_shared_4(slot + uint32_t(2 * place));
#pragma unroll
          for (int u = 0; u < C::kUnits; ++u)
            parts[nt][u * C::kSequences + q][gate] =
                elements.part(gate, __byte_perm(pair, N::kExponent, uint32_t(ih_select[u])));
        }
  }

  /// Three gates' weights of 64 columns times 8 NT sequences.
  __device__ __forceinline__ static void multiply_pair(const uint4 (&first)[3], const uint4 (&second)[3],
                                                       const uint32_t (&b)[C::L][C::NT][4], Sums& acc) {
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int l = 0; l < C::L; ++l)
#pragma unroll
          for (int nt = 0; nt < C::NT; ++nt)
            mma_s8_u8(acc[C::kChains == 2 ? k : 0][l][gate][nt], k == 0 ? first[gate] : second[gate], b[l][nt][2 * k],
                      b[l][nt][2 * k + 1]);
  }
  __device__ __forceinline__ void load_h(uint32_t h, int kp, uint32_t (&b)[C::L][C::NT][4]) const {
#pragma unroll
    for (int l = 0; l < C::L; ++l)
#pragma unroll
      for (int nt = 0; nt < C::NT; ++nt) load_blocks(b[l][nt], h + uint32_t((l * C::kTile + nt * 8) * hs + kp * 64));
  }
  /// R times the tile's h.
  __device__ __forceinline__ void multiply(uint32_t h, Sums& acc) const {
    const int tiles = shared_ksteps(c, C::KT, C::kResident) * 3;
    const uint32_t mine = base + at.weights + uint32_t(warp * tiles * kTileBytes + lane * 16);
    const uint8_t* const far = c.r.tiles + int64_t{group} * ksteps * 3 * kTileBytes + lane * 16;
    const auto fetch = [&](int kp, uint4(&first)[3], uint4(&second)[3]) {  // from behind the registers' ksteps
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        const int i = (kp * 2 - C::KT) * 3 + gate;
        if constexpr (C::kResident) {
          first[gate] = load_shared_16(mine + uint32_t(i * kTileBytes));
          second[gate] = load_shared_16(mine + uint32_t((i + 3) * kTileBytes));
        } else {
          first[gate] = __ldg(reinterpret_cast<const uint4*>(far + int64_t{i} * kTileBytes));
          second[gate] = __ldg(reinterpret_cast<const uint4*>(far + int64_t{i + 3} * kTileBytes));
        }
      }
    };
    const int pairs = ksteps / 2;
    if constexpr (C::KT > 0) {
      uint32_t all[C::KT / 2][C::L][C::NT][4];  // behind the last column too, where the weights are 0
#pragma unroll
      for (int kp = 0; kp < C::KT / 2; ++kp) load_h(h, kp, all[kp]);
#pragma unroll
      for (int kp = 0; kp < C::KT / 2; ++kp) {
        const uint4 first[3] = {weights[6 * kp], weights[6 * kp + 1], weights[6 * kp + 2]};
        const uint4 second[3] = {weights[6 * kp + 3], weights[6 * kp + 4], weights[6 * kp + 5]};
        multiply_pair(first, second, all[kp], acc);
      }
      if (pairs <= C::KT / 2) return;
    }
    if constexpr (C::P != GruPath::kBlock || C::KT == 0) {
#pragma unroll 2
      for (int kp = C::KT / 2; kp < pairs; ++kp) {
        uint32_t b[C::L][C::NT][4];
        uint4 first[3], second[3];
        load_h(h, kp, b);
        fetch(kp, first, second);
        multiply_pair(first, second, b, acc);
      }
    }
  }

  /// The sum of the lane's element e, with its bias.
  __device__ __forceinline__ T sum(const Sums& acc, int gate, int nt, int e) const {
    const int u = unit_in(e);
    int parts[C::L];
#pragma unroll
    for (int l = 0; l < C::L; ++l) {
      const auto all = [&](int i) {
        uint32_t v = uint32_t(acc[0][l][gate][nt][i]) + uint32_t(bias32[gate][u]);
        if (C::kChains == 2) v += uint32_t(acc[C::kChains - 1][l][gate][nt][i]);
        return int(v);
      };
      parts[l] = C::kSingle ? (lane % 2 != 0 ? all(2) : all(0)) : all(2 * u + sequence_in(e));
    }
    return N::product(parts[0], parts[C::L - 1], bias[gate][u]);
  }

  __device__ __forceinline__ T look_up(int i, T x) const {
    if constexpr (C::kF32) {
      return load_shared_f32(base + N::address(x, table[i]));  // `base` holds the block's rank above bit 24
    } else {
      const uint32_t code = N::bits(N::add(x, N::kMagic)) + uint32_t(table_zero[i]);
      const T y = N::from_word(__ldg(c.table[i].data + code), table_centre[i]);
      return i == 2 ? elements.shifted(y, elements.n_h) : y;
    }
  }

  /// What a step needs not wait for.
  __device__ __forceinline__ void work_beside(int step) const {
    copy_ih(step + kIhSlots - 1);
    if (step > 0) write_y(step - 1);
  }
  /// Gates and state of a step.
  __device__ __forceinline__ void update(const Sums& acc, const T (&parts)[C::NT][C::kPerTile][3], int step) {
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt)
#pragma unroll
      for (int e = 0; e < C::kPerTile; ++e) {
        const int u = unit_in(e);
        const T sums[3] = {sum(acc, 0, nt, e), sum(acc, 1, nt, e), sum(acc, 2, nt, e)};
        const T scales[3] = {scale[0][u], scale[1][u], scale[2][u]};
        const T next = elements(parts[nt][e], sums, scales, state[nt][e], [&](int i, T x) {
          const T found = look_up(i, x);
          if (C::kSingle && i == 2) work_beside(step);  // nothing else could be done while this table answers
          return found;
        });
        // A tile of one sequence has as many steps as that.
        state[nt][e] = C::kSingle || step < length[nt][sequence_in(e)] ? next : state[nt][e];
      }
  }

  /// Code of the lane's element.
  __device__ __forceinline__ uint32_t code(int nt, int e) const { return N::bits(state[nt][e]) + uint32_t(h_zero); }
  /// Plane l of the codes of its units of a sequence, a byte each.
  __device__ __forceinline__ uint32_t codes_of(int nt, int q, int l) const {
    const uint32_t first = code(nt, q) >> (8 * l) & 0xff;
    if constexpr (C::kSingle) return first;
    return first | (code(nt, C::kPerTile / 2 + q) >> (8 * l) & 0xff) << 8;
  }
  /// The lane's codes into rows of 16 units of a group, `stride` bytes apart; `to`: where the lane's first pair goes.
  __device__ __forceinline__ void put(uint32_t to, int plane_bytes, int stride) const {
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt)
#pragma unroll
      for (int q = 0; q < C::kSequences; ++q)
#pragma unroll
        for (int l = 0; l < C::L; ++l) {
          const uint32_t place = to + uint32_t(l * plane_bytes + (nt * 8 + q) * stride);
          if constexpr (C::kSingle) {
            if (lane % 4 < 2) store_shared_1(place, codes_of(nt, q, l));
          } else {
            store_shared_2(place, codes_of(nt, q, l));
          }
        }
  }
  __device__ __forceinline__ uint32_t first_place(int stride) const {
    return uint32_t(in_tile(0, 0) * stride + 2 * (lane / 4) + (C::kSingle ? lane % 2 : 0));
  }
  __device__ __forceinline__ void write_y(int step) const {
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt)
#pragma unroll
      for (int q = 0; q < C::kSequences; ++q) {
        if (!C::kSingle && step >= length[nt][q]) continue;
        uint8_t* const to = row_at(y_data, row[nt][q] + step * row_step, y_stride);
#pragma unroll
        for (int l = 0; l < C::L; ++l) {
          if (l >= c.r.limbs) break;
          const uint32_t pair = codes_of(nt, q, l);
          uint8_t* const place = l == 0 ? to : to + a.call.s.y.plane_bytes;
          if (y_pairs) {
            store_2(place, pair);
          } else {
            if (y_units > 0) store_1(place, pair);
            if (C::kUnits == 2 && y_units > 1) store_1(place + 1, pair >> 8);
          }
        }
      }
  }

  /// Rows of 16 codes that a warp sends to a block: at most 32, or a multiple.
  static constexpr int kItems = C::L * C::kSent;
  __device__ __forceinline__ uint32_t stage() const { return uint32_t(at.stage + warp * C::L * C::kTile * 16); }
  __device__ __forceinline__ uint32_t barrier(int half) const { return base + uint32_t(at.barriers + 8 * half); }

  __device__ __forceinline__ void send(int half) const {
    put(base + stage() + first_place(16), C::kTile * 16, 16);
    __syncwarp();
    const uint32_t other = half == 0 ? 0 : half_bytes, counts = barrier(half);
    for (int i = lane; i < kItems * a.blocks; i += 32) {
      const int item = i % kItems;
      const auto rank = uint32_t(i / kItems);
      const uint4 v = load_shared_16(base + stage() + uint32_t((item / C::kSent * C::kTile + item % C::kSent) * 16));
      // Up to 32 items a lane has the same one for every block.
      const uint32_t to = kItems <= 32
                              ? sent_to + other
                              : base + h_offset(half, item / C::kSent, item % C::kSent) + uint32_t(group * kGroup);
      send_16(shared_of(to, rank), v, shared_of(counts, rank));
    }
    __syncwarp();
  }

  /// Through global memory; all threads of all blocks of the tile. `epoch` counts steps over all tiles.
  __device__ __forceinline__ void exchange(int slot, uint32_t epoch) const {
    constexpr int kRows = C::L * C::kTile;
    uint8_t* const half = a.call.shared_h + (int64_t(slot) * 2 + epoch % 2) * kRows * hs;
    if (works) {
      put(base + stage() + first_place(16), C::kTile * 16, 16);
      __syncwarp();
      for (int item = lane; item < kRows; item += 32)
        *reinterpret_cast<uint4*>(half + int64_t(item) * hs + group * kGroup) =
            load_shared_16(base + stage() + uint32_t(item * 16));
    }
    __syncthreads();
    uint32_t* const flags = a.call.flags + int64_t(slot) * a.blocks;
    // The barrier has made the block's stores happen before this release, which is cumulative.
    if (threadIdx.x == 0) store_release(flags + block, epoch + 1);
    for (int i = int(threadIdx.x); i < a.blocks; i += int(blockDim.x))
      while (int32_t(load_acquire(flags + i) - (epoch + 1)) < 0) {
      }
    __syncthreads();
    for (int i = 16 * int(threadIdx.x); i < kRows * hs; i += 16 * int(blockDim.x))
      copy_async_16(base + h_offset(0, 0, 0) + uint32_t(i), half + i);
    wait_for_all_copies();
    __syncthreads();
  }

  __device__ __forceinline__ void write_state(int tile) const {
    const GruSequences& s = a.call.s;
#pragma unroll
    for (int nt = 0; nt < C::NT; ++nt)
#pragma unroll
      for (int e = 0; e < C::kPerTile; ++e) {
        const int i = tile * C::kTile + in_tile(nt, sequence_in(e)), unit = unit_of(unit_in(e));
        if (works && i < s.batch && unit < c.h) s.state[int64_t(i) * c.h + unit] = uint16_t(code(nt, e));
      }
  }

  __device__ __forceinline__ void step_once(int step, int steps, int slot, uint32_t epoch, uint32_t expected) {
    const int half = C::kHalves == 2 ? step % 2 : 0;
    const uint32_t now = half != 0 ? half_bytes : 0;
    if (C::P == GruPath::kCluster && step > 0) {
      wait_for_bytes(barrier(half), uint32_t((step - 1) / 2 % 2));
      if (threadIdx.x == 0) expect_bytes(barrier(half), expected);
    }
    if (works) {
      Sums acc = {};
      T parts[C::NT][C::kPerTile][3];
      multiply(h_get + now, acc);
      if (!C::kSingle) work_beside(step);
      load_parts(step, parts);
      update(acc, parts, step);
    }
    if (C::P == GruPath::kBlock) {
      put(h_put + half_bytes - now, C::kTile * hs, hs);
      __syncthreads();
    } else if (C::P == GruPath::kGrid) {
      exchange(slot, epoch);
    } else if (works && step + 1 < steps) {
      send(1 - half);
    }
  }
};

template <class C>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) run_sequences(const __grid_constant__ SequenceArgs args) {
  const Elements<typename C::N> elements(args.cell);
  Warp<C> w(args, elements, block_memory());
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
    for (int step = 0; step < steps; ++step, ++epoch) w.step_once(step, steps, slot, epoch, expected);
    if (w.works && steps > 0) w.write_y(steps - 1);
    copies_wait<0>();
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
  int tiles8, in_registers;
  void (*run)(SequenceArgs);
};
/// For cells of `Ksteps` ksteps, and all with as many in registers.
template <class N, int NT, GruPath P, bool Single = false, bool Resident = true, int Ksteps = 4>
constexpr SequenceKernel sequence_kernel() {
  constexpr int kIn = ksteps_in_registers(N::kNumber, P, NT, Resident, Ksteps);
  return {N::kNumber, Resident, Single, P, NT, kIn, run_sequences<Config<N, NT, P, Resident, Single, kIn>>};
}
// One list per translation unit, so that they compile side by side.
std::span<const SequenceKernel> sequences_f32_block();
std::span<const SequenceKernel> sequences_f32_cluster();
std::span<const SequenceKernel> sequences_f32_grid();
std::span<const SequenceKernel> sequences_f64();

}  // namespace lowbit::cuda::gru
