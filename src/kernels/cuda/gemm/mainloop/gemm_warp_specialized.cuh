#pragma once
// The sm_90a pipeline for 16-bit x with groups of 128 columns or multiples: kDepth warpgroups share a tile's K, so that
// one decodes while another one's products run. A stage of the pipeline is 128 columns: two blocks of K and the scales
// of their group. A block has one tile.

#include "kernels/cuda/gemm/epilogue/epilogue.cuh"
#include "kernels/cuda/gemm/primitives/ptx.cuh"
#include "kernels/cuda/gemm/primitives/wgmma.cuh"
#include "kernels/cuda/gemm/schedule/tile_at.cuh"

namespace lowbit::cuda {

/// Bm tokens by 64 * Packs rows of weights. Ahead: operands of the next 64 columns are decoded while products run.
template <GemmActivation X_, int Bits_, int Bm_, int Packs_, int Depth_, int Split_, bool Ahead_>
struct SpecializedTile {
  static constexpr GemmActivation X = X_;
  static constexpr int kBits = Bits_, kBm = Bm_, kPacks = Packs_, kDepth = Depth_, kSplit = Split_;
  static constexpr bool kAhead = Ahead_;
  using Order = FragmentOrder<kBits, 2>;
  static constexpr int kWarpgroups = kPacks * kDepth, kMathThreads = 128 * kWarpgroups, kThreads = kMathThreads + 128;
  static constexpr int kXBlock = kBm * 128, kWBlock = kPacks * Order::kPackBytes, kScaleRow = kPacks * 256;
  static constexpr int kWeightsAt = 2 * kXBlock, kScalesAt = kWeightsAt + 2 * kWBlock;
  static constexpr int kStage = (kScalesAt + kScaleRow + 16 + 1023) / 1024 * 1024;  // its two barriers last
  static constexpr int kSums = kBm / 2, kQuads = kSums / 4;
  // Every stage belongs to one warpgroup's share of K: a barrier is waited for in each of its phases, by the same
  // warps.
  static constexpr int kBudget = kBm == 128 ? 224 << 10 : 190 << 10;
  static constexpr int kFit = kBudget / kStage < 16 ? kBudget / kStage : 16, kStages = kFit / kDepth * kDepth;
  static_assert(kStages >= kDepth);
  // of a warpgroup's stages in the pipeline
  static constexpr int kWarpgroupStages = kStages / kDepth, kStep = kDepth * kStage;
  static constexpr int kPipelineBytes = kStages * kStage, kPartsBarrier = kPipelineBytes,
                       kBehindPipeline = kPipelineBytes + 128;
  // Sums: everyone who shares a tile's K finishes every kOwners-th quad of outputs. They meet behind the pipeline, as
  // others may be done sooner, or, where there is no room, in its place.
  static constexpr int kOwners = kSplit * kDepth, kShare = kQuads / kOwners,
                       kPartBytes = kDepth * (kOwners - 1) * kShare * kPacks * 2048;
  static constexpr bool kPartsApart = kBehindPipeline + kPartBytes <= 227 << 10;
  static_assert((kOwners == 2 || kOwners == 4) && kPipelineBytes >= kPartBytes && (kPartsApart || kSplit == 1));
  static constexpr int kParts = kPartsApart ? kBehindPipeline : 0,
                       kShared = kBehindPipeline + (kPartsApart ? kPartBytes : 0);
  // Registers of a block are what it was launched with: the copying warpgroup keeps few of them.
  static constexpr int kLaunched = 65536 / kThreads / 8 * 8;
  static constexpr int kGiven = kThreads > 512 ? 24 : 40;
  static constexpr int kRoom = (kLaunched * kThreads - 128 * kGiven) / kMathThreads / 8 * 8;
  static constexpr int kMathRegisters = kRoom < 240 ? kRoom : 240;
};

/// Barriers of the stage at a shared address.
template <class T>
__device__ __forceinline__ uint32_t full_barrier(uint32_t stage) {
  return stage + T::kStage - 16;
}
template <class T>
__device__ __forceinline__ uint32_t empty_barrier(uint32_t stage) {
  return stage + T::kStage - 8;
}

/// The stages as copying threads fill them, one after the other.
template <class T>
struct SpecializedPipeline {
  uint32_t base, at;  // shared addresses: of the pipeline, of the stage
  uint32_t phase = 0;
  __device__ explicit SpecializedPipeline(uint32_t base_) : base(base_), at(base_) {}
  __device__ uint32_t full() const { return full_barrier<T>(at); }
  __device__ uint32_t empty() const { return empty_barrier<T>(at); }
  __device__ void next() {
    at += T::kStage;
    if (at == base + T::kPipelineBytes) at = base, phase ^= 1;
  }
};

/// Stages of a block: pairs of blocks of K.
struct PairRange {
  int first, count;
};
__device__ __forceinline__ PairRange pair_range(const GemmArgs& p, int rank) {
  const int first = rank * p.split_blocks;
  return {first, min(p.split_blocks, p.k_blocks - first) / 2};
}

enum class SpecializedCopies { kWeights, kX, kScales };

template <class T, SpecializedCopies What>
__device__ __forceinline__ void specialized_produce(const GemmArgs& p, const CUtensorMap* map, uint32_t base,
                                                    TileAt where, int rank) {
  constexpr int kPackBytes = T::Order::kPackBytes, kPackK = T::Order::kPackK;
  const PairRange range = pair_range(p, rank);
  const int pack0 = where.n * T::kPacks;
  SpecializedPipeline<T> pipeline(base);
  if constexpr (What == SpecializedCopies::kX) wait_for_previous_kernel();
  const int per = p.groups > 1 ? p.group / kPackK : 1 << 30;
  for (int i = 0; i < range.count; ++i, pipeline.next()) {
    if (i >= T::kStages) barrier_wait(pipeline.empty(), pipeline.phase ^ 1);
    const int block = range.first + 2 * i;
    if constexpr (What == SpecializedCopies::kWeights) {
      barrier_expect(pipeline.full(), 2 * T::kWBlock);
      const uint8_t* const from = p.tiles + pack_index(pack0, block, p.k_blocks) * kPackBytes;
      if constexpr (T::kPacks == kPanelPacks) {
        bulk_load(pipeline.at + T::kWeightsAt, from, 2 * T::kWBlock, pipeline.full());
      } else {
        bulk_load(pipeline.at + T::kWeightsAt, from, kPackBytes, pipeline.full());
        bulk_load(pipeline.at + T::kWeightsAt + kPackBytes, from + kPanelPacks * kPackBytes, kPackBytes,
                  pipeline.full());
      }
    } else if constexpr (What == SpecializedCopies::kX) {
      barrier_expect(pipeline.full(), 2 * T::kXBlock);
      box_load(pipeline.at, map, block * kPackK, where.m * T::kBm, pipeline.full());
      box_load(pipeline.at + T::kXBlock, map, (block + 1) * kPackK, where.m * T::kBm, pipeline.full());
    } else {
      barrier_expect(pipeline.full(), T::kScaleRow);
      bulk_load(pipeline.at + T::kScalesAt, p.scales + int64_t(block / per) * p.n_padded + pack0 * kPackRows,
                T::kScaleRow, pipeline.full());
    }
  }
}

/// Returns v and makes the compiler keep it, instead of working it out again from threadIdx in every turn of a loop.
__device__ __forceinline__ uint32_t kept(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}

/// decode() with its constants in registers: every instruction of the loop costs the tensor cores' time.
template <GemmActivation X>
struct SpecializedDecode {
  uint32_t half_zero;
  __device__ explicit SpecializedDecode(uint32_t zero) : half_zero(kept(zero)) {}
  template <int Bits>
  __device__ void decode_batch(const uint32_t* w, uint32_t* a) const {
    decode<X, Bits>(w, half_zero, a);
  }
};
template <>
struct SpecializedDecode<GemmActivation::kF16> {
  uint32_t half_zero, magic, minus;  // minus: 960 - half_zero, for codes at bit 4
  __device__ explicit SpecializedDecode(uint32_t zero) : half_zero(kept(zero)), magic(kept(0x64006400u)) {
    asm volatile("sub.rn.f16x2 %0, %1, %2;" : "=r"(minus) : "r"(0x63806380u), "r"(zero));
  }
  template <int Bits>
  __device__ void decode_batch(const uint32_t* w, uint32_t* a) const {
    if constexpr (Bits == 4) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t word = i % 4 < 2 ? w[i / 4] : w[i / 4] >> 8;
        uint32_t v;
        if (i % 2 == 0) {
          asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(v) : "r"(word), "r"(magic));
          asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(a[i]) : "r"(v), "r"(half_zero));
        } else {
          asm("lop3.b32 %0, %1, 0x00f000f0, %2, 0xea;" : "=r"(v) : "r"(word), "r"(magic));
          asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(a[i]) : "r"(v), "r"(0x2c002c00u), "r"(minus));
        }
      }
    } else {
      decode<GemmActivation::kF16, Bits>(w, half_zero, a);
    }
  }
};

/// A multiplying lane: what it does with the stage number `stage` of its warpgroup's, which the compiler knows, so that
/// all addresses are one register and a constant.
template <class T>
struct SpecializedLane {
  uint32_t stages, words, scales;  // shared addresses of stage 0: of the stage, of this lane's words and its scales
  uint64_t x;                      // descriptor
  SpecializedDecode<T::X> values;
  bool leader;  // of a warp
  __device__ SpecializedLane(uint32_t base, int depth, int pack, int lane128, uint32_t half_zero)
      : stages(base + depth * T::kStage), x(x_descriptor(stages)), values(half_zero), leader(lane128 % 32 == 0) {
    words = stages + kept(T::kWeightsAt + pack * T::Order::kPackBytes + lane128 * T::Order::kLaneWords * 4);
    scales = stages + kept(T::kScalesAt + pack * 256 + (lane128 / 32 * 8 + lane128 % 32 / 4) * 8);
  }
  __device__ void wait(int stage, uint32_t phase) const {
    barrier_wait(full_barrier<T>(stages + stage * T::kStep), phase);
  }
  __device__ void decode_block(int stage, int half, uint32_t (*a)[8]) const {
    constexpr int kWords = T::Order::kLaneWords;
    static_assert(kWords == 1 || kWords == 2);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const uint32_t at = words + stage * T::kStep + half * T::kWBlock + b * (kPackLanes * kWords * 4);
      uint32_t w[2];
      if constexpr (kWords == 2)
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(at));
      else
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w[0]) : "r"(at));
      values.template decode_batch<T::kBits>(w, a[b]);
    }
  }
  __device__ void multiply(int stage, int half, const uint32_t (*a)[8], float* d) const {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kStepsPerPack; ++step)
      wgmma(Wgmma<T::kBm, T::X>{}, d, a[step / 2] + 4 * (step % 2),
            x + ((stage * T::kStep + half * T::kXBlock) / 16 + 2 * step), step > 0 || half > 0);
    wgmma_commit();
  }
  __device__ float2 load_scales(int stage) const {
    float2 s;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(s.x), "=f"(s.y) : "r"(scales + stage * T::kStep));
    return s;
  }
  __device__ void release(int stage) const {
    __syncwarp();
    if (leader) barrier_arrive(empty_barrier<T>(stages + stage * T::kStep));
  }
};

/// acc += the sums of this warpgroup's pairs of blocks: every kDepth-th.
template <class T>
__device__ __forceinline__ void specialized_sum(const SpecializedLane<T>& lane, int first, int count, float* acc) {
  if (first >= count) return;
  float d[T::kSums];
#pragma unroll
  for (int i = 0; i < T::kSums; ++i) d[i] = 0.0f;
  auto scale_accumulate = [&](float2 s) {
#pragma unroll
    for (int i = 0; i < T::kSums; ++i) acc[i] = __fmaf_rn(d[i], i & 2 ? s.y : s.x, acc[i]);
  };
  uint32_t a0[2][8], a1[2][8], phase = 0;
  auto ahead = [&](int stage, bool more) {  // a0 has been decoded
    lane.multiply(stage, 0, a0, d);
    lane.decode_block(stage, 1, a1);
    lane.multiply(stage, 1, a1, d);
    const float2 s = lane.load_scales(stage);
    wgmma_wait<1>();
    if (more) {
      const int next = (stage + 1) % T::kWarpgroupStages;
      lane.wait(next, next == 0 ? phase ^ 1 : phase);
      lane.decode_block(next, 0, a0);
    }
    wgmma_wait<0>();
    lane.release(stage);
    scale_accumulate(s);
  };
  auto in_turn = [&](int stage) {
    lane.wait(stage, phase);
    lane.decode_block(stage, 0, a0);
    lane.multiply(stage, 0, a0, d);
    wgmma_wait<0>();
    lane.decode_block(stage, 1, a0);
    lane.multiply(stage, 1, a0, d);
    const float2 s = lane.load_scales(stage);
    wgmma_wait<0>();
    lane.release(stage);
    scale_accumulate(s);
  };
  if constexpr (T::kAhead) {
    lane.wait(0, 0);
    lane.decode_block(0, 0, a0);
  }
  for (int i = first; i < count; i += T::kWarpgroupStages * T::kDepth, phase ^= 1) {
#pragma unroll
    for (int stage = 0; stage < T::kWarpgroupStages; ++stage) {
      const int left = count - i - stage * T::kDepth;
      if (stage > 0 && left <= 0) continue;
      if constexpr (T::kAhead)
        ahead(stage, left > T::kDepth);
      else
        in_turn(stage);
    }
  }
}

/// A lane's sums 4 i .. 4 i + 3 in the order in which they are sent: 1, 0, 3, 2. What is sent are pairs of registers
/// that begin at an even one, and so do the sums of a block of K: thus each of these lies in the other bank of
/// registers than the sum it is added to.
struct SpecializedQuad {
  float2 first, second;  // rows n and n + 1 of weights; .y belongs to the first token, .x to the second
};

/// Adds the sums of all who share the tile's K and stores this warpgroup's outputs.
template <class T>
struct SpecializedReduction {
  uint32_t base;
  __device__ uint32_t barrier() const { return base + T::kPartsBarrier; }
  /// By one thread, before the cluster's blocks know of each other.
  __device__ void expect() const {
    barrier_init(barrier(), 1);
    barrier_expect(barrier(), T::kPartBytes);
  }
  /// Byte offset of the first pair of quad `k` of owner `owner`, in its block, from participant `part`; the second one
  /// is 1024 bytes further.
  static __device__ int offset(int owner, int part, int k, int pack, int lane128) {
    const int other = owner % T::kDepth * (T::kOwners - 1) + part - (part > owner);
    return T::kParts + ((other * T::kShare + k) * T::kPacks + pack) * 2048 + lane128 * 8;
  }
  __device__ void send(uint8_t* shared, int owner, int to, float2 v) const {
    if constexpr (T::kSplit == 1) {
      *reinterpret_cast<float2*>(shared + to) = v;
    } else {
      const uint32_t there = shared_of(base, owner / T::kDepth);
      send_pair(there + to, __float_as_uint(v.x), __float_as_uint(v.y), there + T::kPartsBarrier);
    }
  }
  __device__ void join(uint8_t* shared, int me, int pack, int lane128, const float* acc, SpecializedQuad* out) const {
    if constexpr (!T::kPartsApart) named_barrier(1, T::kMathThreads);  // nobody reads the pipeline any more
#pragma unroll
    for (int quad = 0; quad < T::kQuads; ++quad) {
      const float* const d = acc + 4 * quad;
      const SpecializedQuad v = {{d[1], d[0]}, {d[3], d[2]}};
      const int owner = quad % T::kOwners, k = quad / T::kOwners;
      const int to = offset(owner, me, k, pack, lane128);
      if (owner == me)
        out[k] = v;
      else
        send(shared, owner, to, v.first), send(shared, owner, to + 1024, v.second);
    }
    if constexpr (T::kSplit == 1)
      named_barrier(1 + pack, 128 * T::kDepth);
    else
      barrier_wait(barrier(), 0);
    auto add = [](float2& sum, float2 v) { sum = {__fadd_rn(sum.x, v.x), __fadd_rn(sum.y, v.y)}; };
#pragma unroll
    for (int k = 0; k < T::kShare; ++k) {
      SpecializedQuad sum = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
      for (int part = 0; part < T::kOwners; ++part) {
        SpecializedQuad v = out[k];
        const uint8_t* const at = shared + offset(me, part, k, pack, lane128);
        if (part != me) v = {*reinterpret_cast<const float2*>(at), *reinterpret_cast<const float2*>(at + 1024)};
        add(sum.first, v.first), add(sum.second, v.second);
      }
      out[k] = sum;
    }
  }
};

/// Outputs of rows n and n + 1 of weights and, of every 8 kOwners tokens from m on, the first two.
template <class T>
__device__ __forceinline__ void specialized_store(const GemmArgs& p, int n, int m, bool inside, float2 bias,
                                                  const SpecializedQuad* out) {
  const int64_t at = m * p.ldy + n;
  auto each = [&](auto store) {
#pragma unroll
    for (int k = 0; k < T::kShare; ++k) {
      const int row = 8 * T::kOwners * k;
      store(row, __fadd_rn(out[k].first.y, bias.x), __fadd_rn(out[k].second.y, bias.y));
      store(row + 1, __fadd_rn(out[k].first.x, bias.x), __fadd_rn(out[k].second.x, bias.y));
    }
  };
  if (!inside) {
    each([&](int row, float y0, float y1) { store_pair(p, at + row * p.ldy, m + row < p.m && n < p.n, n, y0, y1); });
  } else if (GemmOutput(p.output) == GemmOutput::kF32) {
    float* const y = static_cast<float*>(p.y) + at;
    each([&](int row, float y0, float y1) { *reinterpret_cast<float2*>(y + row * p.ldy) = {y0, y1}; });
  } else {
    uint16_t* const y = static_cast<uint16_t*>(p.y) + at;
    each([&](int row, float y0, float y1) { *reinterpret_cast<uint32_t*>(y + row * p.ldy) = to_halves(p, y0, y1); });
  }
}

template <class T>
__device__ __forceinline__ void specialized_consume(const GemmArgs& p, uint8_t* shared, uint32_t base, TileAt where,
                                                    int rank) {
  const int wg = warpgroup_of_thread(), pack = wg % T::kPacks, depth = wg / T::kPacks, lane128 = threadIdx.x & 127;
  const int n0 = 64 * where.n * T::kPacks, n = n0 + 64 * pack + lane128 / 32 * 16 + lane128 % 32 / 4 * 2,
            m0 = where.m * T::kBm;
  SpecializedLane<T> lane(base, depth, pack, lane128, p.half_zero);
  if (T::kSplit > 1) cluster_wait();  // every block of the cluster has begun
  const float2 bias = bias_pair(p, n);
  wait_for_previous_kernel();
  float acc[T::kSums];
#pragma unroll
  for (int i = 0; i < T::kSums; ++i) acc[i] = 0.0f;
  specialized_sum<T>(lane, depth, pair_range(p, rank).count, acc);
  SpecializedQuad out[T::kShare];
  const int me = rank * T::kDepth + depth;
  SpecializedReduction<T>{base}.join(shared, me, pack, lane128, acc, out);
  const bool inside = p.pairs && m0 + T::kBm <= p.m && (n | 15) < p.n;
  specialized_store<T>(p, n, m0 + 8 * me + 2 * (lane128 & 3), inside, bias, out);
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    gemm_warp_specialized(const __grid_constant__ CUtensorMap map, const __grid_constant__ GemmArgs p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const int rank = blockIdx.x % T::kSplit;
  const TileAt where = tile_at(p, p.n_tiles, blockIdx.x / T::kSplit);
  if (threadIdx.x == 0) {
    for (SpecializedPipeline<T> r(base); r.phase == 0; r.next()) {
      barrier_init(r.full(), 3);  // the copying threads
      barrier_init(r.empty(), 4 * T::kPacks);
    }
    if (T::kSplit > 1) SpecializedReduction<T>{base}.expect();
    barrier_init_done();
  }
  let_next_kernel_start();
  if (T::kSplit > 1) cluster_arrive();
  __syncthreads();
  if (warpgroup_of_thread() >= T::kWarpgroups) {
    give_registers<T::kGiven>();
    const int role = (threadIdx.x - T::kMathThreads) / 32;
    if (role == 0) {
      if (elected()) specialized_produce<T, SpecializedCopies::kWeights>(p, &map, base, where, rank);
    } else if (role == 1) {
      if (elected()) {
        prefetch_map(&map);
        specialized_produce<T, SpecializedCopies::kX>(p, &map, base, where, rank);
      }
    } else if (role == 2) {
      if (elected()) specialized_produce<T, SpecializedCopies::kScales>(p, &map, base, where, rank);
    }
    __syncwarp();
    if (T::kSplit > 1) cluster_wait();
  } else {
    take_registers<T::kMathRegisters>();
    specialized_consume<T>(p, shared, base, where, rank);
  }
#endif
}

template <class T>
constexpr WgmmaKernel specialized_kernel(const char* name) {
  return {reinterpret_cast<const void*>(&gemm_warp_specialized<T>), name,       T::kThreads, T::kBm,    T::kPacks,
          T::kSplit == 1 ? kSpecialized : kSpecializedPair,         T::kShared, 0,           T::kQuads, 1};
}

}  // namespace lowbit::cuda
