#pragma once
// The token of step_gemv.cuh becomes codes and scales in shared memory: normed and quantized here, or
// copied. Behind it lie zeros up to whole blocks of 128, scales that are zero for a share more.

#include "kernels/cuda/step_norm.cuh"
#include "kernels/cuda/step_products.cuh"

namespace lowbit::cuda {

inline constexpr int kStepGemvXGroups = 2 * kProductBatches;  // of a share

/// Columns of x as one of kThreads threads takes them: four at a time, so many times in a round of a row.
template <int kThreads>
inline constexpr int kStepGemvQuads = 1024 / kThreads;
template <int kThreads>
using StepGemvColumns = float4[kStepGemvQuads<kThreads>];
inline constexpr int kStepGemvRound = 4096;

template <int kThreads>
__device__ __forceinline__ int step_gemv_column(int first, int i) {
  return first + 4 * (i * kThreads + static_cast<int>(threadIdx.x));
}
template <int kThreads>
__device__ __forceinline__ void load_step_gemv(const float* row, int k, int first, StepGemvColumns<kThreads>& v) {
#pragma unroll
  for (int i = 0; i < kStepGemvQuads<kThreads>; ++i) {
    const int column = step_gemv_column<kThreads>(first, i);
    v[i] = column < k ? *reinterpret_cast<const float4*>(row + column) : float4{0, 0, 0, 0};
  }
}

/// Codes and scales of a thread's first columns of a round. Eight lanes share an activation group; each of them works
/// out the scale of one, since divisions are the longest part. All threads.
template <int kThreads, int kQuads, bool kExact>
__device__ __forceinline__ void quantize_quads(const ProductArgs& p, uint8_t* shared, int first,
                                               const StepGemvColumns<kThreads>& v) {
  const int lane = static_cast<int>(threadIdx.x % 8), end = p.k_blocks * 128;
  uint32_t most[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) most[i] = largest_bits(v[i]);
#pragma unroll
  for (int d = 1; d < 8; d *= 2)
#pragma unroll
    for (int i = 0; i < kQuads; ++i) most[i] = max(most[i], __shfl_xor_sync(0xffffffffu, most[i], d));
#pragma unroll
  for (int i = 0; i < kQuads; ++i) most[i] = largest_of_exact(most[i], kExact);
  uint32_t own = most[0];
#pragma unroll
  for (int i = 1; i < kQuads; ++i) own = lane == i ? most[i] : own;
  const Quantizer q = step_quantizer<kExact>(own);
  const int x_group = step_gemv_column<kThreads>(first, lane) / 32;
  if (lane < kQuads && 32 * x_group < end) reinterpret_cast<float*>(shared + p.x_scales_at)[x_group] = q.scale;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int column = step_gemv_column<kThreads>(first, i);
    const float inverse = kQuads == 1 ? q.inverse : __shfl_sync(0xffffffffu, q.inverse, i, 8);
    if (column < end)
      *reinterpret_cast<uint32_t*>(shared + p.codes_at + code_offset(column)) = four_codes(v[i], inverse);
  }
}
template <int kThreads, bool kExact>
__device__ __forceinline__ void quantize_round(const ProductArgs& p, uint8_t* shared, int first,
                                               const StepGemvColumns<kThreads>& v) {
  if (p.k_blocks * 128 - first <= 4 * kThreads) {
    quantize_quads<kThreads, 1, kExact>(p, shared, first, v);
  } else {
    quantize_quads<kThreads, kStepGemvQuads<kThreads>, kExact>(p, shared, first, v);
  }
}

/// Rows of at most 1,024 columns, of which a warp quantizes 128: with a norm each such warp adds up all squares itself,
/// from loads that come with those of its own columns, and no thread waits for another one.
inline constexpr int kShortRow = 8 * kNormSums;
static_assert(4 * kProductThreads >= kShortRow);

/// Where a thread's loads of a short row begin. Made before the wait for the row: behind it instructions cost time.
struct ShortRow {
  const float *own, *of_lane;
  int own_left, lane_left;    // columns from there on
  int is_short, has_columns;  // of the row; of the warp
  __device__ __forceinline__ explicit ShortRow(const ProductArgs& p) {
    const int column = 4 * static_cast<int>(threadIdx.x), of = column % kNormSums;
    own = p.rows + column, of_lane = p.rows + of;
    own_left = p.k - column, lane_left = p.k - of, has_columns = column - of < p.k;
    is_short = p.rows != nullptr && p.k <= kShortRow;
  }
  __device__ __forceinline__ void wait() const {
    wait_for_predecessor_with(own, of_lane, static_cast<uint32_t>(2 * is_short), own_left, lane_left);
  }
};

/// All threads. `by`: the norm's columns of the thread.
template <int kThreads, bool kExact, class Behind>
__device__ __forceinline__ void quantize_short_row(const ProductArgs& p, uint8_t* shared, const ShortRow& row,
                                                   const StepGemvColumns<kThreads>& by, const Behind& behind_loads) {
  StepGemvColumns<kThreads> v = {};
  if (row.own_left > 0) v[0] = *reinterpret_cast<const float4*>(row.own);
  if (p.norm != nullptr) {
    float4 all[kShortRow / kNormSums];
#pragma unroll
    for (int i = 0; i < kShortRow / kNormSums; ++i) {
      all[i] = {0, 0, 0, 0};
      if (row.lane_left > i * kNormSums) all[i] = *reinterpret_cast<const float4*>(row.of_lane + i * kNormSums);
    }
    behind_loads();
    if (!row.has_columns) return;
    NormSums sums;
#pragma unroll
    for (int i = 0; i < kShortRow / kNormSums; ++i) sums.add(all[i]);
    const float factor = sums.inverse_rms(p.k, p.eps);
    if (row.own_left > 0) v[0] = normed(v[0], factor, by[0]);  // zeros behind, whatever factor
  } else {
    behind_loads();
    if (!row.has_columns) return;
  }
  quantize_quads<kThreads, 1, kExact>(p, shared, 0, v);
}

/// The row into shared memory, `v` first; returns 1 / rms. All threads.
template <int kThreads>
__device__ __forceinline__ float stage_row(const ProductArgs& p, uint8_t* shared, const StepGemvColumns<kThreads>& v) {
  auto* const row = reinterpret_cast<float*>(shared + p.rows_at);
#pragma unroll
  for (int i = 0; i < kStepGemvQuads<kThreads>; ++i)
    if (const int column = step_gemv_column<kThreads>(0, i); column < p.k)
      *reinterpret_cast<float4*>(row + column) = v[i];
#pragma unroll 1
  for (int column = kStepGemvRound + 4 * static_cast<int>(threadIdx.x); column < p.k; column += 4 * kThreads)
    *reinterpret_cast<float4*>(row + column) = *reinterpret_cast<const float4*>(p.rows + column);
  return block_inverse_rms<true>(row, p.k, p.eps, kThreads, reinterpret_cast<float*>(shared + p.quarters_at));
}

/// `by`: the norm's first columns, which came before the previous kernel had ended. Without a norm the next round's
/// columns are under way while one becomes codes. `behind_loads`: once the first loads have been started.
template <int kThreads, bool kExact, class Behind>
__device__ __forceinline__ void quantize_row(const ProductArgs& p, uint8_t* shared, const StepGemvColumns<kThreads>& by,
                                             const Behind& behind_loads) {
  constexpr int kQuads = kStepGemvQuads<kThreads>;
  const bool has_norm = p.norm != nullptr;
  StepGemvColumns<kThreads> v, other;  // the norm's, or the next round
  load_step_gemv<kThreads>(p.rows, p.k, 0, v);
  behind_loads();
#pragma unroll
  for (int i = 0; i < kQuads; ++i) other[i] = by[i];
  const float factor = has_norm ? stage_row<kThreads>(p, shared, v) : 1.0f;
#pragma unroll 1
  for (int first = 0; first < p.k; first += kStepGemvRound) {
    if (has_norm) {
      if (first != 0) {
        load_step_gemv<kThreads>(p.rows, p.k, first, v);
        load_step_gemv<kThreads>(p.norm, p.k, first, other);
      }
#pragma unroll
      for (int i = 0; i < kQuads; ++i)
        if (step_gemv_column<kThreads>(first, i) < p.k)
          v[i] = normed(v[i], factor, other[i]);  // zeros behind, whatever factor
    } else if (first + kStepGemvRound < p.k) {
      load_step_gemv<kThreads>(p.rows, p.k, first + kStepGemvRound, other);
    }
    quantize_round<kThreads, kExact>(p, shared, first, v);
    if (!has_norm) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) v[i] = other[i];
    }
  }
}

/// Scales of a share behind the row, of codes that nobody uses the sums of.
__device__ __forceinline__ void clear_behind_scales(const ProductArgs& p, uint8_t* shared) {
  if (threadIdx.x < kStepGemvXGroups)
    reinterpret_cast<float*>(shared + p.x_scales_at)[p.k_blocks * 4 + static_cast<int>(threadIdx.x)] = 0.0f;
}

/// The row's codes and scales, of which four pieces and two scales of a thread are under way at once. All threads.
template <int kThreads>
__device__ __forceinline__ void copy_step_codes(const ProductArgs& p, uint8_t* shared, float* scales) {
  constexpr int kPieces = 4, kScales = 2;
  const int pieces = (p.k + 63) / 64 * 4, thread = static_cast<int>(threadIdx.x);  // 16 bytes each
  const auto scale_at = [&](int i) { return i < p.x_group_count ? p.x_scales[i] : 0.0f; };
  float scale[kScales];
#pragma unroll
  for (int i = 0; i < kScales; ++i) scale[i] = scale_at(thread + i * kThreads);
#pragma unroll 1
  for (int first = thread; first < pieces; first += kPieces * kThreads) {
    uint4 v[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (const int at = first + i * kThreads; at < pieces) v[i] = reinterpret_cast<const uint4*>(p.codes)[at];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = first + i * kThreads;
      auto* const to = reinterpret_cast<uint32_t*>(shared + p.codes_at + code_offset(16 * at));
      if (at < pieces) to[0] = v[i].x, to[2] = v[i].y, to[4] = v[i].z, to[6] = v[i].w;
    }
  }
#pragma unroll
  for (int i = 0; i < kScales; ++i)
    if (const int at = thread + i * kThreads; at < p.k_blocks * 4) scales[at] = scale[i];
#pragma unroll 1
  for (int at = thread + kScales * kThreads; at < p.k_blocks * 4; at += kThreads) scales[at] = scale_at(at);
}

/// All threads; they meet afterwards.
template <int kThreads, bool kExact, class Behind>
__device__ __forceinline__ void stage_step_gemv(const ProductArgs& p, uint8_t* shared, const ShortRow& row,
                                                const StepGemvColumns<kThreads>& by, const Behind& behind_loads) {
  if (row.is_short) return quantize_short_row<kThreads, kExact>(p, shared, row, by, behind_loads);
  if (p.rows != nullptr) {
    quantize_row<kThreads, kExact>(p, shared, by, behind_loads);
  } else {
    copy_step_codes<kThreads>(p, shared, reinterpret_cast<float*>(shared + p.x_scales_at));
    behind_loads();
  }
}

}  // namespace lowbit::cuda
