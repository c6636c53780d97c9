#pragma once
// Integer-valued formats x int8 activations on a matrix unit of 16 x 16 x 64 tiles (AMX), from the panels of
// kernels/cpu/panel.h with 16 lanes. A tile of C is 16 tokens by 16 weight rows; a chunk of a panel's columns is
// unpacked to signed bytes, stays in the first-level cache, and every token passes it. A few tokens, and groups of
// x that are no whole tile depths, take IntegerMatmul on the same panels.

#include "kernels/cpu/integer_matmul.h"
#include "kernels/cpu/tile_groups.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class S, class Tiles, class F>
struct TileMatmul {
  using Vector = IntegerMatmul<S, F>;
  using P = typename Vector::P;
  using Packed = typename P::Packed;
  using Int = typename S::Int;
  using Float = typename S::Float;
  using Groups = TileGroups<S, Tiles>;
  static_assert(S::kLanes == 16);
  /// Rows of x from which on tiles are faster than vectors: with one group of x a row, of 64 columns a tile, of fewer,
  /// but
  /// 32.
  static constexpr int64_t kLeastRows = 16, kLeastRows64 = 32, kLeastRows32 = 48, kLeastDepth = 32;
  static constexpr int64_t kChunkK = 512;  // 16 KiB of a panel's bytes, and as much of x, in the first-level cache
  /// With one group of x a row and more tokens than kSkinnyTokens, a panel's bytes are taken from the second-level
  /// cache: sums then need not leave their tiles, which pays more than the nearer bytes.
  static constexpr int64_t kWideChunkK = 4096, kSkinnyTokens = 64;
  static constexpr int64_t kPieceK = 512;  // of a wide chunk: unpacked, and passed by the first tokens at once
  static constexpr int kTurns = kChunkK / 32 / Groups::kTurn;  // at most, of a chunk
  static constexpr int64_t kTileBytes = 1024, kProductBytes = 4 * Groups::kProducts;

  struct Scratch {
    int8_t* bytes;      // [2][chunk / 4 + spare][16][4]: values of a chunk
    int32_t* products;  // two turns: the one that is scaled, and the next
    float* part;        // [rows][32] of the group so far
    float* acc;         // [rows][32] of the groups behind; int32 sums when the row is one group
    int64_t half;       // from one half of bytes to the other
  };
  static constexpr int64_t kSpareSteps = 10;  // blocks of 20 columns do not start where chunks do
  /// Products and bytes lie so that a tile is not loaded from where, modulo kAlias, products before it were stored: a
  /// load waits for a store in flight whose address ends in the same 12 bits.
  static constexpr int64_t kAlias = 4096;
  static constexpr int64_t half_bytes(int64_t chunk) { return round_up_to((chunk / 4 + kSpareSteps) * 64, kAlias); }
  /// Columns that are unpacked at a time.
  static int64_t chunk_of(int64_t m, const PanelShape& s) {
    return s.x_groups > 1 || m <= kSkinnyTokens ? kChunkK : smaller(kWideChunkK, round_up_to(s.k, 64));
  }

  static bool on_tiles(int64_t m, const PanelShape& s) {
    if (s.x_groups == 1) return m >= kLeastRows;
    const int64_t depth = Groups::depth_of(s.x_group);
    return depth >= kLeastDepth && s.x_group <= kChunkK && m >= (depth == 64 ? kLeastRows64 : kLeastRows32);
  }
  /// Columns of x that tiles read: a last group that is short ends with a whole tile.
  static int64_t columns_of_x(const PanelShape& s) {
    const int64_t whole = (s.x_groups - 1) * s.x_group;
    return s.x_groups == 1 ? s.k : whole + round_up_to(s.k - whole, Groups::depth_of(s.x_group));
  }
  /// Tiles read and write whole blocks of rows; those that are none are not looked at.
  static int64_t padded(int64_t m) { return round_up_to(m, kActivationRowMultiple); }
  static int64_t tile_scratch_bytes(int64_t m, const PanelShape& s) {
    return kAlias + 2 * half_bytes(chunk_of(m, s)) + 2 * kProductBytes + 2 * 128 * padded(m);
  }
  static int64_t scratch_bytes(int64_t m, const PanelShape& s) {
    const int64_t vector = Vector::scratch_bytes(m, s);  // enough for fewer rows, too
    return on_tiles(m, s) && tile_scratch_bytes(m, s) > vector ? tile_scratch_bytes(m, s) : vector;
  }
  static Scratch split(uint8_t* scratch, int64_t m, const PanelShape& s) {
    Scratch t;
    scratch += -reinterpret_cast<uintptr_t>(scratch) % kAlias;
    t.products = reinterpret_cast<int32_t*>(scratch);
    t.part = reinterpret_cast<float*>(scratch + 2 * kProductBytes);
    t.acc = t.part + 32 * padded(m);
    t.bytes = reinterpret_cast<int8_t*>(t.acc + 32 * padded(m));
    t.half = half_bytes(chunk_of(m, s));
    return t;
  }

  /// Puts the values of a chunk's columns, of both halves of a panel, where Scratch wants them, from column k0 on.
  class Unpacking {
   public:
    Unpacking(const MatmulArgs& a, const uint8_t* panel, int64_t k0, const Scratch& t)
        : blocks_at_(a.shape, panel, k0 / P::kBlockK),
          lookup_(Vector::template lookup_of<0>(a)),
          blocks_(P::blocks(a.shape)),
          block_(k0 / P::kBlockK),
          out_(t.bytes),
          half_(t.half) {
      first_ = t.bytes + (k0 - block_ * P::kBlockK) * 16;
      if (block_ > 0) before_ = typename P::BlockIterator(a.shape, panel, block_ - 1).next();
    }
    /// Where the first step of column k0 lies.
    const int8_t* first() const { return first_; }
    /// All columns below k are there behind it.
    void until(int64_t k) {
      const Int add = S::set8(Vector::Codec::kAdd);
      const int64_t last = smaller((k + P::kBlockK - 1) / P::kBlockK, blocks_), half = half_;
      uint8_t* out = reinterpret_cast<uint8_t*>(out_);
      for (; block_ < last; ++block_) {
        typename Vector::Blocks block;
        const uint8_t* const at = blocks_at_.next();
        block.template load<false>(at, 0, {0, before_});
        before_ = at;
#pragma GCC unroll 8
        for (int step = 0; step < Packed::kSteps; ++step, out += 64)
          for (int v = 0; v < 2; ++v) {
            const Int codes = block.step(v, step, lookup_);
            S::store(out + v * half, Vector::kTable ? codes : S::add8(codes, add));
          }
      }
      out_ = reinterpret_cast<int8_t*>(out);
    }

   private:
    typename P::BlockIterator blocks_at_;
    typename Vector::Lookup lookup_;
    const uint8_t* before_ = Vector::kNoBlock;
    int64_t blocks_, block_;
    int8_t* out_;
    const int8_t* first_;
    int64_t half_;
  };

  /// C: tiles 0..3, A: 4 and 5, B: 6 and 7.
  static TileConfig config(int64_t depth) {
    TileConfig c;
    for (int t = 0; t < 8; ++t) {
      c.rows[t] = uint8_t(t < 6 ? 16 : depth / 4);
      c.row_bytes[t] = uint16_t(t == 4 || t == 5 ? depth : 64);
    }
    return c;
  }

  // ---- Whole rows are one group: 32 x 32 blocks of C in int32 ----

  /// Tiles of sums [rows][32] of 16 + kSecond * 16 tokens, zero at first.
  template <bool kSecond>
  static void begin_block(bool first, const int32_t* sums) {
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
  }
  /// Their next 64 * steps columns.
  template <bool kSecond>
  LOWBIT_INLINE void add_steps(const int8_t* x, int64_t ldx, const int8_t* bytes, int64_t half, int64_t steps) {
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
  }
  template <bool kSecond>
  static void end_block(int32_t* sums) {
    Tiles::template store<0>(sums, 128);
    Tiles::template store<1>(sums + 16, 128);
    if constexpr (kSecond) {
      Tiles::template store<2>(sums + 16 * 32, 128);
      Tiles::template store<3>(sums + 16 * 32 + 16, 128);
    }
  }

  /// Columns [k0, k1) of a block of rows; the first tokens wait for each kPieceK columns and find them in the
  /// first-level cache.
  template <bool kSecond>
  static void row_block(const MatmulArgs& a, int64_t m, int64_t k0, int64_t k1, Unpacking& unpacking, int64_t half,
                        int32_t* sums) {
    const int8_t* x = a.xq + m * a.ldxq;
    const int64_t piece = m == 0 ? kPieceK : k1 - k0;
    begin_block<kSecond>(k0 == 0, sums);
    for (int64_t k = k0; k < k1; k += piece) {
      const int64_t end = smaller(k + piece, k1);
      unpacking.until(end);
      add_steps<kSecond>(x + k, a.ldxq, unpacking.first() + (k - k0) * 16, half, (end - k + 63) / 64);
    }
    end_block<kSecond>(sums);
  }

  /// Rows [m0, m1) of x: exact sums to results.
  static void write_sums(const MatmulArgs& a, const Factors<S>& factors, int64_t n, int64_t m0, int64_t m1,
                         const int32_t* sums) {
    for (int v = 0; v < 2; ++v) {
      const Float scale = factors.scale(0, v), offset = a.shape.offsets ? factors.offset(0, v) : S::zero_f();
      for (int64_t m = m0; m < m1; ++m) {
        Float total = S::to_float(S::load(reinterpret_cast<const uint8_t*>(sums + 32 * m + 16 * v)));
        if (a.x_group_scale != nullptr) total = S::fma(total, S::set_f(a.x_group_scale[m]), S::zero_f());
        Float acc = S::fma(total, scale, S::zero_f());
        if (a.shape.offsets) acc = S::fma(S::set_f(a.x_sums[m]), offset, acc);
        write_rows<S, Activation::kInt8>(a, m, n + 16 * v, acc);
      }
    }
  }

  static void row_panel(const MatmulArgs& a, const uint8_t* panel, int64_t n, const Scratch& t) {
    const PanelShape& s = a.shape;
    const Factors<S> factors = factors_of<S, F>(panel, s);
    const int64_t chunk = chunk_of(a.m, s);
    int32_t* sums = reinterpret_cast<int32_t*>(t.acc);  // [m][32]
    for (int64_t k0 = 0; k0 < s.k; k0 += chunk) {
      const int64_t k1 = smaller(k0 + chunk, s.k);
      Unpacking unpacking(a, panel, k0, t);
      for (int64_t m = 0; m < a.m; m += 32) {
        const int64_t end = smaller(m + 32, a.m);
        // Results go to rows far apart, which nothing has brought near.
        for (int64_t r = m; k1 == s.k && r < end; ++r) S::prefetch_to_write(a.y + r * a.ldy + n);
        if (end - m > 16) row_block<true>(a, m, k0, k1, unpacking, t.half, sums + 32 * m);
        if (end - m <= 16) row_block<false>(a, m, k0, k1, unpacking, t.half, sums + 32 * m);
        if (k1 == s.k) write_sums(a, factors, n, m, end, sums);
      }
    }
  }

  // ---- Groups of x: their products are scaled by vectors ----

  static void grouped_panel(const MatmulArgs& a, const uint8_t* panel, int64_t n, const Scratch& t) {
    const PanelShape& s = a.shape;
    const int64_t per_chunk = kChunkK / s.x_group;
    const Factors<S> factors = factors_of<S, F>(panel, s);
    __builtin_memset(static_cast<void*>(t.part), 0, size_t(padded(a.m)) * 256);
    typename Groups::Turn turns[kTurns];
    for (int64_t j0 = 0; j0 < s.x_groups; j0 += per_chunk) {
      const int64_t j1 = smaller(j0 + per_chunk, s.x_groups);
      Unpacking unpacking(a, panel, j0 * s.x_group, t);
      unpacking.until(smaller(j1 * s.x_group, s.k));
      int64_t count = 0;
      for (int64_t j = j0; j < j1; j += Groups::kTurn)
        turns[count++] = Groups::turn_of(a, factors, j, int(smaller(Groups::kTurn, j1 - j)));
      Groups::multiply(a, turns, count, unpacking.first(), t.half, t.products, t.part, t.acc);
    }
    Groups::write(a, factors, n, t.acc);
  }

  static void run(const MatmulArgs& a) {
    if (!on_tiles(a.m, a.shape) || columns_of_x(a.shape) > a.ldxq) return Vector::run(a);
    const Scratch t = split(a.scratch, a.m, a.shape);
    const int64_t bytes = P::bytes(a.shape);
    Tiles::configure(config(a.shape.x_groups > 1 ? Groups::depth_of(a.shape.x_group) : 64));
    for (int64_t n = a.n0; n < a.n1; n += P::kRows) {
      const uint8_t* panel = a.w + n / P::kRows * bytes;
      if (a.shape.x_groups == 1) {
        row_panel(a, panel, n, t);
      } else {
        grouped_panel(a, panel, n, t);
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
    TileMatmul<S, Tiles, Codebook4>::kernel(),   TileMatmul<S, Tiles, Codebook3>::kernel(),
    TileMatmul<S, Tiles, Codebook2>::kernel(),   TileMatmul<S, Tiles, Trellis2>::kernel(),
};
template <class S, class Tiles>
inline constexpr int kTileKernelCount = sizeof(kTileKernels<S, Tiles>) / sizeof(MatmulKernel);

}  // namespace LOWBIT_ISA
}  // namespace lowbit
