#pragma once
// f32 activations x any format, and int8 activations x formats with float values: weights are turned into f32 in chunks of
// columns that stay in the first-level cache, then multiplied with k strictly ascending in every lane (a lane is a weight
// row), so the result equals kernels/ref/matmul.cc bit for bit.

#include "kernels/cpu/panel.h"
#include "kernels/kernel_name.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Columns expanded at a time: whole blocks of every format (20 and 32 columns).
inline constexpr int64_t kChunkK = 160;

/// Packed formats: values[k - k0][row] of columns [k0, k0 + kChunkK) (fewer at the row's end).
template <class S, class F>
struct PackedSource {
  using P = Panel<S, F>;
  static_assert(kChunkK % P::kBlockK == 0);
  static constexpr FormatId kId = F::kId;
  static constexpr const char* kName = F::kName;
  static constexpr bool kScaled = true, kExpands = true;
  static constexpr CodecKind kKind = F::Codec::kKind;

  LOWBIT_INLINE typename S::Float value(typename S::Int code, const typename S::Table& table) {
    if constexpr (kKind == CodecKind::kFloat) {
      return S::e4m3(code);
    } else if constexpr (kKind == CodecKind::kTable) {
      return S::look_up(table, code);
    } else {  // small integers: every step is exact
      typename S::Float v = S::to_float(code);
      if constexpr (F::Codec::kMul != 1) v = S::mul_f(v, S::set_f(F::Codec::kMul));
      return S::add_f(v, S::set_f(F::Codec::kAdd));
    }
  }

  static const float* values(const MatmulArgs& a, const uint8_t* panel, int64_t k0, float* out) {
    using Packed = typename P::Packed;
    typename S::Table table = {};
    if constexpr (kKind == CodecKind::kTable) table = S::load_table(a.table);
    const int64_t first = k0 / P::kBlockK, last = smaller(first + kChunkK / P::kBlockK, P::blocks(a.shape));
    float* to = out;
    for (int64_t b = first; b < last; ++b) {
      const uint8_t* block = panel + b * P::kBlockBytes;
      for (int v = 0; v < 2; ++v) {
        typename S::Int words[Packed::kWords];
        for (int w = 0; w < Packed::kWords; ++w) words[w] = S::load(block + 4 * (w * P::kRows + v * S::kLanes));
        S::prefetch(block + 2048);
#pragma GCC unroll 8
        for (int step = 0; step < Packed::kSteps; ++step) {
          const typename S::Int codes = Packed::template step<S>(words, step);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            const typename S::Int code = S::and_(S::shift_right32(codes, 8 * j), S::set32(0xff));
            S::store_f(to + (4 * step + j) * P::kRows + v * S::kLanes, value(code, table));
          }
        }
      }
      to += P::kBlockK * P::kRows;
    }
    return out;
  }

  static int64_t bytes(const PanelShape& s) { return P::bytes(s); }
  static Factors<S> factors(const uint8_t* panel, const PanelShape& s) { return factors_of<S, F>(panel, s); }
  static void relayout(const CanonicalRows& rows, const PanelShape& s, uint8_t* panel, uint8_t* scratch) {
    if constexpr (kKind == CodecKind::kInteger) {
      relayout_panel<S, F, F::Codec::kFlip>(rows, s, panel, scratch);
    } else {
      relayout_panel<S, F, 0>(rows, s, panel, scratch);
    }
  }
};

/// Dense formats: elements [k][row], no scales.
template <class S, FormatId Id>
struct DenseSource {
  static constexpr FormatId kId = Id;
  static constexpr const char* kName = Id == FormatId::kF32 ? "f32" : Id == FormatId::kF16 ? "f16" : "bf16";
  static constexpr bool kScaled = false, kExpands = Id != FormatId::kF32;
  static constexpr int kRows = 2 * S::kLanes;
  static constexpr int64_t kElementBytes = Id == FormatId::kF32 ? 4 : 2;

  static const float* values(const MatmulArgs& a, const uint8_t* panel, int64_t k0, float* out) {
    const uint8_t* from = panel + k0 * kRows * kElementBytes;
    if constexpr (Id == FormatId::kF32) return reinterpret_cast<const float*>(from);
    const int64_t n = smaller(kChunkK, a.shape.k - k0) * kRows;
    const uint16_t* half = reinterpret_cast<const uint16_t*>(from);
    for (int64_t i = 0; i < n; i += S::kLanes) {
      if (i % 32 == 0) S::prefetch(from + 2 * i + 4096);
      S::store_f(out + i, Id == FormatId::kF16 ? S::load_f16(half + i) : S::load_bf16(half + i));
    }
    return out;
  }

  static int64_t bytes(const PanelShape& s) { return round_up_to(s.k * kRows * kElementBytes, 64); }
  static Factors<S> factors(const uint8_t*, const PanelShape&) { return {}; }
  static void relayout(const CanonicalRows& rows, const PanelShape& s, uint8_t* panel, uint8_t*) {
    for (int64_t k = 0; k < s.k; ++k)
      for (int64_t r = 0; r < rows.rows; ++r)
        __builtin_memcpy(panel + (k * kRows + r) * kElementBytes,
                         rows.codes + r * rows.row_stride_bytes + k * kElementBytes, kElementBytes);
  }
};

template <class S, class Source, Activation A>
struct FloatMatmul {
  using Float = typename S::Float;
  static constexpr int kRows = 2 * S::kLanes;
  static constexpr int64_t kBlockM = 96;  // rows of x per pass over a panel: bounds the scratch
  static constexpr int kPair = 2;         // panels side by side when x has one row, to hide the latency of fma

  /// Sums of one row of x: of the group so far, and of the groups behind it.
  struct State {
    float sum[kRows], acc[kRows];
  };
  struct Scratch {
    float* values;  // [kPair][kChunkK][kRows]
    float* x;       // int8 activations as f32: [kBlockM, kChunkK]
    State* states;  // [kPair][min(m, kBlockM)]
  };

  static int64_t scratch_bytes(int64_t m, const PanelShape& s) {
    if (m == 0) return round_up_to(s.k, 64) + 64;  // relayout: one row of codes
    const int64_t rows = smaller(m, kBlockM);
    return 4 * kPair * kChunkK * kRows + 4 * rows * kChunkK + kPair * rows * int64_t(sizeof(State));
  }
  static Scratch split(uint8_t* scratch, int64_t m) {
    float* values = reinterpret_cast<float*>(scratch);
    float* x = values + kPair * kChunkK * kRows;
    return {values, x, reinterpret_cast<State*>(x + smaller(m, kBlockM) * kChunkK)};
  }

  /// Columns [k0, k1) of one chunk: values [panel][k - k0][row], x [M, ldx] from column k0 on.
  template <int Panels, int M>
  static void chunk_tile(const MatmulArgs& a, const float* const* values, const Factors<S>* factors, int64_t k0,
                         int64_t k1, const float* x, int64_t ldx, int64_t m0, State* const* states) {
    const PanelShape& s = a.shape;
    Float sum[Panels][2][M], acc[Panels][2][M];
    for (int p = 0; p < Panels; ++p)
      for (int v = 0; v < 2; ++v)
        for (int m = 0; m < M; ++m) {
          sum[p][v][m] = S::load_f(states[p][m].sum + v * S::kLanes);
          acc[p][v][m] = S::load_f(states[p][m].acc + v * S::kLanes);
        }
    for (int64_t k = k0; k < k1;) {
      const int64_t g = k / s.group, group_end = smaller((g + 1) * s.group, s.k), end = smaller(group_end, k1);
      for (; k < end; ++k) {
        Float w[Panels][2];
        for (int p = 0; p < Panels; ++p)
          for (int v = 0; v < 2; ++v) w[p][v] = S::load_f(values[p] + (k - k0) * kRows + v * S::kLanes);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const Float xs = S::set_f(x[m * ldx + (k - k0)]);
          for (int p = 0; p < Panels; ++p)
            for (int v = 0; v < 2; ++v) sum[p][v][m] = S::fma(w[p][v], xs, sum[p][v][m]);
        }
      }
      if (k < group_end) break;
      for (int p = 0; p < Panels; ++p)
        for (int v = 0; v < 2; ++v) {
          const Float scale = Source::kScaled ? factors[p].scale(g, v) : S::set_f(1.0f);
          for (int m = 0; m < M; ++m) {
            const int64_t at = (m0 + m) * s.groups + g;
            const float x_scale = a.x_group_scale == nullptr ? 1.0f : a.x_group_scale[at];  // times 1: the same bits
            acc[p][v][m] = S::fma(S::mul_f(sum[p][v][m], S::set_f(x_scale)), scale, acc[p][v][m]);
            sum[p][v][m] = S::zero_f();
            if (s.offsets)
              acc[p][v][m] = S::fma(S::set_f(a.x_sums[at] * x_scale), factors[p].offset(g, v), acc[p][v][m]);
          }
        }
    }
    for (int p = 0; p < Panels; ++p)
      for (int v = 0; v < 2; ++v)
        for (int m = 0; m < M; ++m) {
          S::store_f(states[p][m].sum + v * S::kLanes, sum[p][v][m]);
          S::store_f(states[p][m].acc + v * S::kLanes, acc[p][v][m]);
        }
  }

  /// `rows` rows of x against one chunk of one panel.
  template <int M>
  static void chunk_tiles(const MatmulArgs& a, const float* values, const Factors<S>& factors, int64_t k0, int64_t k1,
                          const float* x, int64_t ldx, int64_t m0, int64_t rows, State* states) {
    int64_t i = 0;
    for (; i + M <= rows; i += M) {
      State* tile = states + i;
      chunk_tile<1, M>(a, &values, &factors, k0, k1, x + i * ldx, ldx, m0 + i, &tile);
    }
    if constexpr (M > 1) {
      if (i < rows) chunk_tiles<M - 1>(a, values, factors, k0, k1, x + i * ldx, ldx, m0 + i, rows - i, states + i);
    }
  }

  /// Columns [k0, k1) of rows [m0, m0 + rows) of x as f32.
  static const float* activations(const MatmulArgs& a, int64_t k0, int64_t k1, int64_t m0, int64_t rows, float* out,
                                  int64_t* ldx) {
    if constexpr (A == Activation::kF32) {
      *ldx = a.ldx;
      return a.x + m0 * a.ldx + k0;
    }
    for (int64_t m = 0; m < rows; ++m)  // rows are zero-padded to a multiple of 64: whole vectors may be read
      for (int64_t k = k0; k < k1; k += S::kLanes)
        S::store_f(out + m * kChunkK + (k - k0), S::load_i8(a.xq + (m0 + m) * a.ldxq + k));
    *ldx = kChunkK;
    return out;
  }

  static void finish(const MatmulArgs& a, int64_t n, int64_t m0, int64_t rows, const State* states) {
    for (int64_t m = 0; m < rows; ++m)
      for (int v = 0; v < 2; ++v)
        write_rows<S, A>(a, m0 + m, n + v * S::kLanes, S::load_f(states[m].acc + v * S::kLanes));
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
        chunk_tiles<S::kTileRows>(a, values, factors, k0, k1, x, ldx, m0, rows, t.states);
      }
      finish(a, n, m0, rows, t.states);
    }
  }

  /// kPair panels at once, one row of x.
  static void panel_pair(const MatmulArgs& a, const uint8_t* panel, int64_t n, const Scratch& t) {
    const int64_t bytes = Source::bytes(a.shape);
    Factors<S> factors[kPair];
    State* states[kPair];
    for (int p = 0; p < kPair; ++p) {
      factors[p] = Source::factors(panel + p * bytes, a.shape);
      states[p] = t.states + p;
    }
    __builtin_memset(static_cast<void*>(t.states), 0, kPair * sizeof(State));
    for (int64_t k0 = 0; k0 < a.shape.k; k0 += kChunkK) {
      const int64_t k1 = smaller(k0 + kChunkK, a.shape.k);
      int64_t ldx = 0;
      const float* values[kPair];
      for (int p = 0; p < kPair; ++p)
        values[p] = Source::values(a, panel + p * bytes, k0, t.values + p * kChunkK * kRows);
      const float* x = activations(a, k0, k1, 0, 1, t.x, &ldx);
      chunk_tile<kPair, 1>(a, values, factors, k0, k1, x, ldx, 0, states);
    }
    for (int p = 0; p < kPair; ++p) finish(a, n + p * kRows, 0, 1, states[p]);
  }

  static void run(const MatmulArgs& a) {
    if (a.m == 0) return;
    const int64_t bytes = Source::bytes(a.shape);
    const Scratch t = split(a.scratch, a.m);
    int64_t n = a.n0;
    if (a.m == 1)
      for (; n + (kPair - 1) * kRows < a.n1; n += kPair * kRows) panel_pair(a, a.w + n / kRows * bytes, n, t);
    for (; n < a.n1; n += kRows) one_panel(a, a.w + n / kRows * bytes, n, t);
  }

  static constexpr KernelName kName = matmul_name(Source::kName, A, S::kTileName);
  static constexpr MatmulKernel kernel() {
    return {kName.text,
            "docs/kernels.md#f32-panels",
            Source::kId,
            A,
            false,
            kRows,
            1,
            &Source::bytes,
            &Source::relayout,
            &scratch_bytes,
            &run};
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
