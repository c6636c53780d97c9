#pragma once
// Integer-valued formats x int8 activations on a matrix unit of 16 x 16 x 64 tiles (AMX), from the panels of
// kernels/cpu/panel.h with 16 lanes. A tile of C is 16 rows of x by 16 weight rows; a chunk of a panel's columns is unpacked to
// signed bytes, stays in the first-level cache, and every row of x passes it. Few rows of x, and segments that are no whole
// tile depths, take IntegerMatmul on the same panels.

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/integer_matmul.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class S, class Tiles, class F>
struct TileMatmul {
  using Vector = IntegerMatmul<S, F>;
  using P = typename Vector::P;
  using Packed = typename P::Packed;
  using Int = typename S::Int;
  using Float = typename S::Float;
  static_assert(S::kLanes == 16);
  /// Rows of x from which on tiles are faster than vectors: with one segment a row, of 64 columns or more, of 32.
  static constexpr int64_t kLeastRows = 16, kLeastRows64 = 32, kLeastRows32 = 96;
  static constexpr int64_t kChunkK = 512;  // 16 KiB of a panel's bytes, and as much of x, in the first-level cache
  static constexpr int kSegments = 4;      // of which products are kept before they are folded
  static constexpr int kFolds = kChunkK / 32 / kSegments;  // at most, of a chunk
  static constexpr int64_t kTileBytes = 1024;

  struct Scratch {
    int8_t* bytes;      // [2][kChunkK / 4 + spare][16][4]: values of a chunk
    int32_t* products;  // [2][kSegments][16][16]: those being folded, and the next
    float* part;        // [m][32] of the group so far
    float* acc;         // [m][32] of the groups behind; int32 sums when the row is one segment
  };
  static constexpr int64_t kSpareSteps = 10;  // blocks of 20 columns do not start where chunks do
  static constexpr int64_t kHalfBytes = (kChunkK / 4 + kSpareSteps) * 64;

  static bool on_tiles(int64_t m, const PanelShape& s) {
    if (s.segments == 1) return m >= kLeastRows;
    if (s.segment == 32) return m >= kLeastRows32;
    return m >= kLeastRows64 && s.segment % 64 == 0 && s.segment <= kChunkK;
  }
  static int64_t tile_scratch_bytes(int64_t m) { return 2 * kHalfBytes + 2 * kSegments * kTileBytes + 2 * 128 * m; }
  static int64_t scratch_bytes(int64_t m, const PanelShape& s) {
    const int64_t vector = Vector::scratch_bytes(m, s);  // enough for fewer rows, too
    return on_tiles(m, s) && tile_scratch_bytes(m) > vector ? tile_scratch_bytes(m) : vector;
  }
  static Scratch split(uint8_t* scratch, int64_t m) {
    Scratch t;
    t.bytes = reinterpret_cast<int8_t*>(scratch);
    t.products = reinterpret_cast<int32_t*>(scratch + 2 * kHalfBytes);
    t.part = reinterpret_cast<float*>(scratch + 2 * kHalfBytes + 2 * kSegments * kTileBytes);
    t.acc = t.part + 32 * m;
    return t;
  }

  /// Values of columns [k0, k1) of both halves of a panel; the first step lies at the returned pointer.
  static const int8_t* unpack_chunk(const PanelShape& s, const uint8_t* panel, int64_t k0, int64_t k1, int8_t* bytes) {
    const int64_t first = k0 / P::kBlockK, last = smaller((k1 + P::kBlockK - 1) / P::kBlockK, P::blocks(s));
    const Int add = S::set8(Vector::Codec::kAdd);
    uint8_t* out = reinterpret_cast<uint8_t*>(bytes);
    for (int64_t b = first; b < last; ++b) {
      typename Vector::Blocks block;
      block.template load<false>(panel, b);
#pragma GCC unroll 8
      for (int step = 0; step < Packed::kSteps; ++step, out += 64)
        for (int v = 0; v < 2; ++v) S::store(out + v * kHalfBytes, S::add8(block.step(v, step), add));
    }
    return bytes + (k0 - first * P::kBlockK) * 16;
  }

  /// A: `rows` rows of x, in tile 4, and `second` more in tile 5; C: tiles 0..3; B: tiles 6 and 7.
  static TileConfig config(int64_t rows, int64_t second, int64_t depth) {
    TileConfig c;
    const int64_t of_tile[8] = {rows, rows, second, second, rows, second, depth / 4, depth / 4};
    for (int t = 0; t < 8; ++t) {
      c.rows[t] = uint8_t(of_tile[t]);
      c.row_bytes[t] = uint16_t(of_tile[t] == 0 ? 0 : t == 4 || t == 5 ? depth : 64);
    }
    return c;
  }

  // ---- Whole rows are one segment: 32 x 32 blocks of C in int32 ----

  /// Columns [k0, k0 + 64 * steps) of 16 + kSecond * 16 rows of x; sums [rows][32] come from the chunks before.
  template <bool kSecond>
  static void row_block(const int8_t* x, int64_t ldx, const int8_t* bytes, int64_t steps, bool first, int32_t* sums) {
    const int64_t half = kHalfBytes;
    if (first) {
      Tiles::template zero<0>();
      Tiles::template zero<1>();
      if constexpr (kSecond) {
        Tiles::template zero<2>();
        Tiles::template zero<3>();
      }
    } else {
      Tiles::template load<0>(sums, 128);
      Tiles::template load<1>(sums + 16, 128);
      if constexpr (kSecond) {
        Tiles::template load<2>(sums + 16 * 32, 128);
        Tiles::template load<3>(sums + 16 * 32 + 16, 128);
      }
    }
    for (int64_t i = 0; i < steps; ++i) {
      Tiles::template load<6>(bytes + i * kTileBytes, 64);
      Tiles::template load<4>(x + 64 * i, ldx);
      Tiles::template dot<0, 4, 6>();
      Tiles::template load<7>(bytes + half + i * kTileBytes, 64);
      Tiles::template dot<1, 4, 7>();
      if constexpr (kSecond) {
        Tiles::template load<5>(x + 16 * ldx + 64 * i, ldx);
        Tiles::template dot<2, 5, 6>();
        Tiles::template dot<3, 5, 7>();
      }
    }
    Tiles::template store<0>(sums, 128);
    Tiles::template store<1>(sums + 16, 128);
    if constexpr (kSecond) {
      Tiles::template store<2>(sums + 16 * 32, 128);
      Tiles::template store<3>(sums + 16 * 32 + 16, 128);
    }
  }

  static void row_panel(const MatmulArgs& a, const uint8_t* panel, int64_t n, const Scratch& t) {
    const PanelShape& s = a.shape;
    int32_t* sums = reinterpret_cast<int32_t*>(t.acc);  // [m][32]
    const int64_t whole = a.m / 32 * 32, rest = a.m - whole, second = rest > 16 ? rest - 16 : 0;
    const TileConfig main = config(16, 16, 64), tail = config(rest > 16 ? 16 : rest, second, 64);
    for (int64_t k0 = 0; k0 < s.k; k0 += kChunkK) {
      const int64_t k1 = smaller(k0 + kChunkK, s.k), steps = (k1 - k0 + 63) / 64;
      const int8_t* bytes = unpack_chunk(s, panel, k0, k1, t.bytes);
      const int8_t* x = a.xq + k0;
      if (whole > 0) Tiles::configure(main);
      for (int64_t m = 0; m < whole; m += 32)
        row_block<true>(x + m * a.ldxq, a.ldxq, bytes, steps, k0 == 0, sums + 32 * m);
      if (rest == 0) continue;
      Tiles::configure(tail);
      if (second > 0) row_block<true>(x + whole * a.ldxq, a.ldxq, bytes, steps, k0 == 0, sums + 32 * whole);
      if (second == 0) row_block<false>(x + whole * a.ldxq, a.ldxq, bytes, steps, k0 == 0, sums + 32 * whole);
    }
    const Factors<S> factors = factors_of<S, F>(panel, s);
    for (int v = 0; v < 2; ++v) {
      const Float scale = factors.scale(0, v), offset = s.offsets ? factors.offset(0, v) : S::zero_f();
      for (int64_t m = 0; m < a.m; ++m) {
        const Int sum = S::load(reinterpret_cast<const uint8_t*>(sums + 32 * m + 16 * v));
        Float total = S::to_float(sum);
        if (a.x_group_scale != nullptr) total = S::fma(total, S::set_f(a.x_group_scale[m]), S::zero_f());
        Float acc = S::fma(total, scale, S::zero_f());
        if (s.offsets) acc = S::fma(S::set_f(a.x_sums[m]), offset, acc);
        write_rows<S, Activation::kInt8>(a, m, n + 16 * v, acc);
      }
    }
  }

  // ---- Segments: 16 x 16 tiles of C, one per segment, up to four in flight before they are folded ----

  /// What `count` segments from segment j on mean to one half of a panel.
  struct Fold {
    int count = 0;
    bool ends[kSegments];  // the segment ends a group
    int64_t group[kSegments];
    Float scale[kSegments], offset[kSegments];
  };
  static Fold fold_of(const PanelShape& s, const Factors<S>& factors, int64_t j, int count, int v) {
    Fold f;
    f.count = count;
    const int64_t per_group = s.groups == 1 ? s.segments : s.group / s.segment;
    for (int q = 0; q < count; ++q) {
      f.group[q] = (j + q) / per_group;
      f.ends[q] = (j + q + 1) % per_group == 0 || j + q + 1 == s.segments;
      f.scale[q] = factors.scale(f.group[q], v);
      f.offset[q] = s.offsets ? factors.offset(f.group[q], v) : S::zero_f();
    }
    return f;
  }

  template <int Q>
  LOWBIT_INLINE void segment_dot(const int8_t* x, int64_t ldx, const int8_t* bytes, int64_t segment, int64_t columns) {
    const int64_t depth = segment == 32 ? 32 : 64, end = smaller(columns - Q * segment, segment);
    Tiles::template zero<Q>();
    for (int64_t k = Q * segment; k < Q * segment + end; k += depth) {
      Tiles::template load<4>(x + k, ldx);
      Tiles::template load<6>(bytes + 16 * k, 64);
      Tiles::template dot<Q, 4, 6>();
    }
  }

  /// Products of `count` segments of x and bytes, the first `columns` columns of them, into products [q][16][16].
  LOWBIT_INLINE void segment_products(const int8_t* x, int64_t ldx, const int8_t* bytes, int64_t segment,
                                      int64_t columns, int count, int32_t* products) {
    segment_dot<0>(x, ldx, bytes, segment, columns);
    if (count > 1) segment_dot<1>(x, ldx, bytes, segment, columns);
    if (count > 2) segment_dot<2>(x, ldx, bytes, segment, columns);
    if (count > 3) segment_dot<3>(x, ldx, bytes, segment, columns);
    Tiles::template store<0>(products, 64);
    if (count > 1) Tiles::template store<1>(products + 256, 64);
    if (count > 2) Tiles::template store<2>(products + 512, 64);
    if (count > 3) Tiles::template store<3>(products + 768, 64);
  }

  /// One scale per row of x: every segment ends its group. With a scale of x per segment: those whose bit in Ends is set.
  /// Four segments, no offsets: what most turns are, without a branch per segment.
  template <unsigned Ends, bool kScales>
  static void fold_four(const Fold& f, const float* x_scales, int64_t stride, const int32_t* products, int64_t rows,
                        float* part_of, float* acc_of) {
    constexpr bool kOpen = kScales && (Ends >> (kSegments - 1)) == 0;  // the last group goes on behind these segments
    constexpr bool kGoesOn = kScales && Ends != 15 && Ends != 10;      // the first may have begun before them
    Float scale[kSegments];
    for (int q = 0; q < kSegments; ++q) scale[q] = f.scale[q];
    for (int64_t r = 0; r < rows; ++r, x_scales += stride, products += 16, part_of += 32, acc_of += 32) {
      Float acc = Ends != 0 ? S::load_f(acc_of) : S::zero_f(), part = kGoesOn ? S::load_f(part_of) : S::zero_f();
#pragma GCC unroll 4
      for (int q = 0; q < kSegments; ++q) {
        const Float sum = S::to_float(S::load(reinterpret_cast<const uint8_t*>(products + 256 * q)));
        part = kScales ? S::fma(sum, S::set_f(x_scales[q]), part) : sum;
        if ((Ends >> q & 1) == 0) continue;
        acc = S::fma(part, scale[q], acc);
        part = S::zero_f();
      }
      if (Ends != 0) S::store_f(acc_of, acc);
      if (kOpen || kGoesOn) S::store_f(part_of, part);
    }
  }

  /// Any number of segments, with or without offsets and scales of x.
  static void fold_any(const MatmulArgs& a, const Fold& f, const float* x_scales, int64_t stride,
                       const int32_t* products, int64_t m0, int64_t rows, float* part_of, float* acc_of) {
    for (int64_t r = 0; r < rows; ++r, part_of += 32, acc_of += 32) {
      Float acc = S::load_f(acc_of), part = S::load_f(part_of);
      for (int q = 0; q < f.count; ++q) {
        const Float sum = S::to_float(S::load(reinterpret_cast<const uint8_t*>(products + 256 * q + 16 * r)));
        part = x_scales == nullptr ? sum : S::fma(sum, S::set_f(x_scales[r * stride + q]), part);
        if (!f.ends[q]) continue;
        acc = S::fma(part, f.scale[q], acc);
        part = S::zero_f();
        if (a.shape.offsets) acc = S::fma(S::set_f(a.x_sums[(m0 + r) * a.shape.groups + f.group[q]]), f.offset[q], acc);
      }
      S::store_f(acc_of, acc);
      S::store_f(part_of, part);
    }
  }

  static void fold_products(const MatmulArgs& a, const Fold& f, int64_t j, const int32_t* products, int64_t m0,
                            int64_t rows, float* part, float* acc) {
    const int64_t stride = a.shape.segments;
    const float* x_scales = a.x_group_scale == nullptr ? nullptr : a.x_group_scale + m0 * stride + j;
    unsigned ends = 16;
    if (f.count == kSegments && !a.shape.offsets)
      ends = unsigned(f.ends[0]) | unsigned(f.ends[1]) << 1 | unsigned(f.ends[2]) << 2 | unsigned(f.ends[3]) << 3;
    if (x_scales == nullptr) {
      if (ends == 15) return fold_four<15, false>(f, acc, 0, products, rows, part, acc);
    } else {
      if (ends == 15) return fold_four<15, true>(f, x_scales, stride, products, rows, part, acc);
      if (ends == 10) return fold_four<10, true>(f, x_scales, stride, products, rows, part, acc);
      if (ends == 8) return fold_four<8, true>(f, x_scales, stride, products, rows, part, acc);
      if (ends == 0) return fold_four<0, true>(f, x_scales, stride, products, rows, part, acc);
    }
    fold_any(a, f, x_scales, stride, products, m0, rows, part, acc);
  }

  /// Segments [j0, j1) of a chunk, unpacked at `bytes`, times `rows` rows of x from m0 on; tiles are configured. A tile's
  /// products are read back a turn later.
  static void segment_rows(const MatmulArgs& a, const Fold (*folds)[kFolds], const int8_t* bytes, int64_t j0,
                           int64_t j1, int64_t m0, int64_t rows, const Scratch& t) {
    const int64_t segment = a.shape.segment, per_half = (j1 - j0 + kSegments - 1) / kSegments;
    const int8_t* x = a.xq + m0 * a.ldxq;
    const auto fold = [&](int64_t turn) __attribute__((always_inline)) {
      const int64_t v = turn / per_half, i = turn % per_half, at = 32 * m0 + 16 * v;
      const int32_t* products = t.products + turn % 2 * kSegments * 256;
      fold_products(a, folds[v][i], j0 + i * kSegments, products, m0, rows, t.part + at, t.acc + at);
    };
    for (int64_t turn = 0; turn < 2 * per_half; ++turn) {
      const int64_t v = turn / per_half, i = turn % per_half, j = j0 + i * kSegments;
      segment_products(x + j * segment, a.ldxq, bytes + v * kHalfBytes + (j - j0) * segment * 16, segment,
                       a.shape.k - j * segment, folds[v][i].count, t.products + turn % 2 * kSegments * 256);
      if (turn > 0) fold(turn - 1);
    }
    fold(2 * per_half - 1);
  }

  static void segment_panel(const MatmulArgs& a, const uint8_t* panel, int64_t n, const Scratch& t) {
    const PanelShape& s = a.shape;
    const int64_t depth = s.segment == 32 ? 32 : 64, per_chunk = kChunkK / s.segment;
    const Factors<S> factors = factors_of<S, F>(panel, s);
    const int64_t whole = a.m / 16 * 16, rest = a.m - whole;
    const TileConfig main = config(16, 0, depth), tail = config(rest, 0, depth);
    // Tiles 0..3 are all C here.
    const auto with_c = [](TileConfig c) {
      for (int i = 2; i < 4; ++i) c.rows[i] = c.rows[0], c.row_bytes[i] = 64;
      return c;
    };
    const TileConfig main_c = with_c(main), tail_c = with_c(tail);
    __builtin_memset(static_cast<void*>(t.part), 0, size_t(a.m) * 256);
    Fold folds[2][kFolds];
    for (int64_t j0 = 0; j0 < s.segments; j0 += per_chunk) {
      const int64_t j1 = smaller(j0 + per_chunk, s.segments);
      const int8_t* bytes = unpack_chunk(s, panel, j0 * s.segment, smaller(j1 * s.segment, s.k), t.bytes);
      for (int v = 0; v < 2; ++v)
        for (int64_t j = j0, i = 0; j < j1; j += kSegments, ++i)
          folds[v][i] = fold_of(s, factors, j, int(smaller(kSegments, j1 - j)), v);
      if (whole > 0) Tiles::configure(main_c);
      for (int64_t m = 0; m < whole; m += 16) segment_rows(a, folds, bytes, j0, j1, m, 16, t);
      if (rest == 0) continue;
      Tiles::configure(tail_c);
      segment_rows(a, folds, bytes, j0, j1, whole, rest, t);
    }
    for (int64_t m = 0; m < a.m; ++m)
      for (int v = 0; v < 2; ++v)
        write_rows<S, Activation::kInt8>(a, m, n + 16 * v, S::load_f(t.acc + 32 * m + 16 * v));
  }

  static void run(const MatmulArgs& a) {
    if (!on_tiles(a.m, a.shape)) return Vector::run(a);
    const Scratch t = split(a.scratch, a.m);
    const int64_t bytes = P::bytes(a.shape);
    for (int64_t n = a.n0; n < a.n1; n += P::kRows) {
      const uint8_t* panel = a.w + n / P::kRows * bytes;
      if (a.shape.segments == 1) {
        row_panel(a, panel, n, t);
      } else {
        segment_panel(a, panel, n, t);
      }
    }
    Tiles::release();
  }

  static constexpr KernelName kName = matmul_name(F::kName, Activation::kInt8, Tiles::kTileName);
  static constexpr MatmulKernel kernel() {
    MatmulKernel k = Vector::kernel();
    k.name = kName.text;
    k.doc = "docs/kernels.md#tiles";
    k.scratch_bytes = &scratch_bytes;
    k.run = &run;
    return k;
  }
};

/// Tile kernels; all other formats are left to the table below.
template <class S, class Tiles>
inline constexpr MatmulKernel kTileKernels[] = {
    TileMatmul<S, Tiles, Int8>::kernel(),        TileMatmul<S, Tiles, Int4>::kernel(),
    TileMatmul<S, Tiles, Uint4>::kernel(),       TileMatmul<S, Tiles, Int3>::kernel(),
    TileMatmul<S, Tiles, Int2>::kernel(),        TileMatmul<S, Tiles, Int3Odd>::kernel(),
    TileMatmul<S, Tiles, Int2Odd>::kernel(),     TileMatmul<S, Tiles, Binary>::kernel(),
    TileMatmul<S, Tiles, Ternary2Bit>::kernel(), TileMatmul<S, Tiles, TernaryPacked>::kernel(),
};
template <class S, class Tiles>
inline constexpr int kTileKernelCount = sizeof(kTileKernels<S, Tiles>) / sizeof(MatmulKernel);

}  // namespace LOWBIT_ISA
}  // namespace lowbit
