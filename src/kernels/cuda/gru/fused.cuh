#pragma once
// One sequence in one thread block, its input product too: small cells, whose step is nothing but latency.
//
// Half of the warps (recurrent) own 16 units each and do only what a step must wait for: R times h, gates, state, one
// byte of h a unit, a barrier. The others (beside) compute ih of the next eight steps on the matrix unit, as the gates
// take it, and write y of the eight before from the history of h. All warps meet once every eight steps.

#include <span>

#include "kernels/cuda/gru/elements.cuh"
#include "kernels/cuda/gru/matrix.cuh"
#include "kernels/cuda/gru/sequence_layout.cuh"

namespace lowbit::cuda::gru {

constexpr int kChunk = 8, kHistory = 2 * kChunk;  // steps

struct FusedLayout {
  int h, parts, tables, bytes;
};
inline LOWBIT_HD FusedLayout fused_layout(const Cell& c) {
  FusedLayout s{};
  s.parts = align_up(kHistory * stride_of_h(c.h), 16);
  s.tables = s.parts + kHistory * 3 * c.padded * 4;
  s.bytes = s.tables;
  for (const Table& t : c.table) s.bytes += align_up(4 * t.entries, 16);
  return s;
}

/// State that all warps of a block share. K: columns / 32 of W and of R, at most.
template <int K>
struct FusedBlock {
  using N = Floats;
  const Cell& c;
  const GruSequences& s;
  const Elements<N>& elements;
  FusedLayout at;
  uint8_t* shared;
  uint32_t base;
  int lane, group, hs, sequence, order, length;

  __device__ __forceinline__ FusedBlock(const SequenceArgs& args, const Elements<N>& e, uint8_t* memory)
      : c(args.cell),
        s(args.call.s),
        elements(e),
        at(fused_layout(args.cell)),
        shared(memory),
        base(shared_address(memory)),
        lane(int(threadIdx.x) % 32),
        group(int(threadIdx.x) / 32 % args.cell.groups),
        hs(stride_of_h(args.cell.h)),
        sequence(int(blockIdx.x)),
        order(0),
        length(0) {}

  __device__ __forceinline__ int table_at(int i) const {
    int to = at.tables;
    for (int j = 0; j < i; ++j) to += align_up(4 * c.table[j].entries, 16);
    return to;
  }
  __device__ __forceinline__ void load_tables() const {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      constexpr int kOutputs[3] = {kSlotU, kSlotR, kSlotN};
      const float centre = float(-zero_of(c.grid[kOutputs[i]]));
      auto* const to = reinterpret_cast<float*>(shared + table_at(i));
      for (int e = int(threadIdx.x); e < c.table[i].entries; e += int(blockDim.x)) {
        const float y = float(c.table[i].data[e]) + centre;
        to[e] = i == 2 ? elements.shifted(y, elements.n_h) : y;
      }
    }
  }
  /// The sequence, and its first state in the history.
  __device__ __forceinline__ void begin() {
    order = s.order[sequence];
    length = s.length[sequence];
    for (int unit = int(threadIdx.x); unit < hs; unit += int(blockDim.x))
      shared[unit] = unit < c.h ? uint8_t(s.state[int64_t(sequence) * c.h + unit]) : 0;
  }
  __device__ __forceinline__ int64_t row(int step) const { return row_of(s, step, order, length); }
};

/// The weights of a group's three gates in registers.
template <int K>
struct FusedWeights {
  uint4 words[3][K];
  /// Tile (gate, kstep) is number gate * gate_tiles + kstep * kstep_tiles of `tiles`.
  __device__ __forceinline__ void load(const uint8_t* tiles, int ksteps, int gate_tiles, int kstep_tiles, int lane) {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int k = 0; k < K; ++k)
        words[gate][k] = k < ksteps ? *reinterpret_cast<const uint4*>(
                                          tiles + (gate * gate_tiles + k * kstep_tiles) * kTileBytes + lane * 16)
                                    : uint4{0, 0, 0, 0};
  }
};

/// A recurrent warp. Lane 4 i + j has unit 2 i + j % 2 of its group; lanes of j >= 2 do the same work again.
template <int K>
struct FusedSteps {
  using N = Floats;
  const FusedBlock<K>& b;
  FusedWeights<K> weights;
  int unit, h_zero, start[3];
  float scale[3], back[3], table[3], state;
  uint32_t h_get, h_put, parts_at, part_bytes;

  __device__ __forceinline__ explicit FusedSteps(const FusedBlock<K>& block)
      : b(block),
        unit(block.group * kGroup + 2 * (block.lane / 4) + block.lane % 2),
        h_zero(zero_of(block.c.grid[kSlotH])),
        state(0),
        h_get(block.base + 16 * (block.lane / 8)),
        h_put(block.base + uint32_t(unit)),
        parts_at(block.base + uint32_t(block.at.parts + 4 * unit)),
        part_bytes(uint32_t(4 * block.c.padded)) {
    constexpr int kInputs[3] = {kSlotUi, kSlotRi, kSlotNi};
    const Cell& c = b.c;
    weights.load(c.r.tiles + int64_t{b.group} * c.r.ksteps * 3 * kTileBytes, c.r.ksteps, 1, 3, b.lane);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      // Sums below 2^22 start as floats that hold the constant: no conversion afterwards.
      start[gate] = int(c.r.bias[gate * c.padded + unit]) + __float_as_int(N::kMagic);
      scale[gate] = N::power(-c.r.shift[gate * c.padded + unit]);
      back[gate] = N::multiply_add(-N::kMagic, scale[gate], N::kMagic);
      table[gate] = N::address_of_zero(b.base + uint32_t(b.table_at(gate) + 4 * zero_of(c.grid[kInputs[gate]])));
      hold(start[gate]), hold(scale[gate]), hold(back[gate]), hold(table[gate]);
    }
    hold(h_get), hold(h_put), hold(parts_at), hold(part_bytes), hold(h_zero);
  }
  __device__ __forceinline__ uint32_t code() const { return N::bits(state) + uint32_t(h_zero); }
  __device__ __forceinline__ void begin() {
    const int v = unit < b.c.h ? int(b.s.state[int64_t(b.sequence) * b.c.h + unit]) - h_zero : 0;
    state = N::add(N::kMagic, float(v));
  }
  __device__ __forceinline__ void end() const {
    if (b.lane % 4 < 2 && unit < b.c.h) b.s.state[int64_t(b.sequence) * b.c.h + unit] = uint16_t(code());
  }
  __device__ __forceinline__ void step(int number) {
    const int slot = number % kHistory, next = (number + 1) % kHistory;
    uint32_t h[K / 2][4];
#pragma unroll
    for (int kp = 0; kp < K / 2; ++kp) load_blocks(h[kp], h_get + uint32_t(slot * b.hs + 64 * kp));
    float parts[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
      parts[gate] = load_shared_f32(parts_at + uint32_t(slot * 3 + gate) * part_bytes);
    int acc[2][3][4];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        acc[0][gate][i] = start[gate];
        acc[1][gate][i] = 0;
      }
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const int gate = (i + 1) % 3;  // the reset gate first: it is waited for first
        mma_s8_u8(acc[k % 2][gate], weights.words[gate][k], h[k / 2][2 * (k % 2)], h[k / 2][2 * (k % 2) + 1]);
      }
    float hh[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      const int first = acc[0][gate][0] + acc[1][gate][0], second = acc[0][gate][2] + acc[1][gate][2];
      hh[gate] = N::multiply_add(__int_as_float(b.lane % 2 != 0 ? second : first), scale[gate], back[gate]);
    }
    state = b.elements(
        parts, [&](int gate) { return hh[gate]; }, state,
        [&](int i, float x) { return load_shared_f32(N::address(x, table[i])); });
    if (b.lane % 4 < 2) store_shared_1(h_put + uint32_t(next * b.hs), code());
  }
};

/// A warp beside them.
template <int K>
struct FusedBeside {
  using N = Floats;
  const FusedBlock<K>& b;
  FusedWeights<K> weights;
  int32_t bias[3][2], shift[3][2];
  uint32_t x[K][2];  // codes of a chunk: step lane / 4 at columns 4 (lane % 4).., and 16 further

  __device__ __forceinline__ explicit FusedBeside(const FusedBlock<K>& block) : b(block) {
    const Cell& c = b.c;
    weights.load(c.x.tiles + int64_t{b.group} * c.x.ksteps * kTileBytes, c.x.ksteps, c.groups * c.x.ksteps, 1, b.lane);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int row = gate * c.padded + b.group * kGroup + 2 * (b.lane / 4) + u;
        bias[gate][u] = int32_t(c.x.bias[row]);
        shift[gate][u] = c.x.shift[row];
      }
  }
  /// Asks for x of the steps from `first` on.
  __device__ __forceinline__ void fetch(int first) {
    const int step = min(first + b.lane / 4, max(b.length - 1, 0));
    const uint8_t* const from = b.s.x.data + (b.length > 0 ? b.row(step) : 0) * b.s.x.stride;
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = k * kStepK + 16 * i + 4 * (b.lane % 4);
        x[k][i] = column < int(b.s.x.stride) ? *reinterpret_cast<const uint32_t*>(from + column) : 0;
      }
  }
  /// ih of the steps that were fetched, as the gates take it, into the half of the history that starts at `slot`.
  __device__ __forceinline__ void produce(int slot) const {
    int acc[3][4] = {};
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) mma_s8_u8(acc[gate], weights.words[gate][k], x[k][0], x[k][1]);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      const auto part = [&](int u, int sum) {
        const int32_t v = Shift32(shift[gate][u])(int32_t(uint32_t(sum) + uint32_t(bias[gate][u])));
        return b.elements.part_of(gate, float(clamp<int32_t>(v, b.c.x.low, b.c.x.high)));
      };
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int to = ((slot + 2 * (b.lane % 4) + e) * 3 + gate) * b.c.padded + b.group * kGroup + 2 * (b.lane / 4);
        *reinterpret_cast<float2*>(b.shared + b.at.parts + 4 * to) =
            float2{part(0, acc[gate][e]), part(1, acc[gate][2 + e])};
      }
    }
  }
  /// y of `count` steps from `first` on.
  __device__ __forceinline__ void write_y(int first, int count) const {
    const int thread = b.group * 32 + b.lane, threads = b.c.groups * 32;
    const auto from = [&](int i) { return b.shared + (first + i + 1) % kHistory * b.hs; };
    uint8_t* const y = b.s.y.data + b.s.y_column;
    if ((b.c.h | b.s.y_column) % 16 == 0) {
      const int parts = b.c.h / 16;
      for (int i = thread; i < count * parts; i += threads)
        *reinterpret_cast<uint4*>(y + b.row(first + i / parts) * b.s.y.stride + 16 * (i % parts)) =
            *reinterpret_cast<const uint4*>(from(i / parts) + 16 * (i % parts));
    } else {
      for (int i = thread; i < count * b.c.h; i += threads)
        y[b.row(first + i / b.c.h) * b.s.y.stride + i % b.c.h] = from(i / b.c.h)[i % b.c.h];
    }
  }
};

/// Two warps to a group; K / 2 blocks of 64 columns of h are K groups.
template <int K>
__global__ void __launch_bounds__(32 * K * 4, 1) run_fused(const __grid_constant__ SequenceArgs args) {
  const Elements<Floats> elements(args.cell);
  FusedBlock<K> block(args, elements, block_memory());
  block.load_tables();
  if (int(threadIdx.x) >= 32 * args.cell.groups) {
    FusedBeside<K> beside(block);
    wait_for_predecessor();
    block.begin();
    beside.fetch(0);
    beside.produce(0);
    beside.fetch(kChunk);
    __syncthreads();
    for (int first = 0; first < block.length; first += kChunk) {
      if (first + kChunk < block.length) beside.produce((first + kChunk) % kHistory);
      beside.fetch(first + 2 * kChunk);
      if (first > 0) beside.write_y(first - kChunk, kChunk);
      __syncthreads();
    }
    const int done = block.length > 0 ? (block.length - 1) / kChunk * kChunk : 0;
    beside.write_y(done, block.length - done);
  } else {
    FusedSteps<K> steps(block);
    wait_for_predecessor();
    block.begin();
    steps.begin();
    __syncthreads();
    for (int first = 0; first < block.length; first += kChunk) {
      const int last = min(first + kChunk, block.length);
      for (int step = first; step < last; ++step) {
        steps.step(step);
        if (step + 1 < last) warps_sync(32 * args.cell.groups);
      }
      __syncthreads();
    }
    steps.end();
  }
}

struct FusedKernel {
  int ksteps;  // of W and R, at most
  void (*run)(SequenceArgs);
};
std::span<const FusedKernel> fused_kernels();  // smaller ones first

}  // namespace lowbit::cuda::gru
