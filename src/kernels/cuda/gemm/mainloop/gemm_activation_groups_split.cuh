#pragma once
// 9 to 64 tokens with a scale per group of 32 columns (an activation group): weights are read once for all of them. A
// block is 32 or 64 rows of weights; its warps share K, each multiplies a block of 128 columns of a stage. What groups
// of the weights come to goes to shared memory, and the threads scale and accumulate them in their order, a stage
// behind. The pipeline and one activation group: activation_group_tile.cuh.
//
// Shapes:   1, 2 or 4 activation groups to a scale of the weights; any n, k, x.
// Numerics: docs/numerics.md#matmul: a group's own sum does not depend on the others.
// Limits:   memory up to about 32 tokens, then instructions: 2 1/4 float operations per output and activation group.

#include "kernels/cuda/gemm/mainloop/activation_group_tile.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_skinny.cuh"

namespace lowbit::cuda {

/// A thread's outputs: two neighbouring rows of every kTokenStep-th token.
template <class Tile>
struct ActivationGroupOutputs {
  static constexpr int kPairs = Tile::kRows / 2, kTokenStep = Tile::kThreads / kPairs,
                       kCount = Tile::kTokens < kTokenStep ? 1 : Tile::kTokens / kTokenStep;
  int row, token;
  float2 acc[kCount];

  __device__ ActivationGroupOutputs() : row(2 * (threadIdx.x % kPairs)), token(threadIdx.x / kPairs) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) acc[i] = {0.0f, 0.0f};
  }
  __device__ bool there(int i) const {
    return Tile::kTokens % kTokenStep == 0 || token + i * kTokenStep < Tile::kTokens;
  }
  /// Groups [first, first + count) of the weights, whose parts and scales lie there.
  __device__ __forceinline__ void add(const ActivationGroupArgs& p, const ActivationGroupCopies<Tile>& copies,
                                      const float* parts, const float* scales, int first, int count) {
#pragma unroll 4
    for (int g = 0; g < count; ++g) {
      const float2 s = *reinterpret_cast<const float2*>(scales + g * Tile::kRows + row);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (!there(i)) continue;
        const float2 t = *reinterpret_cast<const float2*>(parts + g * (Tile::kPartGroup / 4) +
                                                          (token + i * kTokenStep) * Tile::kPartRow + row);
        acc[i] = {__fmaf_rn(t.x, s.x, acc[i].x), __fmaf_rn(t.y, s.y, acc[i].y)};
        if (p.offsets != nullptr) {
          const int m = min(copies.m0 + token + i * kTokenStep, p.m - 1);
          const float sum = __ldg(p.x_sums + int64_t(m) * p.weight_groups + first + g);
          const float* const offsets = p.offsets + int64_t(first + g) * p.per_scale * p.n_padded + copies.row0 + row;
          acc[i] = {__fmaf_rn(sum, __ldg(offsets), acc[i].x), __fmaf_rn(sum, __ldg(offsets + 1), acc[i].y)};
        }
      }
    }
  }
  __device__ void store(const ActivationGroupArgs& p, const ActivationGroupCopies<Tile>& copies) const {
    const int n = copies.row0 + row;
    const float2 bias = bias_pair(p, n);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (there(i)) finish_pair<GemmActivation::kInt8>(p, copies.m0 + token + i * kTokenStep, n, acc[i], bias, 1.0f);
  }
};

/// A lane's sums of a group into its place [token][row].
template <class Tile>
__device__ __forceinline__ void put_parts(float* group, const ActivationGroupLane<Tile>& lane,
                                          const float (&part)[Tile::kRowTiles][Tile::kSums]) {
#pragma unroll
  for (int q = 0; q < Tile::kRowTiles; ++q)
#pragma unroll
    for (int i = 0; i < Tile::kSums; i += 4)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = lane.first_token() + 2 * i + c;
        *reinterpret_cast<float2*>(group + token * Tile::kPartRow + lane.first_row() + 16 * q) = {part[q][i + c],
                                                                                                  part[q][i + 2 + c]};
      }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kSums* Tile::kRowTiles > 16 ? 1 : 2)
    gemm_activation_groups_split(const __grid_constant__ ActivationGroupArgs p) {
  extern __shared__ __align__(1024) uint8_t activation_group_stages[];
  skinny_let_next_kernel_start();
  uint8_t* const shared = activation_group_stages;
  const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
  const ActivationGroupCopies<Tile> copies(p, base, static_cast<int>(blockIdx.y) * Tile::kTokens,
                                           static_cast<int>(blockIdx.x) * Tile::kRows);
  const ActivationGroupLane<Tile> lane;
  for (int s = 0; s < Tile::kStages - 1; ++s) copies.weights(s), copies.scales(s);
  skinny_wait_for_previous_kernel();
  for (int s = 0; s < Tile::kStages - 1; ++s) {
    copies.x(s);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  const int stages = (p.k_blocks + Tile::kKWarps - 1) / Tile::kKWarps;
  static_assert(Tile::kBits != kTrellis);  // a warp has not the blocks of K one after the other
  RowHistory<Tile::kBits> history[Tile::kRowTiles];
  ActivationGroupOutputs<Tile> outputs;
  const auto parts = [&](int s) { return reinterpret_cast<float*>(shared + Tile::kEnd + s % 2 * Tile::kPartsOfStage); };
  const auto add = [&](int s) {
    const int first = copies.first_group(p, s);
    outputs.add(p, copies, parts(s), reinterpret_cast<const float*>(shared + copies.scale_slot(s)), first,
                min(Tile::kScaleRows, p.weight_groups - first));
  };
#pragma unroll 1
  for (int s = 0; s < stages; ++s) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Tile::kStages - 2) : "memory");
    __syncthreads();
    copies.weights(s + Tile::kStages - 1), copies.scales(s + Tile::kStages - 1), copies.x(s + Tile::kStages - 1);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (s > 0) add(s - 1);
    if (s * Tile::kKWarps + lane.k_warp >= p.k_blocks) continue;
    const uint32_t stage = copies.stage(s);
    float part[Tile::kRowTiles][Tile::kSums];
    float* group = parts(s) + lane.k_warp * (4 / Tile::kPerScale) * (Tile::kPartGroup / 4);
#pragma unroll
    for (int batch = 0; batch < 2; ++batch) {
      uint32_t a[Tile::kRowTiles][8];
      lane.decode_batch(p.table, shared + (stage - base), batch, history, a);
#pragma unroll
      for (int step = 2 * batch; step < 2 * batch + 2; ++step) {
        if (step % Tile::kPerScale == 0)
          lane.template multiply<true>(shared, base, stage, step, a, part);
        else
          lane.template multiply<false>(shared, base, stage, step, a, part);
        if ((step + 1) % Tile::kPerScale != 0) continue;
        put_parts<Tile>(group, lane, part);
        group += Tile::kPartGroup / 4;
      }
    }
  }
  __syncthreads();
  add(stages - 1);
  outputs.store(p, copies);
}

}  // namespace lowbit::cuda
