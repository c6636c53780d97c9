#pragma once
// One warp of the sequence kernels (kernels/cuda/gru/sequences.cuh): loading, products, gates, exchange.

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
  int lane, warp, warps, block, part, group, hs, ksteps;
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
  int length[C::kOwnTiles][C::kSequences],
      row[C::kOwnTiles][C::kSequences];                     // of the lane's sequences: steps, row at step 0
  int copied_last[C::kOwnTiles], copied_row[C::kOwnTiles];  // of those whose ih it copies: the last step, the row
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
        hs(stride_of_h(args.cell.h)),
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
    hold(ih_stride), hold(y_stride), hold(h_zero), hold(hs), hold(ksteps), hold(group);
  }
  /// First of the two units that the lane's four sums are for, and the lane's unit u.
  __device__ __forceinline__ int unit_of_pair() const { return group * kGroup + 2 * (lane / 4); }
  __device__ __forceinline__ int unit_of(int u) const { return unit_of_pair() + (C::kSingle ? lane % 2 : u); }
  /// Unit and sequence of the lane's element e, of its own.
  __device__ __forceinline__ static constexpr int unit_in(int e) { return e / C::kSequences; }
  __device__ __forceinline__ static constexpr int sequence_in(int e) { return e % C::kSequences; }
  /// The lane's sequence q in eight nt, of those whose gates the warp computes; and which of the tile that is.
  __device__ __forceinline__ int own(int nt, int q) const {
    return C::kSingle ? 0 : C::kSequences == 1 ? lane % 4 : nt * 8 + 2 * (lane % 4) + q;
  }
  __device__ __forceinline__ int of_tile(int mine) const {
    return C::S == 1 ? mine : C::NT < C::S ? C::S * mine + part : part * C::kOwn + mine;
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
    const int item = lane % kItems;
    sent_to = base + h_offset(0, item / C::kOwnSent, of_tile(item % C::kOwnSent)) + uint32_t(group * kGroup);
    h_get = base + h_offset(0, 0, C::kSingle ? 0 : lane % 8) + 16 * (lane / 8) + uint32_t(64 * pair);
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
    for (int nt = 0; nt < C::kOwnTiles; ++nt) {
#pragma unroll
      for (int q = 0; q < C::kSequences; ++q) {
        const int i = first + in_tile(nt, q);
        length[nt][q] = i < batch ? s.length[i] : 0;
        const int order = i < batch ? s.order[i] : 0;
        row[nt][q] = length[nt][q] > 0 ? int(row_of(s, 0, order, length[nt][q])) : 0;
      }
      const int from = first + (C::kSingle ? 0 : of_tile(min(nt * 8 + lane / 4, C::kOwn - 1)));
      const int steps = from < batch ? s.length[from] : 0;
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
    if (lane % 4 < 3 && lane / 4 < (C::kSingle ? 1 : C::kOwn)) {
#pragma unroll
      for (int nt = 0; nt < C::kOwnTiles; ++nt) {
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
    const int tiles = shared_ksteps(c, C::KT, C::kResident, C::S) * 3;
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

  /// A sum of both chains, and `more`.
  __device__ __forceinline__ static int all(const Sums& acc, int l, int gate, int nt, int i, int more) {
    uint32_t v = uint32_t(acc[0][l][gate][nt][i]) + uint32_t(more);
    if (C::kChains == 2) v += uint32_t(acc[C::kChains - 1][l][gate][nt][i]);
    return int(v);
  }
  /// Two warps of a group give each other their sums of the other's sequences. Leaves those of the lane's elements, in order.
  __device__ __forceinline__ void gather(const Sums& acc, int (&own_sums)[3][C::kPerTile]) const {
    // Of gate and element: eight sequences of sixteen, or one of two.
    const auto sum_of = [&](int to, int gate, int e) {
      if constexpr (C::NT >= C::S)
        return to != 0 ? all(acc, 0, gate, C::NT - 1, e, 0) : all(acc, 0, gate, 0, e, 0);
      else
        return to != 0 ? all(acc, 0, gate, 0, 2 * e + 1, 0) : all(acc, 0, gate, 0, 2 * e, 0);
    };
    constexpr int kCount = 3 * C::kPerTile, kParts = (kCount + 3) / 4;
    uint32_t words[4 * kParts] = {};
#pragma unroll
    for (int i = 0; i < kCount; ++i) words[i] = uint32_t(sum_of(1 - part, i / C::kPerTile, i % C::kPerTile));
    const uint32_t mine = base + uint32_t(at.sums + warp * bytes_of_sums(C::kTile, C::S) + lane * 16);
    const uint32_t other = base + uint32_t(at.sums + (warp ^ 1) * bytes_of_sums(C::kTile, C::S) + lane * 16);
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      store_shared_16(mine + uint32_t(512 * i),
                      uint4{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]});
    pair_sync(warp / 2);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const uint4 v = load_shared_16(other + uint32_t(512 * i));
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      own_sums[i / C::kPerTile][i % C::kPerTile] =
          int(uint32_t(sum_of(part, i / C::kPerTile, i % C::kPerTile)) + words[i]);
  }
  /// The sum of the lane's element e, with its bias.
  __device__ __forceinline__ T sum(const Sums& acc, int gate, int nt, int e) const {
    const int u = unit_in(e);
    int parts[C::L];
#pragma unroll
    for (int l = 0; l < C::L; ++l) {
      const auto of = [&](int i) { return all(acc, l, gate, nt, i, bias32[gate][u]); };
      parts[l] = C::kSingle ? (lane % 2 != 0 ? of(2) : of(0)) : of(2 * u + sequence_in(e));
    }
    return N::product(parts[0], parts[C::L - 1], bias[gate][u]);
  }
  /// The same of split groups, from gather().
  __device__ __forceinline__ T sum(const int (&own_sums)[3][C::kPerTile], int gate, int, int e) const {
    return T(int(uint32_t(own_sums[gate][e]) + uint32_t(bias32[gate][unit_in(e)])));
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
  template <class AnySums>
  __device__ __forceinline__ void update(const AnySums& acc, const T (&parts)[C::kOwnTiles][C::kPerTile][3], int step) {
#pragma unroll
    for (int nt = 0; nt < C::kOwnTiles; ++nt) {
      const auto hh = [&](int e, int gate) {
        return N::multiply_add(sum(acc, gate, nt, e), scale[gate][unit_in(e)], N::kMagic);
      };
      // A tile of one sequence has as many steps as that.
      const auto set = [&](int e, T next) {
        state[nt][e] = C::kSingle || step < length[nt][sequence_in(e)] ? next : state[nt][e];
      };
      if constexpr (C::kF32) {
#pragma unroll
        for (int e = 0; e < C::kPerTile; ++e) {
          const T shifted[3] = {hh(e, 0), hh(e, 1), hh(e, 2)};
          set(e, elements(
                     parts[nt][e], [&](int gate) { return shifted[gate]; }, state[nt][e],
                     [&](int i, T x) {
                       const T found = look_up(i, x);
                       // Nothing else could be done while this table answers.
                       if (C::kSingle && i == 2) work_beside(step);
                       return found;
                     }));
        }
      } else {
        // These tables lie in global memory: all elements ask, then all go on.
        T r[C::kPerTile], u[C::kPerTile], n[C::kPerTile];
#pragma unroll
        for (int e = 0; e < C::kPerTile; ++e) r[e] = look_up(1, elements.reset_input(parts[nt][e][1], hh(e, 1)));
#pragma unroll
        for (int e = 0; e < C::kPerTile; ++e) u[e] = look_up(0, elements.update_input(parts[nt][e][0], hh(e, 0)));
#pragma unroll
        for (int e = 0; e < C::kPerTile; ++e) n[e] = look_up(2, elements.new_input(parts[nt][e][2], hh(e, 2), r[e]));
#pragma unroll
        for (int e = 0; e < C::kPerTile; ++e)
          set(e, elements.next_state(u[e], n[e], elements.kept(u[e], state[nt][e])));
      }
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
    for (int nt = 0; nt < C::kOwnTiles; ++nt)
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
    return uint32_t(own(0, 0) * stride + 2 * (lane / 4) + (C::kSingle ? lane % 2 : 0));
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

  /// Rows of 16 codes that a warp sends to a block: at most 32, or a multiple.
  static constexpr int kItems = C::L * C::kOwnSent;
  __device__ __forceinline__ uint32_t stage() const { return uint32_t(at.stage + warp * C::L * C::kOwn * 16); }
  __device__ __forceinline__ uint32_t barrier(int half) const { return base + uint32_t(at.barriers + 8 * half); }

  __device__ __forceinline__ void send(int half) const {
    put(base + stage() + first_place(16), C::kOwn * 16, 16);
    __syncwarp();
    const uint32_t other = half == 0 ? 0 : half_bytes, counts = barrier(half);
    for (int i = lane; i < kItems * a.blocks; i += 32) {
      const int item = i % kItems;
      const auto rank = uint32_t(i / kItems);
      const uint4 v =
          load_shared_16(base + stage() + uint32_t((item / C::kOwnSent * C::kOwn + item % C::kOwnSent) * 16));
      // Up to 32 items a lane has the same one for every block.
      const uint32_t to = kItems <= 32 ? sent_to + other
                                       : base + h_offset(half, item / C::kOwnSent, of_tile(item % C::kOwnSent)) +
                                             uint32_t(group * kGroup);
      send_16(shared_of(to, rank), v, shared_of(counts, rank));
    }
    __syncwarp();
  }

  /// Through global memory; all threads of all blocks of the tile. `epoch` counts steps over all tiles, `next`: the half of h.
  __device__ __forceinline__ void exchange(int slot, uint32_t epoch, int next) const {
    constexpr int kRows = C::L * C::kTile;
    uint8_t* const half = a.call.shared_h + (int64_t(slot) * 2 + epoch % 2) * kRows * hs;
    if (works) {
      put(base + stage() + first_place(16), C::kOwn * 16, 16);
      __syncwarp();
      for (int item = lane; item < C::L * C::kOwn; item += 32)
        *reinterpret_cast<uint4*>(half + int64_t(C::S == 1 ? item : of_tile(item)) * hs + group * kGroup) =
            load_shared_16(base + stage() + uint32_t(item * 16));
    }
    if constexpr (C::S == 1) {
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
    } else {
      // A flag per warp; each warp waits for the groups whose codes it copies, into the half that nobody reads.
      __syncwarp();
      uint32_t* const flags = a.call.flags + int64_t(slot) * c.groups * C::S;
      if (works && lane == 0) store_release(flags + group * C::S + part, epoch + 1);
      const int each = (c.groups + warps - 1) / warps, first = warp * each, count = min(each, c.groups - first);
      for (int i = lane; i < count * C::S; i += 32)
        while (int32_t(load_acquire(flags + first * C::S + i) - (epoch + 1)) < 0) {
        }
      __syncwarp();
      const uint32_t to = base + h_offset(next, 0, 0);
      for (int i = lane; i < kRows * count; i += 32) {
        const int place = i / count * hs + (first + i % count) * kGroup;
        copy_async_16(to + uint32_t(place), half + place);
      }
    }
    wait_for_all_copies();
    __syncthreads();
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

  __device__ __forceinline__ void step_once(int step, int steps, int slot, uint32_t epoch, uint32_t expected) {
    const int half = C::kHalves == 2 ? step % 2 : 0;
    const uint32_t now = half != 0 ? half_bytes : 0;
    // Warps without units send nothing, so nobody waits for them: they may not wait for a phase that has gone by.
    if (C::P == GruPath::kCluster && step > 0 && works) {
      wait_for_bytes(barrier(half), uint32_t((step - 1) / 2 % 2));
      if (threadIdx.x == 0) expect_bytes(barrier(half), expected);
    }
    if (works) {
      Sums acc = {};
      T parts[C::kOwnTiles][C::kPerTile][3];
      multiply(h_get + now, acc);
      if (!C::kSingle) work_beside(step);
      load_parts(step, parts);
      if constexpr (C::S == 1) {
        update(acc, parts, step);
      } else {
        int sums[3][C::kPerTile];
        gather(acc, sums);
        update(sums, parts, step);
      }
    }
    if (C::P == GruPath::kBlock) {
      put(h_put + half_bytes - now, C::kTile * hs, hs);
      __syncthreads();
    } else if (C::P == GruPath::kGrid) {
      exchange(slot, epoch, 1 - half);
    } else if (works && step + 1 < steps) {
      send(1 - half);
    }
  }
};

}  // namespace lowbit::cuda::gru
