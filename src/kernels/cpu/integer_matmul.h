#pragma once
// Integer-valued formats, and codebooks of integers, x int8 activations. Up to S::kDirectRows rows of x: codes are
// unpacked in registers. More: a panel is unpacked once into bytes, and tiles of x rows run over those. Both sum
// exactly inside a segment and fold it in the order of kernels/ref/matmul.cc, so all agree bit for bit.

#include "kernels/cpu/panel.h"
#include "kernels/kernel_name.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// What is multiplied: a format's values, or of a codebook the levels that its codes stand for, as int8's.
template <class Codec, CodecKind Kind = Codec::kKind>
struct Multiplied {
  using type = Codec;
};
template <class Codec>
struct Multiplied<Codec, CodecKind::kTable> {
  using type = Int8::Codec;
};

/// A codebook's levels: a look-up is all that unpacking does more. Nothing for other formats.
template <class S, bool kTable>
struct LevelTable {};
template <class S>
struct LevelTable<S, true> {
  typename S::Int bytes;
};

template <class S, class F>
struct IntegerMatmul {
  using Int = typename S::Int;
  using Float = typename S::Float;
  using Codec = typename Multiplied<typename F::Codec>::type;
  static constexpr bool kTable = F::Codec::kKind == CodecKind::kTable;
  using P = Panel<S, F>;
  using Packed = typename P::Packed;
  static constexpr bool kBase3 = F::kId == FormatId::kTernaryPacked;
  // The multiplier of value = kMul * (code ^ flip) + kAdd is a shift of the unpacked codes.
  static constexpr int kUp = Codec::kMul == 2 ? 1 : 0;
  static_assert(Codec::kMul == 1 || Codec::kMul == 2);
  static constexpr int kMaxCode = (kBase3 ? 2 : (1 << Codec::kBits) - 1) << kUp;  // an unused code 3 may be in a file
  using Dot = typename S::template Dot<kMaxCode>;
  static constexpr unsigned kFlip = Dot::kSigned ? 0u : Codec::kFlip;
  static constexpr int kAdd = Dot::kSigned ? 0 : Codec::kAdd;
  static constexpr int64_t kStepBytes = 4 * P::kRows;

  using Levels = LevelTable<S, kTable>;
  /// Flipped as int8's codes are.
  template <unsigned Flip = kFlip>
  LOWBIT_INLINE Levels levels_of(const MatmulArgs& a) {
    if constexpr (kTable)
      return {S::xor_(S::load_levels(a.levels), S::set8(int(Flip)))};
    else
      return {};
  }

  /// How far ahead of a single pass over memory prefetches go: bytes in flight over the memory's latency are all that a
  /// core reads a second.
  static constexpr int64_t kAhead = S::kAhead;
  /// What nothing before it has prefetched: the first bytes of a run of panels. The rest is the hardware's guess or
  /// ReadAhead's.
  static constexpr int64_t kFirst = 8192;
  static void prefetch_first(const uint8_t* panel) {
    for (int64_t at = 0; at < kFirst; at += kStepBytes) S::prefetch(panel + at);
  }

  /// On a trellis a block's first codes depend on the block before it. That lies kBlockBytes before it, but for `unit`,
  /// the first of a group or of what `codes` points to.
  static constexpr bool kHistory = OnTrellis<F>;
  struct History {
    int64_t unit = 0;
    const uint8_t* before = kNoBlock;
  };
  alignas(64) static constexpr uint8_t kNoBlock[kHistory ? P::kBlockBytes : 1] = {};

  /// Where codes come from: packed blocks, unpacked in registers, or the bytes of unpack_panel.
  struct Blocks {
    static constexpr int kSteps = Packed::kSteps;
    static constexpr bool kStreams = true;
    static constexpr int64_t kBytes = P::kBlockBytes;
    Int words[2][Packed::kWords + int(kHistory)];
    /// Behind a single pass over memory prefetches go further ahead than where each panel is worked on for a while.
    template <bool kStreaming = true>
    __attribute__((always_inline)) void load(const uint8_t* codes, int64_t unit, const History& history = {}) {
      const uint8_t* block = codes + unit * P::kBlockBytes;
      for (int w = 0; w < Packed::kWords; ++w) {
        if constexpr (kStreaming) S::prefetch_ahead(block + w * kStepBytes + kAhead);
        if constexpr (!kStreaming) S::prefetch(block + w * kStepBytes + 2048);
        words[0][w] = S::load(block + w * kStepBytes);
        words[1][w] = S::load(block + w * kStepBytes + kStepBytes / 2);
      }
      if constexpr (kHistory) {
        const uint8_t* const before = unit == history.unit ? history.before : block - P::kBlockBytes;
        for (int v = 0; v < 2; ++v)
          words[v][1] = S::with_last_byte_of(S::load(before + v * kStepBytes / 2), words[v][0]);
      }
    }
    __attribute__((always_inline)) Int step(int v, int s, const Levels& levels) const {
      if constexpr (kTable)
        return S::look_up8(levels.bytes, Packed::template step<S, 0, S::kMaskedLevels>(words[v], s));
      else
        return Packed::template step<S, kUp>(words[v], s);
    }
  };
  struct Bytes {
    static constexpr int kSteps = 1;
    static constexpr bool kStreams = false;
    static constexpr int64_t kBytes = kStepBytes;
    Int codes[2];
    __attribute__((always_inline)) void load(const uint8_t* bytes, int64_t unit, const History& = {}) {
      codes[0] = S::load(bytes + unit * kStepBytes);
      codes[1] = S::load(bytes + unit * kStepBytes + kStepBytes / 2);
    }
    __attribute__((always_inline)) Int step(int v, int, const Levels&) const { return codes[v]; }
  };

  /// Packed blocks too, but a unit is a step: segments begin and end inside of blocks.
  struct Steps {
    static constexpr int kSteps = 1;
    static constexpr bool kStreams = true;
  };
  /// More rows of x than these have such panels unpacked to bytes.
  static constexpr int64_t kStepsRows = 2;
  static constexpr bool kPartialBlocks = !kBase3 && P::kBlockK > 4;

  /// Ternary digits five a byte, a unit is a step: partial blocks are read as they are.
  struct Base3Steps {
    static constexpr int kSteps = 1;
    static constexpr bool kStreams = true;
  };
  /// vpdpbusd takes any byte: then digits never come out of theirs. With the fraction v of a byte (kernels/cpu/panel.h)
  /// its next digit is (3 v - v') / 256, v' = 3 v mod 256 the fraction behind it, so sum digit * x = (3 sum v * x - sum
  /// v' * x) / 256.
  static constexpr bool kFractions = kBase3 && !Dot::kWidens;
  static constexpr int64_t kBase3Rows = kFractions ? 3 : 2;  // of x, for which digits need not be stored first
  static constexpr int64_t kMaxFractionK = 32768;            // 256 * 2 * 127 * k < 2^31

  /// a += the products of steps [step, end), or of fractions v, then b those of fractions v'.
  template <int M>
  LOWBIT_INLINE void add_base3(const uint8_t* codes, const int8_t* x, int64_t ldx, int64_t step, int64_t end,
                               Int (&a)[2][M], Int (&b)[2][M]) {
    constexpr int64_t kInBlock = Packed::kSteps;
    while (step < end) {
      const int64_t unit = step / kInBlock, from = step - unit * kInBlock,
                    to = smaller(kInBlock, end - unit * kInBlock);
      const uint8_t* block = codes + unit * P::kBlockBytes;
      S::prefetch_ahead(block + kAhead);
      Int v0 = S::load(block), v1 = S::load(block + kStepBytes / 2);
      const int8_t* column = x + 4 * kInBlock * unit;
#pragma GCC unroll 8
      for (int s = 0; s < kInBlock; ++s) {
        const Int n0 = S::add8(v0, S::add8(v0, v0)), n1 = S::add8(v1, S::add8(v1, v1));
        if (s >= from && s < to) {
          const Int c0 = kFractions ? v0 : S::base3_digit(v0), c1 = kFractions ? v1 : S::base3_digit(v1);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            const Int xs = S::broadcast4(column + 4 * s + m * ldx);
            a[0][m] = Dot::add(a[0][m], c0, xs);
            a[1][m] = Dot::add(a[1][m], c1, xs);
            if constexpr (!kFractions) continue;
            b[0][m] = Dot::add(b[0][m], n0, xs);
            b[1][m] = Dot::add(b[1][m], n1, xs);
          }
        }
        v0 = n0;
        v1 = n1;
      }
      step = unit * kInBlock + to;
    }
  }

  template <int M>
  LOWBIT_INLINE void base3_sums(const uint8_t* codes, const int8_t* x, int64_t ldx, int64_t step, int64_t end,
                                const int32_t* code_sums, int64_t stride, Int (&sum)[2][M]) {
    constexpr int64_t kStepsPerWiden = kFractions ? int64_t{1} << 30 : Dot::kSteps;
    for (int m = 0; m < M; ++m) sum[0][m] = sum[1][m] = S::broadcast32(code_sums + m * stride);
    for (; step < end; step += kStepsPerWiden) {
      Int a[2][M], b[2][M];
      for (int m = 0; m < M; ++m) a[0][m] = a[1][m] = b[0][m] = b[1][m] = S::zero();
      add_base3<M>(codes, x, ldx, step, smaller(step + kStepsPerWiden, end), a, b);
      for (int m = 0; m < M; ++m)
        for (int v = 0; v < 2; ++v) {
          Int part = Dot::widen(a[v][m]);
          if constexpr (kFractions)
            part = S::shift_right_signed32(S::sub32(S::add32(part, S::add32(part, part)), b[v][m]), 8);
          sum[v][m] = S::add32(sum[v][m], part);
        }
    }
  }

  /// part[c][v][m] += the products of units [unit, end) with M rows of x, `x` at column 0 of the first. kStarts: sums
  /// of chain 0 are zero, and are written where there are products: no addition for the first of them.
  template <class Codes, int M, bool kStarts = false>
  LOWBIT_INLINE void add_products(const uint8_t* codes, const History& history, const Levels& levels, const int8_t* x,
                                  int64_t ldx, int64_t unit, int64_t end, Int (&part)[S::template kChains<M>][2][M]) {
    if constexpr (__is_same(Codes, Steps)) {
      add_steps<M>(codes, history, levels, x, ldx, unit, end, part);
    } else {
      if constexpr (kStarts) {
        if (unit < end) add_unit<Codes, M, true>(codes, history, levels, x, ldx, unit++, part);
      }
      for (; unit < end; ++unit) add_unit<Codes, M, false>(codes, history, levels, x, ldx, unit, part);
    }
  }
  /// Steps [step, end); the first and the last block may have others, too.
  template <int M>
  LOWBIT_INLINE void add_steps(const uint8_t* codes, const History& history, const Levels& levels, const int8_t* x,
                               int64_t ldx, int64_t step, int64_t end, Int (&part)[S::template kChains<M>][2][M]) {
    constexpr int64_t kInBlock = Packed::kSteps;
    while (step < end) {
      const int64_t unit = step / kInBlock, from = step - unit * kInBlock,
                    to = smaller(kInBlock, end - unit * kInBlock);
      Blocks block;
      block.load(codes, unit, history);
      const int8_t* column = x + 4 * kInBlock * unit;
#pragma GCC unroll 8
      for (int s = 0; s < kInBlock; ++s) {
        if (s < from || s >= to) continue;
        const Int c0 = block.step(0, s, levels), c1 = block.step(1, s, levels);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const Int xs = S::broadcast4(column + 4 * s + m * ldx);
          Int(&sum)[2][M] = part[s % S::template kChains<M>];
          Dot::add_to(sum[0][m], c0, xs);
          Dot::add_to(sum[1][m], c1, xs);
        }
      }
      step = unit * kInBlock + to;
    }
  }
  template <class Codes, int M, bool kStarts>
  LOWBIT_INLINE void add_unit(const uint8_t* codes, const History& history, const Levels& levels, const int8_t* x,
                              int64_t ldx, int64_t unit, Int (&part)[S::template kChains<M>][2][M]) {
    Codes block;
    block.load(codes, unit, history);
#pragma GCC unroll 8
    for (int s = 0; s < Codes::kSteps; ++s) {
      const Int c0 = block.step(0, s, levels), c1 = block.step(1, s, levels);
      const int8_t* column = x + 4 * (unit * Codes::kSteps + s);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const Int xs = S::broadcast4(column + m * ldx);
        Int(&to)[2][M] = part[s % S::template kChains<M>];
        if constexpr (kStarts) {
          if (s == 0) {
            to[0][m] = Dot::first(c0, xs);
            to[1][m] = Dot::first(c1, xs);
            continue;
          }
        }
        Dot::add_to(to[0][m], c0, xs);
        Dot::add_to(to[1][m], c1, xs);
        S::pin(to[0][m], to[1][m]);
      }
    }
  }

  /// sum[v][m] = code_sums[m * stride] (where the format has an offset) + the products of units [unit, end).
  template <class Codes, int M>
  LOWBIT_INLINE void exact_sums(const uint8_t* codes, const History& history, const Levels& levels, const int8_t* x,
                                int64_t ldx, int64_t unit, int64_t end, const int32_t* code_sums, int64_t stride,
                                Int (&sum)[2][M]) {
    constexpr int kChains = S::template kChains<M>;  // sums per output, where the dot product's latency asks for them
    constexpr int64_t kUnitsPerWiden = Dot::kSteps / ((Codes::kSteps + kChains - 1) / kChains);
    static_assert(kUnitsPerWiden >= 1);
    Int part[kChains][2][M];
    for (int c = 0; c < kChains; ++c)
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
        part[c][0][m] = part[c][1][m] =
            !Dot::kWidens && c == 0 && kAdd != 0 ? S::broadcast32(code_sums + m * stride) : S::zero();
    add_products<Codes, M, (Dot::kWidens)>(codes, history, levels, x, ldx, unit,
                                           Dot::kWidens ? smaller(unit + kUnitsPerWiden, end) : end, part);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const Int first = Dot::kWidens && kAdd != 0 ? S::broadcast32(code_sums + m * stride) : S::zero();
      for (int v = 0; v < 2; ++v) {
        sum[v][m] = Dot::widen(part[0][v][m]);
        for (int c = 1; c < kChains; ++c) sum[v][m] = S::add32(sum[v][m], Dot::widen(part[c][v][m]));
        if (Dot::kWidens && kAdd != 0) sum[v][m] = S::add32(sum[v][m], first);
      }
    }
    if constexpr (Dot::kWidens) {
      while (__builtin_expect((unit += kUnitsPerWiden) < end, 0)) {
        for (int c = 0; c < kChains; ++c)
          for (int m = 0; m < M; ++m) part[c][0][m] = part[c][1][m] = S::zero();
        add_products<Codes, M>(codes, history, levels, x, ldx, unit, smaller(unit + kUnitsPerWiden, end), part);
        for (int c = 0; c < kChains; ++c)
          for (int m = 0; m < M; ++m)
            for (int v = 0; v < 2; ++v) sum[v][m] = S::add32(sum[v][m], Dot::widen(part[c][v][m]));
      }
    }
  }

  /// Fields of a word that segment_sums() multiplies where they lie, in sums of their own: shifts saved are more than
  /// what puts the sums together. With sums of 16 bits the fields of a nibble, so that a segment of 64 columns fits.
  template <int kColumns>
  static constexpr int fields_in_place() {
    constexpr int kBits = Codec::kBits, kUnits = kColumns / P::kBlockK;
    if constexpr (kBits == 4 && !Dot::kWidens) return 2;
    if constexpr (kBits > 2) return 1;
    constexpr int kFields = 4 / kBits, kSaved = kUnits * (Packed::kSteps - 2), kPaid = 2 * (kFields - 1);
    return kSaved > kPaid ? kFields : 1;
  }
  /// Sums of fields as they lie, those of field f times 2^(bits * f), into one of codes shifted by kUp.
  template <int kFields>
  LOWBIT_INLINE Int gathered(const Int (&part)[kFields][2], int v) {
    Int sum = part[kFields - 1][v];
    if constexpr (kFields > 1) {
      for (int f = kFields - 2; f > 0; --f) sum = Dot::add_sums(Dot::shift_sums(sum, Codec::kBits), part[f][v]);
      if constexpr (Codec::kBits > kUp) sum = Dot::shift_sums(sum, Codec::kBits - kUp);
      for (int i = 0; i < 1 << kUp; ++i) sum = Dot::add_sums(sum, part[0][v]);
    }
    return sum;
  }

  /// sum[v] = code_sums[0] (where the format has an offset, and kStart) + the products of kColumns columns, one row of
  /// x.
  template <int kColumns, bool kStart = true>
  LOWBIT_INLINE void segment_sums(const uint8_t* codes, const History& history, const Levels& levels, const int8_t* x,
                                  const int32_t* code_sums, Int (&sum)[2]) {
    constexpr int kUnits = kColumns / P::kBlockK, kSteps = Packed::kSteps, kFields = fields_in_place<kColumns>();
    constexpr int kPiece =
        kFields > 1 ? kUnits : int(smaller(kUnits, Dot::kSteps / kSteps));  // before sums are widened
    static_assert(kPiece >= 1 && kUnits % kPiece == 0);
    static_assert(kFields == 1 || !Dot::kWidens ||
                  (kSteps * kUnits / kFields) << (4 - Codec::kBits) <= Dot::kSteps << kUp);
    constexpr bool kStartsInField = !Dot::kWidens && (kFields == 1 || kUp == 0);  // one piece, and sums of int32
    const Int start = kStart && kAdd != 0 ? S::broadcast32(code_sums) : S::zero();
    sum[0] = sum[1] = start;
#pragma GCC unroll 8
    for (int from = 0; from < kUnits; from += kPiece) {
      Int part[kFields][2];
      for (int f = 0; f < kFields; ++f) part[f][0] = part[f][1] = kStartsInField && f == 0 ? start : S::zero();
      for (int u = from; u < from + kPiece; ++u) {
        Blocks block;
        block.load(codes, u, history);
#pragma GCC unroll 8
        for (int step = 0; step < kSteps; ++step) {
          const Int xs = S::broadcast4(x + 4 * (u * kSteps + step));
          Int(&to)[2] = part[step % kFields];
          for (int v = 0; v < 2; ++v) {
            if constexpr (kFields > 1)
              to[v] = Dot::add(to[v], Packed::template in_place<S>(block.words[v][0], step, kFields), xs);
            if constexpr (kFields == 1) to[v] = Dot::add(to[v], block.step(v, step, levels), xs);
          }
          S::pin(to[0], to[1]);
        }
      }
      for (int v = 0; v < 2; ++v) {
        const Int whole = Dot::widen(gathered<kFields>(part, v));
        sum[v] = kStartsInField ? whole : S::add32(sum[v], whole);
      }
    }
  }

  /// Columns that long_sums() takes at a time: as many as sums of 16 bits hold, and else what shifts at their end are
  /// little beside.
  static constexpr int kLongColumns = Dot::kWidens && Codec::kBits > 1 ? 64 : 128;
  static constexpr bool kLong = Codec::kBits != 3 && !kBase3 && P::kBlockK <= 32 && fields_in_place<kLongColumns>() > 1;

  /// exact_sums() of one row of x, fields multiplied where they lie.
  LOWBIT_INLINE void long_sums(const uint8_t* codes, const Levels& levels, const int8_t* x, int64_t ldx, int64_t unit,
                               int64_t end, const int32_t* code_sums, int64_t stride, Int (&sum)[2][1]) {
    constexpr int kUnits = kLongColumns / P::kBlockK;
    Int total[2] = {S::zero(), S::zero()};
    for (; unit + kUnits <= end; unit += kUnits) {
      Int part[2];
      segment_sums<kLongColumns, false>(codes + unit * P::kBlockBytes, {}, levels, x + unit * P::kBlockK, code_sums,
                                        part);
      for (int v = 0; v < 2; ++v) total[v] = S::add32(total[v], part[v]);
    }
    exact_sums<Blocks, 1>(codes, {}, levels, x, ldx, unit, end, code_sums, stride, sum);
    for (int v = 0; v < 2; ++v) sum[v][0] = S::add32(sum[v][0], total[v]);
  }

  /// What most layers are: whole segments of kColumns columns, scales in f16, no offsets. The order of tile(), without
  /// its branches and, without scales of x, without sums of a group: a segment is one. A function of its own, so that
  /// sums have all registers.
  template <class Codes, int M, int kColumns, bool kScales>
  __attribute__((noinline)) static void tile_of_segments(const MatmulArgs& a, const uint8_t* codes,
                                                         const Factors<S>& factors, int64_t n, int64_t m0) {
    constexpr int64_t kUnits = kColumns / (4 * Codes::kSteps);
    const PanelShape& s = a.shape;
    const int64_t gap = Codes::kStreams ? P::gap(s) : 0;
    const int64_t segments = s.segments, per_group = s.groups == 1 ? segments : s.group / kColumns;
    const int8_t* x = a.xq + m0 * a.ldxq;
    const int32_t* code_sums = a.code_sums + (kAdd != 0 ? m0 * segments : 0);
    const float* x_scales = kScales ? a.x_group_scale + m0 * segments : nullptr;
    const uint8_t* scales = factors.scales;
    const Levels levels = levels_of(a);
    Float acc[2][M], t[2][M];
    for (int m = 0; m < M; ++m) acc[0][m] = acc[1][m] = t[0][m] = t[1][m] = S::zero_f();
    for (int64_t j = 0; j < segments; scales += factors.stride) {
      Int sum[2][M];
      History history;
      if (kHistory && j > 0) history.before = codes - Codes::kBytes;
      codes += gap;
      for (const int64_t first = j, end = kScales ? smaller(j + per_group, segments) : j + 1; j < end; ++j) {
        if constexpr (M == 1 && Codes::kStreams) {
          Int one[2];
          segment_sums<kColumns>(codes, history, levels, x, code_sums, one);
          for (int v = 0; v < 2; ++v) sum[v][0] = one[v];
        } else {
          exact_sums<Codes, M>(codes, history, levels, x, a.ldxq, 0, kUnits, code_sums, segments, sum);
        }
        codes += kUnits * Codes::kBytes;
        if (kHistory) history.before = codes - Codes::kBytes;
        x += kColumns;
        if constexpr (kAdd != 0) ++code_sums;
        if constexpr (!kScales) continue;
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const Float xs = S::set_f(x_scales[m * segments + j]);
          for (int v = 0; v < 2; ++v) t[v][m] = S::fma(S::to_float(sum[v][m]), xs, j == first ? S::zero_f() : t[v][m]);
        }
      }
      if constexpr (Codes::kStreams) S::prefetch_ahead(scales + kAhead);
      for (int v = 0; v < 2; ++v) {
        const Float scale = S::load_f16(reinterpret_cast<const uint16_t*>(scales) + v * S::kLanes);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) acc[v][m] = S::fma(kScales ? t[v][m] : S::to_float(sum[v][m]), scale, acc[v][m]);
      }
    }
    for (int v = 0; v < 2; ++v)
      for (int m = 0; m < M; ++m) write_rows<S, Activation::kInt8>(a, m0 + m, n + v * S::kLanes, acc[v][m]);
  }

  /// Where that loop is worth its code: for one row of x, and for tiles of as many rows as most are.
  template <class Codes, int M>
  static constexpr bool kOneSize = !__is_same(Codes, Steps) && !__is_same(Codes, Base3Steps) &&
                                   (M == S::kFoldRows || (__is_same(Codes, Blocks) && (M == 1 || M == S::kTileRows)));

  /// True when tile_of_segments() has done it.
  template <class Codes, int M>
  static bool segments_of_one_size(const MatmulArgs& a, const uint8_t* codes, const Factors<S>& factors, int64_t n,
                                   int64_t m0) {
    const PanelShape& s = a.shape;
    const bool scales = a.x_group_scale != nullptr;
    if (s.offsets || !s.half_scales || s.segments == 1 || s.k % s.segment != 0) return false;
    if (s.segment == 64 && !scales) return tile_of_segments<Codes, M, 64, false>(a, codes, factors, n, m0), true;
    if (s.segment == 32 && scales) return tile_of_segments<Codes, M, 32, true>(a, codes, factors, n, m0), true;
    return false;
  }

  /// Rows [m0, m0 + M) of x times a panel; segments are whole units of Codes.
  template <class Codes, int M>
  static void tile(const MatmulArgs& a, const uint8_t* codes, const Factors<S>& factors, int64_t n, int64_t m0) {
    constexpr int64_t kUnitK = 4 * Codes::kSteps;
    if constexpr (kOneSize<Codes, M>) {
      if (segments_of_one_size<Codes, M>(a, codes, factors, n, m0)) return;
    }
    const PanelShape& s = a.shape;
    const int64_t ldx = a.ldxq, segments = s.segments, units = (s.k + kUnitK - 1) / kUnitK;
    const int64_t segment_units = segments == 1 ? units : s.segment / kUnitK;
    const int64_t group_segments = s.groups == 1 ? segments : s.group / s.segment;
    const int64_t gap = Codes::kStreams ? P::gap(s) : 0;
    const int8_t* x = a.xq + m0 * ldx;
    const int32_t* code_sums = a.code_sums + (kAdd != 0 ? m0 * segments : 0);
    const float* x_scales = a.x_group_scale != nullptr ? a.x_group_scale + m0 * segments : nullptr;
    const Levels levels = levels_of(a);
    Float acc[2][M];
    for (int m = 0; m < M; ++m) acc[0][m] = acc[1][m] = S::zero_f();
    int64_t j = 0;
    for (int64_t g = 0; g < s.groups; ++g) {
      History history;
      if (kHistory && gap > 0 && g > 0) {
        history.unit = g * P::group_blocks(s);
        history.before = codes + (history.unit - 1) * P::kBlockBytes;
      }
      codes += gap;
      Float t[2][M];
      for (int m = 0; m < M; ++m) t[0][m] = t[1][m] = S::zero_f();
      for (const int64_t last = smaller(j + group_segments, segments); j < last; ++j) {
        Int sum[2][M];
        const int64_t first = j * segment_units, end = smaller(first + segment_units, units);
        if constexpr (kBase3 && __is_same(Codes, Base3Steps)) {
          base3_sums<M>(codes, x, ldx, first, end, code_sums + j, segments, sum);
        } else if constexpr (kLong && M == 1 && __is_same(Codes, Blocks)) {
          long_sums(codes, levels, x, ldx, first, end, code_sums + j, segments, sum);
        } else {
          exact_sums<Codes, M>(codes, history, levels, x, ldx, first, end, code_sums + j, segments, sum);
        }
        if (x_scales != nullptr) {
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            const Float xs = S::set_f(x_scales[m * segments + j]);
            for (int v = 0; v < 2; ++v) t[v][m] = S::fma(S::to_float(sum[v][m]), xs, t[v][m]);
          }
        } else {
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m)
            for (int v = 0; v < 2; ++v) t[v][m] = S::to_float(sum[v][m]);
        }
      }
      // Codes prefetch as many lines as they are. Factors behind all codes, as with blocks of 20 columns, are a stream
      // of their own.
      if constexpr (Codes::kStreams) factors.prefetch(g, kAhead);
      if constexpr (Codes::kStreams && Codes::kSteps == 1 && P::kBlockK > 4) factors.prefetch(g, P::bytes(s));
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

  /// bytes[step][row][4] = codes (levels) of the whole panel.
  static void unpack_panel(const MatmulArgs& a, const uint8_t* panel, uint8_t* bytes) {
    const int64_t blocks = P::blocks(a.shape);
    const Levels levels = levels_of(a);
    typename P::Walk walk(a.shape, panel, 0);
    const uint8_t* before = kNoBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      Blocks block;
      const uint8_t* const at = walk.next();
      block.template load<false>(at, 0, {0, before});
      before = at;
      uint8_t* out = bytes + b * Packed::kSteps * kStepBytes;
#pragma GCC unroll 8
      for (int step = 0; step < Packed::kSteps; ++step)
        for (int v = 0; v < 2; ++v) S::store(out + step * kStepBytes + v * kStepBytes / 2, block.step(v, step, levels));
    }
  }

  /// All rows of x from m0 on, in tiles of at most M rows.
  template <class Codes, int M>
  static void tiles(const MatmulArgs& a, const uint8_t* codes, const Factors<S>& factors, int64_t n, int64_t m0) {
    for (; m0 + M <= a.m; m0 += M) tile<Codes, M>(a, codes, factors, n, m0);
    if constexpr (M > 1) {
      if (m0 < a.m) tiles<Codes, M - 1>(a, codes, factors, n, m0);
    }
  }

  static bool whole_blocks(const PanelShape& s) { return s.segments == 1 || s.segment % P::kBlockK == 0; }
  static bool direct(int64_t m, const PanelShape& s) {
    if (kBase3) return m <= kBase3Rows && s.segment <= kMaxFractionK;
    const int64_t most = kHistory ? 2 * S::kTileRows : S::kDirectRows;  // a trellis costs more to unpack again
    return m <= (whole_blocks(s) ? most : kStepsRows);
  }

  static int64_t scratch_bytes(int64_t m, const PanelShape& s) {
    if (m == 0) return relayout_scratch_bytes(P::kRows);
    return direct(m, s) ? 0 : P::blocks(s) * P::kBlockK * P::kRows;
  }

  /// All rows of x. Folding takes registers that sums would have.
  template <class Codes>
  static void all_rows(const MatmulArgs& a, const uint8_t* codes, const Factors<S>& factors, int64_t n) {
    if (a.shape.segments == 1 || a.m <= S::kTileRows) {
      tiles<Codes, S::kTileRows>(a, codes, factors, n, 0);
    } else {
      tiles<Codes, S::kFoldRows>(a, codes, factors, n, 0);
    }
  }

  static void run(const MatmulArgs& a) {
    if (a.m == 0) return;
    const int64_t bytes = P::bytes(a.shape);
    const bool in_registers = direct(a.m, a.shape);
    if (in_registers) prefetch_first(a.w + a.n0 / P::kRows * bytes);
    for (int64_t n = a.n0; n < a.n1; n += P::kRows) {
      const uint8_t* panel = a.w + n / P::kRows * bytes;
      const Factors<S> factors = factors_of<S, F>(panel, a.shape);
      if (in_registers) {
        if constexpr (kBase3) {
          tiles<Base3Steps, int(kBase3Rows)>(a, panel, factors, n, 0);
        } else if (whole_blocks(a.shape)) {
          all_rows<Blocks>(a, panel, factors, n);
        } else if constexpr (kPartialBlocks) {
          tiles<Steps, int(kStepsRows)>(a, panel, factors, n, 0);
        }
      } else {
        unpack_panel(a, panel, a.scratch);
        all_rows<Bytes>(a, a.scratch, factors, n);
      }
    }
  }

  static constexpr KernelName kName = matmul_name(F::kName, Activation::kInt8, S::kTileName);
  static constexpr MatmulKernel kernel() {
    return {kName.text,
            "docs/kernels.md#integer-panels",
            F::kId,
            Activation::kInt8,
            kAdd,
            P::kRows,
            4,
            &P::bytes,
            &relayout_panel < S,
            F,
            kTable ? 0u : kFlip >
            , &scratch_bytes, &run, kTable};
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
