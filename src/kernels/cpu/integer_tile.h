#pragma once
// A panel times M tokens: exact sums of each group of x, times the scales of x, times the weights' scales, in the
// order of kernels/ref/matmul.cc, so that all agree bit for bit.

#include "kernels/cpu/integer_sums.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Codes: a source of kernels/cpu/integer_codes.h.
template <class S, class Codes>
struct IntegerTile {
  using Int = typename S::Int;
  using Float = typename S::Float;
  using Lookup = typename Codes::Lookup;
  using Sums = IntegerSums<S, Codes>;
  static constexpr bool kBlocks = Codes::kWholeBlocks, kBase3 = Codes::kBase3;
  static constexpr int64_t kPackK = 4 * Codes::kSteps;

  /// Bytes from the codes of a group to the next group's, besides the codes.
  static int64_t gap_of(const PanelShape& s) {
    if constexpr (Codes::kStreams)
      return Codes::P::gap(s);
    else
      return 0;
  }

  /// Most layers: whole groups of kColumns columns of x, scales in f16, no offsets. The order of tile(), without its
  /// branches and, without scales of x, without sums of a group of weights, which is one of x. A function of its own,
  /// so that sums have all registers.
  template <int M, int kColumns, bool kScales>
  __attribute__((noinline)) static void tile_of_groups(const MatmulArgs& a, const uint8_t* codes,
                                                       const Factors<S>& factors, int64_t n, int64_t m0) {
    constexpr int64_t kPacks = kColumns / kPackK;
    const PanelShape& s = a.shape;
    const int64_t gap = gap_of(s);
    const int64_t x_groups = s.x_groups, per_group = s.groups == 1 ? x_groups : s.group / kColumns;
    const int8_t* x = a.xq + m0 * a.ldxq;
    const int32_t* code_sums = a.code_sums + (Codes::kAdds ? m0 * x_groups : 0);
    const float* x_scales = kScales ? a.x_group_scale + m0 * x_groups : nullptr;
    const uint8_t* scales = factors.scales;
    const Lookup lookup = Codes::lookup_of(a);
    Float acc[2][M], t[2][M];
    for (int m = 0; m < M; ++m) acc[0][m] = acc[1][m] = t[0][m] = t[1][m] = S::zero_f();
    for (int64_t j = 0; j < x_groups; scales += factors.stride) {
      Int sum[2][M];
      History history = Codes::no_history();
      if (Codes::kHistory && j > 0) history.before = codes - Codes::kBytes;
      codes += gap;
      for (const int64_t first = j, end = kScales ? smaller(j + per_group, x_groups) : j + 1; j < end; ++j) {
        if constexpr (M == 1 && kBlocks) {
          Int one[2];
          RowSums<S, Codes>::template of_columns<kColumns>(codes, history, lookup, x, code_sums, one);
          for (int v = 0; v < 2; ++v) sum[v][0] = one[v];
        } else {
          Sums::template exact<M>(codes, history, lookup, x, a.ldxq, 0, kPacks, code_sums, x_groups, sum);
        }
        codes += kPacks * Codes::kBytes;
        if (Codes::kHistory) history.before = codes - Codes::kBytes;
        x += kColumns;
        if constexpr (Codes::kAdds) ++code_sums;
        if constexpr (!kScales) continue;
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const Float xs = S::set_f(x_scales[m * x_groups + j]);
          for (int v = 0; v < 2; ++v) t[v][m] = S::fma(S::to_float(sum[v][m]), xs, j == first ? S::zero_f() : t[v][m]);
        }
      }
      if constexpr (Codes::kStreams) S::prefetch_ahead(scales + S::kAhead);
      for (int v = 0; v < 2; ++v) {
        const Float scale = S::load_f16(reinterpret_cast<const uint16_t*>(scales) + v * S::kLanes);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) acc[v][m] = S::fma(kScales ? t[v][m] : S::to_float(sum[v][m]), scale, acc[v][m]);
      }
    }
    for (int v = 0; v < 2; ++v)
      for (int m = 0; m < M; ++m) write_rows<S, Activation::kInt8>(a, m0 + m, n + v * S::kLanes, acc[v][m]);
  }

  /// Where that loop is worth its code: for one token, and for tiles of as many rows as most are.
  template <int M>
  static constexpr bool kOneSize = (kBlocks || !Codes::kStreams) &&
                                   (M == S::kScaledTileRows || (kBlocks && (M == 1 || M == S::kTileRows)));

  /// True when tile_of_groups() has done it.
  template <int M>
  static bool groups_of_one_size(const MatmulArgs& a, const uint8_t* codes, const Factors<S>& factors, int64_t n,
                                 int64_t m0) {
    const PanelShape& s = a.shape;
    const bool scales = a.x_group_scale != nullptr;
    if (s.offsets || !s.half_scales || s.x_groups == 1 || s.k % s.x_group != 0) return false;
    if (s.x_group == 64 && !scales) return tile_of_groups<M, 64, false>(a, codes, factors, n, m0), true;
    if (s.x_group == 32 && scales) return tile_of_groups<M, 32, true>(a, codes, factors, n, m0), true;
    return false;
  }

  /// Rows [m0, m0 + M) of x times a panel; groups of x are whole packs.
  template <int M>
  static void tile(const MatmulArgs& a, const uint8_t* codes, const Factors<S>& factors, int64_t n, int64_t m0) {
    if constexpr (kOneSize<M>) {
      if (groups_of_one_size<M>(a, codes, factors, n, m0)) return;
    }
    const PanelShape& s = a.shape;
    const int64_t ldx = a.ldxq, x_groups = s.x_groups, packs = (s.k + kPackK - 1) / kPackK;
    const int64_t packs_of_group = x_groups == 1 ? packs : s.x_group / kPackK;
    const int64_t per_group = s.groups == 1 ? x_groups : s.group / s.x_group;
    const int64_t gap = gap_of(s);
    const int8_t* x = a.xq + m0 * ldx;
    const int32_t* code_sums = a.code_sums + (Codes::kAdds ? m0 * x_groups : 0);
    const float* x_scales = a.x_group_scale != nullptr ? a.x_group_scale + m0 * x_groups : nullptr;
    const Lookup lookup = Codes::lookup_of(a);
    Float acc[2][M];
    for (int m = 0; m < M; ++m) acc[0][m] = acc[1][m] = S::zero_f();
    int64_t j = 0;
    for (int64_t g = 0; g < s.groups; ++g) {
      History history = Codes::no_history();
      if constexpr (Codes::kHistory) {
        if (gap > 0 && g > 0) {
          history.pack = g * Codes::P::group_blocks(s);
          history.before = codes + (history.pack - 1) * Codes::P::kBlockBytes;
        }
      }
      codes += gap;
      Float t[2][M];
      for (int m = 0; m < M; ++m) t[0][m] = t[1][m] = S::zero_f();
      for (const int64_t last = smaller(j + per_group, x_groups); j < last; ++j) {
        Int sum[2][M];
        const int64_t first = j * packs_of_group, end = smaller(first + packs_of_group, packs);
        sums<M>(codes, history, lookup, x, ldx, first, end, code_sums + j, x_groups, sum);
        if (x_scales != nullptr) {
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            const Float xs = S::set_f(x_scales[m * x_groups + j]);
            for (int v = 0; v < 2; ++v) t[v][m] = S::fma(S::to_float(sum[v][m]), xs, t[v][m]);
          }
        } else {
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m)
            for (int v = 0; v < 2; ++v) t[v][m] = S::to_float(sum[v][m]);
        }
      }
      prefetch_factors(s, factors, g);
      for (int v = 0; v < 2; ++v) {
        const Float scale = factors.scale(g, v);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) acc[v][m] = S::fma(t[v][m], scale, acc[v][m]);
        if (!s.offsets) continue;
        const Float offset = factors.offset(g, v);
        for (int m = 0; m < M; ++m) acc[v][m] = S::fma(S::set_f(a.x_sums[(m0 + m) * s.groups + g]), offset, acc[v][m]);
      }
    }
    for (int v = 0; v < 2; ++v)
      for (int m = 0; m < M; ++m) write_rows<S, Activation::kInt8>(a, m0 + m, n + v * S::kLanes, acc[v][m]);
  }

  /// The exact sums of packs [first, end), by what suits the source and M.
  template <int M>
  LOWBIT_INLINE void sums(const uint8_t* codes, const History& history, const Lookup& lookup, const int8_t* x,
                          int64_t ldx, int64_t first, int64_t end, const int32_t* code_sums, int64_t stride,
                          Int (&sum)[2][M]) {
    if constexpr (kBase3) {
      Base3Sums<S, Codes>::template exact<M>(codes, x, ldx, first, end, code_sums, stride, sum);
      return;
    } else if constexpr (kBlocks && M == 1) {
      if constexpr (RowSums<S, Codes>::kLong) {
        RowSums<S, Codes>::long_row(codes, lookup, x, ldx, first, end, code_sums, stride, sum);
        return;
      }
    }
    if constexpr (!kBase3) Sums::template exact<M>(codes, history, lookup, x, ldx, first, end, code_sums, stride, sum);
  }

  /// Codes prefetch as many lines as they are. Factors behind all codes, as with blocks of 20 columns, are a stream of
  /// their own.
  LOWBIT_INLINE void prefetch_factors(const PanelShape& s, const Factors<S>& factors, int64_t g) {
    if constexpr (Codes::kStreams) {
      factors.prefetch(g, S::kAhead);
      if constexpr (Codes::kSteps == 1 && Codes::P::kBlockK > 4) factors.prefetch(g, Codes::P::bytes(s));
    }
  }

  /// All tokens from m0 on, in tiles of at most M rows.
  template <int M>
  static void tiles(const MatmulArgs& a, const uint8_t* codes, const Factors<S>& factors, int64_t n, int64_t m0) {
    for (; m0 + M <= a.m; m0 += M) tile<M>(a, codes, factors, n, m0);
    if constexpr (M > 1) {
      if (m0 < a.m) tiles<M - 1>(a, codes, factors, n, m0);
    }
  }

  /// All tokens. Scales take registers that sums would have.
  static void all_rows(const MatmulArgs& a, const uint8_t* codes, const Factors<S>& factors, int64_t n) {
    if (a.shape.x_groups == 1 || a.m <= S::kTileRows) {
      tiles<S::kTileRows>(a, codes, factors, n, 0);
    } else {
      tiles<S::kScaledTileRows>(a, codes, factors, n, 0);
    }
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
