#pragma once
// One warp of the sequence kernels (kernels/cuda/gru/sequences.cuh): its part of the cell and of a tile, ih, y and
// state.

#include "kernels/cuda/gru/elements.cuh"
#include "kernels/cuda/gru/matrix.cuh"
#include "kernels/cuda/gru/sequence_layout.cuh"

namespace lowbit::cuda::gru {

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
  int lane, warp, warps, block, part, group, width, ksteps;
  bool works;
  int32_t bias32[3][C::kUnits];  // kF32
  T bias[3][C::kUnits], scale[3][C::kUnits];
  int h_zero;
  T table[3];         // kF32: N::address_of_zero()
  int table_zero[3];  // else: of the inputs' codes
  T table_centre[3];  // of the outputs'
  uint4 weights[C::KT > 0 ? C::KT * 3 : 1];
  uint32_t h_get, h_put, plane_bytes,
      half_bytes;               // what the lane reads of half 0 of h, where it writes; of a plane, a half
  uint32_t sent_to;             // kCluster: where the lane's first item goes, in half 0
  uint32_t ih_shared, ih_slot;  // the lane's codes of its first sequence; bytes of a step
  const uint8_t* ih_from;       // what the lane copies of row 0: a gate of sequences lane / 4 + 8 nt
  uint8_t* y_data;
  int ih_stride, ih_select[C::kUnits], y_stride, y_units;
  bool ih_bytes, y_pairs;
  // The tile's sequences.
  int length[C::kOwnTiles][C::kSequences],
      row[C::kOwnTiles][C::kSequences];                 // of the lane's sequences: steps, row at step 0
  int copied_last[C::kCopies], copied_row[C::kCopies];  // of those whose ih it copies: the last step, the row
  int row_step;
  T state[C::kOwnTiles][C::kPerTile];  // biased

  __device__ __forceinline__ Warp(const SequenceArgs& args, const Elements<N>& e, uint8_t* memory)
      : a(args),
        c(args.cell),
        elements(e),
        at(shared_layout(args.cell, int(blockDim.x) / 32, C::kTile, shared_ksteps(args.cell, C::KT, C::kResident, C::S),
                         C::P, C::kF32, C::S)),
        shared(memory),
        base(shared_address(memory)),
        lane(int(threadIdx.x) % 32),
        warp(int(threadIdx.x) / 32),
        warps(int(blockDim.x) / 32),
        block(int(blockIdx.x) % args.blocks),
        part(warp % C::S),
        group((block * warps + warp) / C::S),
        width(width_of_h(args.cell.h)),
        ksteps(C::S == 1
                   ? args.cell.r.ksteps
                   : 2 * (first_pair(args.cell.r.ksteps, C::S, part + 1) - first_pair(args.cell.r.ksteps, C::S, part))),
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
    ih_slot = uint32_t(C::kOwn * 3 * kGroup * c.ih_bytes);
    ih_shared = base + uint32_t(at.ih) + uint32_t(warp * kIhSlots) * ih_slot +
                uint32_t((own(0, 0) * 3 * kGroup + 2 * (lane / 4)) * c.ih_bytes);
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
    hold(ih_stride), hold(y_stride), hold(h_zero), hold(ksteps), hold(group);
  }
  /// First of the two units that the lane's four sums are for, and the lane's unit u.
  __device__ __forceinline__ int unit_of_pair() const { return group * kGroup + 2 * (lane / 4); }
  __device__ __forceinline__ int unit_of(int u) const { return unit_of_pair() + (C::kSingle ? lane % 2 : u); }
  /// Unit and sequence of the lane's element e, of its own.
  __device__ __forceinline__ static constexpr int unit_in(int e) { return e / C::kSequences; }
  __device__ __forceinline__ static constexpr int sequence_in(int e) { return e % C::kSequences; }
  /// The lane's sequence q in eight nt, of those whose gates the warp computes; and which of the tile that is.
  __device__ __forceinline__ int own(int nt, int q) const {
    return C::kSingle ? 0 : C::kInterleaved ? nt * 4 + lane % 4 : nt * 8 + 2 * (lane % 4) + q;
  }
  __device__ __forceinline__ int of_tile(int mine) const {
    return C::S == 1 ? mine : C::kInterleaved ? C::S * mine + part : part * C::kOwn + mine;
  }
  __device__ __forceinline__ int in_tile(int nt, int q) const { return of_tile(own(nt, q)); }

  /// R, and the tables, onto the chip.
  __device__ __forceinline__ void load_constants() {
    const int pair = C::S == 1 ? 0 : first_pair(c.r.ksteps, C::S, part);  // of columns, the warp's first
    const uint8_t* const mine = c.r.tiles + (int64_t{group} * c.r.ksteps + 2 * pair) * 3 * kTileBytes + lane * 16;
    if constexpr (C::KT > 0) {
#pragma unroll
      for (int i = 0; i < C::KT * 3; ++i)
        weights[i] =
            works && i < ksteps * 3 ? *reinterpret_cast<const uint4*>(mine + i * kTileBytes) : uint4{0, 0, 0, 0};
    }
    const int tiles = shared_ksteps(c, C::KT, C::kResident, C::S) * 3;
    if (works)
      for (int i = 0; i < min(tiles, (ksteps - C::KT) * 3); ++i)
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
    const int item = lane % C::kItems;
    plane_bytes = uint32_t(width * C::kTile);
    half_bytes = uint32_t(C::L) * plane_bytes;
    sent_to = base + h_offset(0, item / C::kOwnSent, group, row_of(item % C::kOwnSent));
    h_get = base + h_offset(0, 0, lane / 8 + 4 * pair, row_in_tile(C::kSingle ? 0 : lane % 8));
    h_put = base + h_offset(0, 0, group, 0) + first_place();
    hold(h_get), hold(h_put), hold(half_bytes), hold(sent_to);
    wait_for_all_copies();
  }

  /// Where h lies: [half][plane][group][row] of 16 codes; rows are the tile's sequences, those of the first warp of a
  /// group first.
  __device__ __forceinline__ uint32_t h_offset(int half, int plane, int of_group, int in_row) const {
    return uint32_t(at.h) + (half != 0 ? half_bytes : 0) + (plane != 0 ? plane_bytes : 0) +
           uint32_t(of_group * C::kGroupBytes + in_row * kGroup);
  }
  __device__ __forceinline__ static int row_in_tile(int sequence) {
    return C::kInterleaved ? sequence % C::S * C::kOwn + sequence / C::S : sequence;
  }
  /// Row of the warp's own sequence.
  __device__ __forceinline__ int row_of(int mine) const { return part * C::kOwn + mine; }

  /// The tile's sequences and first states. Returns the steps of the longest.
  __device__ __forceinline__ int begin(int tile) {
    const GruSequences& s = a.call.s;
    const int first = tile * C::kTile, batch = int(s.batch);
    row_step = (s.batch_first ? 1 : batch) * (s.reverse ? -1 : 1);
    hold(row_step);
#pragma unroll
    for (int i = 0; i < C::kCopies; ++i) {
      const int from = first + (C::kSingle ? 0 : of_tile(min(i * 8 + lane / 4, C::kOwn - 1)));
      const int steps = from < batch ? s.length[from] : 0;
      copied_last[i] = max(steps - 1, 0);
      const int order = from < batch ? s.order[from] : 0;
      copied_row[i] = steps > 0 ? int(gru::row_of(s, 0, order, steps)) : 0;
    }
#pragma unroll
    for (int nt = 0; nt < C::kOwnTiles; ++nt) {
#pragma unroll
      for (int q = 0; q < C::kSequences; ++q) {
        const int i = first + in_tile(nt, q);
        length[nt][q] = i < batch ? s.length[i] : 0;
        const int order = i < batch ? s.order[i] : 0;
        row[nt][q] = length[nt][q] > 0 ? int(gru::row_of(s, 0, order, length[nt][q])) : 0;
      }
#pragma unroll
      for (int e = 0; e < C::kPerTile; ++e) {
        const int i = first + in_tile(nt, sequence_in(e)), unit = unit_of(unit_in(e));
        const int v = i < batch && unit < c.h ? s.state[int64_t(i) * c.h + unit] - h_zero : 0;
        state[nt][e] = N::add(N::kMagic, T(v));
      }
    }
    if (works)
      for (int step = 0; step < kIhSlots - 1 + int(C::kWorksBehind); ++step) copy_ih(step);
#pragma unroll 4
    for (int i = int(threadIdx.x); i < C::kSent * width; i += int(blockDim.x)) {
      const int sequence = i / width, unit = i % width;
      const uint32_t code =
          first + sequence < batch && unit < c.h ? s.state[int64_t(first + sequence) * c.h + unit] : 0;
      const uint32_t to = h_offset(0, 0, unit / kGroup, row_in_tile(sequence)) + uint32_t(unit % kGroup);
      shared[to] = uint8_t(code);
      if (C::L == 2) shared[to + plane_bytes] = uint8_t(code >> 8);
    }
    return s.length[first];
  }

  /// Asks for ih of a step; of sequences that have ended some row comes, and is thrown away.
  __device__ __forceinline__ void copy_ih(int step) const {
    if (lane % 4 < 3) {
#pragma unroll
      for (int i = 0; i < C::kCopies; ++i) {
        if (i * 8 + lane / 4 >= (C::kSingle ? 1 : C::kOwn)) break;
        const uint8_t* const from = row_at(ih_from, copied_row[i] + min(step, copied_last[i]) * row_step, ih_stride);
        const int row_bytes = kGroup * c.ih_bytes;
        const uint32_t to = base + uint32_t(at.ih + ((i * 8 + lane / 4) * 3 + lane % 4) * row_bytes) +
                            uint32_t(warp * kIhSlots + step % kIhSlots) * ih_slot;
        copy_async_16(to, from);
        if (!ih_bytes) copy_async_16(to + 16, from + 16);
      }
    }
    copies_commit();
  }
  /// The parts of a step's gates that come from ih.
  __device__ __forceinline__ void load_parts(int step, T (&parts)[C::kOwnTiles][C::kPerTile][3]) const {
    copies_wait<kIhSlots - 2>();
    __syncwarp();
    const uint32_t slot = ih_shared + uint32_t(step % kIhSlots) * ih_slot;
#pragma unroll
    for (int nt = 0; nt < C::kOwnTiles; ++nt)
#pragma unroll
      for (int q = 0; q < C::kSequences; ++q)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          const int place = ((nt * C::kOwnEach + q) * 3 + gate) * kGroup;
          const uint32_t pair =
              ih_bytes ? load_shared_2(slot + uint32_t(place)) : load_shared_4(slot + uint32_t(2 * place));
#pragma unroll
          for (int u = 0; u < C::kUnits; ++u)
            parts[nt][u * C::kSequences + q][gate] =
                elements.part(gate, __byte_perm(pair, N::kExponent, uint32_t(ih_select[u])));
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
  /// The lane's codes into the rows of a group; `to`: where its first pair goes, `plane`: bytes to the next plane.
  __device__ __forceinline__ void put(uint32_t to, uint32_t plane) const {
#pragma unroll
    for (int nt = 0; nt < C::kOwnTiles; ++nt)
#pragma unroll
      for (int q = 0; q < C::kSequences; ++q)
#pragma unroll
        for (int l = 0; l < C::L; ++l) {
          const uint32_t place = to + uint32_t((nt * C::kOwnEach + q) * kGroup) + (l != 0 ? plane : 0);
          if constexpr (C::kSingle) {
            if (lane % 4 < 2) store_shared_1(place, codes_of(nt, q, l));
          } else {
            store_shared_2(place, codes_of(nt, q, l));
          }
        }
  }
  __device__ __forceinline__ uint32_t first_place() const {
    return uint32_t(own(0, 0) * kGroup + 2 * (lane / 4) + (C::kSingle ? lane % 2 : 0));
  }
  __device__ __forceinline__ void write_y(int step) const {
#pragma unroll
    for (int nt = 0; nt < C::kOwnTiles; ++nt)
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

  __device__ __forceinline__ void write_state(int tile) const {
    const GruSequences& s = a.call.s;
#pragma unroll
    for (int nt = 0; nt < C::kOwnTiles; ++nt)
#pragma unroll
      for (int e = 0; e < C::kPerTile; ++e) {
        const int i = tile * C::kTile + in_tile(nt, sequence_in(e)), unit = unit_of(unit_in(e));
        if (works && i < s.batch && unit < c.h) s.state[int64_t(i) * c.h + unit] = uint16_t(code(nt, e));
      }
  }
};

}  // namespace lowbit::cuda::gru
