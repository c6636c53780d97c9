#pragma once
// f32 activations x any format, int8 activations x formats with float values, and fp8 activations x fp8. k is strictly
// ascending in every lane (a lane is a weight row), so the result equals kernels/ref/matmul.cc bit for bit. One row of
// x (f32, fp8): weights become floats in registers, several panels side by side, since each lane is one chain of fma.
// More rows: weights are turned into f32 in chunks of columns that stay in the first-level cache.

#include "kernels/cpu/float_sources.h"
#include "kernels/kernel_name.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Chunks of columns that are f32 already times rows of x, whatever format they came from.
template <class S, class Source, Activation A>
struct FloatTiles {
  using Float = typename S::Float;
  static constexpr bool kScaled = Source::kScaled;
  static constexpr int kColumns = Source::kColumnsInLane;  // 2: of weights and of x, bf16 in one place of 32 bits
  static constexpr int kRows = 2 * S::kLanes;

  /// Sums of one row of x: of the group of x and of the group so far, and of the groups behind it.
  struct State {
    float sum[kRows], part[kRows], acc[kRows];
  };

  /// acc after group g of row m: its sum times the scale, then the offset's share.
  LOWBIT_INLINE Float accumulate(const MatmulArgs& a, const Factors<S>& factors, int64_t m, int64_t g, int v, Float sum,
                                 Float acc) {
    acc = S::fma(sum, kScaled ? factors.scale(g, v) : S::set_f(1.0f), acc);
    if (!kScaled || !a.shape.offsets) return acc;
    return S::fma(S::set_f(a.x_sums[m * a.shape.groups + g]), factors.offset(g, v), acc);
  }

  LOWBIT_INLINE Float add_product(Float w, Float x, Float sum) {
    if constexpr (kColumns == 2) return S::add_pairs(w, x, sum);
    return S::fma(w, x, sum);
  }

  /// Columns [0, k) of values and of x, added to the sums of M rows of x.
  template <int M>
  LOWBIT_INLINE void add_columns(const float* values, const float* x, int64_t ldx, int64_t k, Float (&sum)[2][M]) {
    for (int64_t i = 0; i < k; ++i) {
      Float w[2];
      for (int v = 0; v < 2; ++v) w[v] = S::load_f(values + i * kRows + v * S::kLanes);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const Float xs = S::set_f(x[m * ldx + i]);
        for (int v = 0; v < 2; ++v) sum[v][m] = add_product(w[v], xs, sum[v][m]);
      }
    }
  }

  /// chunk_tile() for f32 rows, whose groups are the weight's: sums stay in registers from a group's first column of
  /// the chunk to its last.
  template <int M>
  static void f32_chunk_tile(const MatmulArgs& a, const float* values, const Factors<S>& factors, int64_t k0,
                             int64_t k1, const float* x, int64_t ldx, int64_t m0, State* states) {
    const PanelShape& s = a.shape;
    int64_t g = k0 / s.group, k = k0;
    for (int64_t begin = g * s.group; k < k1; ++g, begin += s.group) {
      const int64_t group_end = smaller(begin + s.group, s.k), end = smaller(group_end, k1);
      Float sum[2][M];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m)
        for (int v = 0; v < 2; ++v) sum[v][m] = k == begin ? S::zero_f() : S::load_f(states[m].sum + v * S::kLanes);
      add_columns<M>(values + (k - k0) * kRows, x + (k - k0), ldx, end - k, sum);
      k = end;
      const bool whole = k == group_end, offsets = kScaled && s.offsets;
      Float scale[2] = {}, offset[2] = {};
      for (int v = 0; v < 2 && whole; ++v) {
        scale[v] = kScaled ? factors.scale(g, v) : S::set_f(1.0f);
        offset[v] = offsets ? factors.offset(g, v) : S::zero_f();
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m)
        for (int v = 0; v < 2; ++v) {
          if (!whole) {
            S::store_f(states[m].sum + v * S::kLanes, sum[v][m]);
            continue;
          }
          float* const acc = states[m].acc + v * S::kLanes;
          Float total = S::fma(sum[v][m], scale[v], S::load_f(acc));
          if (offsets) total = S::fma(S::set_f(a.x_sums[(m0 + m) * s.groups + g]), offset[v], total);
          S::store_f(acc, total);
        }
    }
  }

  /// Columns [k0, k1) of one chunk: values [(k - k0) / kColumns][row], x [M, ldx] from column k0 on.
  template <int M>
  static void chunk_tile(const MatmulArgs& a, const float* values, const Factors<S>& factors, int64_t k0, int64_t k1,
                         const float* x, int64_t ldx, int64_t m0, State* states) {
    if constexpr (A == Activation::kF32) return f32_chunk_tile<M>(a, values, factors, k0, k1, x, ldx, m0, states);
    const PanelShape& s = a.shape;
    const int64_t x_group = s.x_group;
    Float sum[2][M];
    for (int v = 0; v < 2; ++v)
      for (int m = 0; m < M; ++m) sum[v][m] = S::load_f(states[m].sum + v * S::kLanes);
    for (int64_t k = k0; k < k1;) {
      const int64_t g = k / s.group, group_end = smaller((g + 1) * s.group, s.k), j = k / x_group,
                    x_group_end = smaller((j + 1) * x_group, group_end), end = smaller(x_group_end, k1);
      const int64_t first = (k - k0) / kColumns;
      add_columns<M>(values + first * kRows, x + first, ldx, (end - k0 + kColumns - 1) / kColumns - first, sum);
      k = end;
      if (k < x_group_end) break;
      for (int v = 0; v < 2; ++v)
        for (int m = 0; m < M; ++m) {
          Float total = sum[v][m];
          sum[v][m] = S::zero_f();
          float* part = states[m].part + v * S::kLanes;
          if (a.x_group_scale != nullptr) {
            total = S::fma(total, S::set_f(a.x_group_scale[(m0 + m) * s.x_groups + j]), S::load_f(part));
            S::store_f(part, k < group_end ? total : S::zero_f());
            if (k < group_end) continue;
          }
          float* acc = states[m].acc + v * S::kLanes;
          S::store_f(acc, accumulate(a, factors, m0 + m, g, v, total, S::load_f(acc)));
        }
    }
    for (int v = 0; v < 2; ++v)
      for (int m = 0; m < M; ++m) S::store_f(states[m].sum + v * S::kLanes, sum[v][m]);
  }

  /// `rows` rows of x against one chunk of one panel.
  template <int M>
  static void chunk_tiles(const MatmulArgs& a, const float* values, const Factors<S>& factors, int64_t k0, int64_t k1,
                          const float* x, int64_t ldx, int64_t m0, int64_t rows, State* states) {
    int64_t i = 0;
    for (; i + M <= rows; i += M) chunk_tile<M>(a, values, factors, k0, k1, x + i * ldx, ldx, m0 + i, states + i);
    if constexpr (M > 1) {
      if (i < rows) chunk_tiles<M - 1>(a, values, factors, k0, k1, x + i * ldx, ldx, m0 + i, rows - i, states + i);
    }
  }
};

template <class S, class Source, Activation A>
struct FloatMatmul {
  using Float = typename S::Float;
  static constexpr int kRows = 2 * S::kLanes;
  static constexpr int64_t kBlockM = 96;  // rows of x per pass over a panel: bounds the scratch
  static constexpr int kAbreast = 4;      // panels side by side when x has one row, to hide the latency of fma

  static constexpr int64_t kChunkK = Source::kChunkK;

  using Tiles = FloatTiles<S, Source, A>;
  using State = typename Tiles::State;
  struct Scratch {
    float* values;  // [kChunkK][kRows]
    float* x;       // int8 activations as f32: [kBlockM, kChunkK]
    State* states;  // [min(m, kBlockM)]
  };

  static int64_t scratch_bytes(int64_t m, const PanelShape&) {
    if (m == 0) return relayout_scratch_bytes(kRows);
    const int64_t rows = smaller(m, kBlockM);
    return 4 * kChunkK * kRows + 4 * rows * kChunkK + rows * int64_t(sizeof(State));
  }
  static Scratch split(uint8_t* scratch, int64_t m) {
    float* values = reinterpret_cast<float*>(scratch);
    float* x = values + kChunkK * kRows;
    return {values, x, reinterpret_cast<State*>(x + smaller(m, kBlockM) * kChunkK)};
  }

  /// Columns [k0, k1) of rows [m0, m0 + rows) of x as f32: what they are, or the values of codes.
  static const float* activations(const MatmulArgs& a, int64_t k0, int64_t k1, int64_t m0, int64_t rows, float* out,
                                  int64_t* ldx) {
    if constexpr (A != Activation::kInt8) {
      *ldx = a.ldx;
      return a.x + m0 * a.ldx + k0 / Source::kColumnsInLane;
    }
    for (int64_t m = 0; m < rows; ++m)  // rows are zero-padded to a multiple of 64: whole vectors may be read
      for (int64_t k = k0; k < k1; k += S::kLanes)
        S::store_f(out + m * kChunkK + (k - k0), S::load_i8(a.xq + (m0 + m) * a.ldxq + k));
    *ldx = kChunkK;
    return out;
  }

  static void one_panel(const MatmulArgs& a, const uint8_t* panel, int64_t n, const Scratch& t) {
    const Factors<S> factors = Source::factors(panel, a.shape);
    for (int64_t m0 = 0; m0 < a.m; m0 += kBlockM) {
      const int64_t rows = smaller(kBlockM, a.m - m0);
      __builtin_memset(static_cast<void*>(t.states), 0, size_t(rows) * sizeof(State));
      for (int64_t k0 = 0; k0 < a.shape.k; k0 += kChunkK) {
        const int64_t k1 = smaller(k0 + kChunkK, a.shape.k);
        int64_t ldx = 0;
        const float* values = Source::values(a, panel, k0, t.values);
        const float* x = activations(a, k0, k1, m0, rows, t.x, &ldx);
        Tiles::template chunk_tiles<Source::kTileRows>(a, values, factors, k0, k1, x, ldx, m0, rows, t.states);
      }
      for (int64_t m = 0; m < rows; ++m)
        for (int v = 0; v < 2; ++v)
          write_rows<S, A>(a, m0 + m, n + v * S::kLanes, S::load_f(t.states[m].acc + v * S::kLanes));
    }
  }

  /// Columns [k, end) of one row of x, from the start of pack `pack` on; fewer than a pack when kTail.
  template <int Panels, bool kTail>
  LOWBIT_INLINE void add_pack(const uint8_t* panel, int64_t panel_bytes, const typename Source::Table& table,
                              int64_t pack, const float* x, int64_t k, Float (&sum)[Panels][2]) {
    if constexpr (Source::kByStep) {
      for (int p = 0; p < Panels; ++p)
        for (int v = 0; v < 2; ++v) {
          constexpr int kColumns = Source::kColumnsInLane, kLanesOfPack = Source::kPackK / kColumns;
          Float w[kLanesOfPack];
          Source::step(Source::load_pack(panel + p * panel_bytes, pack, v), table, w);
          for (int i = 0; i < kLanesOfPack; ++i)
            if (!kTail || pack * Source::kPackK + i * kColumns < k)
              sum[p][v] = Tiles::add_product(w[i], S::set_f(x[pack * kLanesOfPack + i]), sum[p][v]);
        }
    } else {
      typename Source::Pack u[Panels][2];
      for (int p = 0; p < Panels; ++p)
        for (int v = 0; v < 2; ++v) u[p][v] = Source::load_pack(panel + p * panel_bytes, pack, v);
#pragma GCC unroll 32
      for (int c = 0; c < Source::kPackK; ++c) {
        if (kTail && pack * Source::kPackK + c >= k) break;
        const Float xs = S::set_f(x[pack * Source::kPackK + c]);
        for (int p = 0; p < Panels; ++p)
          for (int v = 0; v < 2; ++v) sum[p][v] = S::fma(Source::column(u[p][v], c, table), xs, sum[p][v]);
      }
    }
  }

  /// One row of x times `Panels` panels from row n on; groups are whole packs.
  template <int Panels>
  static void direct_panels(const MatmulArgs& a, const uint8_t* panel, int64_t n) {
    const PanelShape& s = a.shape;
    const int64_t panel_bytes = Source::bytes(s), whole_packs = s.k / Source::kPackK,
                  packs = (s.k + Source::kPackK - 1) / Source::kPackK;
    const int64_t group_packs = s.groups == 1 ? packs : s.group / Source::kPackK;
    const int64_t sum_packs = A == Activation::kFp8 && s.x_groups > s.groups ? s.x_group / Source::kPackK : group_packs;
    const int64_t gap = Source::gap(s);
    const typename Source::Table table = Source::pack_table(a);
    Float acc[Panels][2];
    for (int p = 0; p < Panels; ++p) acc[p][0] = acc[p][1] = S::zero_f();
    for (int64_t g = 0; g < s.groups; ++g) {
      const uint8_t* const codes = panel + (g + 1) * gap;
      Float part[Panels][2];  // fp8: of the groups of x
      for (int p = 0; p < Panels; ++p) part[p][0] = part[p][1] = S::zero_f();
      int64_t pack = g * group_packs;
      const int64_t group_end = smaller(pack + group_packs, packs);
      while (pack < group_end) {
        Float sum[Panels][2];
        for (int p = 0; p < Panels; ++p) sum[p][0] = sum[p][1] = S::zero_f();
        const int64_t x_group = A == Activation::kFp8 ? pack * Source::kPackK / s.x_group : 0;
        const int64_t end = smaller(pack + sum_packs, group_end);
        for (; pack < smaller(end, whole_packs); ++pack)
          add_pack<Panels, false>(codes, panel_bytes, table, pack, a.x, s.k, sum);
        if (pack < end) add_pack<Panels, true>(codes, panel_bytes, table, pack++, a.x, s.k, sum);
        for (int p = 0; p < Panels; ++p)
          for (int v = 0; v < 2; ++v)
            part[p][v] =
                A == Activation::kFp8 ? S::fma(sum[p][v], S::set_f(a.x_group_scale[x_group]), part[p][v]) : sum[p][v];
      }
      for (int p = 0; p < Panels; ++p) {
        const Factors<S> factors = Source::factors(panel + p * panel_bytes, s);
        for (int v = 0; v < 2; ++v) acc[p][v] = Tiles::accumulate(a, factors, 0, g, v, part[p][v], acc[p][v]);
      }
    }
    for (int p = 0; p < Panels; ++p)
      for (int v = 0; v < 2; ++v) write_rows<S, A>(a, 0, n + p * kRows + v * S::kLanes, acc[p][v]);
  }

  /// Panels from row n on, `Panels` at a time.
  template <int Panels>
  static void direct(const MatmulArgs& a, int64_t n) {
    const int64_t bytes = Source::bytes(a.shape);
    for (; n + (Panels - 1) * kRows < a.n1; n += Panels * kRows) direct_panels<Panels>(a, a.w + n / kRows * bytes, n);
    if constexpr (Panels > 1) {
      if (n < a.n1) direct<Panels / 2>(a, n);
    }
  }

  static void run(const MatmulArgs& a) {
    if (a.m == 0) return;
    if constexpr (A != Activation::kInt8 && Source::kDirect) {
      const PanelShape& s = a.shape;
      const bool whole = (s.groups <= 1 || s.group % Source::kPackK == 0) &&
                         (A == Activation::kF32 || s.x_groups <= 1 || s.x_group % Source::kPackK == 0);
      if (a.m == 1 && whole) return direct<kAbreast>(a, a.n0);
    }
    const int64_t bytes = Source::bytes(a.shape);
    const Scratch t = split(a.scratch, a.m);
    for (int64_t n = a.n0; n < a.n1; n += kRows) one_panel(a, a.w + n / kRows * bytes, n, t);
  }

  static constexpr bool kPairs = Source::kColumnsInLane == 2;
  static constexpr KernelName kName = matmul_name(Source::kName, A == Activation::kInt8 ? "a8f" : activation_tag(A),
                                                  kPairs ? S::kPairsTileName : S::kFloatTileName);
  static constexpr MatmulKernel kernel() {
    return {kName.text,
            "docs/kernels.md#f32-panels",
            Source::kId,
            A,
            0,
            kRows,
            Source::kColumnsInLane,
            &Source::bytes,
            &Source::relayout,
            &scratch_bytes,
            &run,
            false,
            kPairs};
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
