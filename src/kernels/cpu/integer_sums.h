#pragma once
// Exact sums of products in int32: packs of one of the sources of kernels/cpu/integer_codes.h times M tokens.

#include "kernels/cpu/integer_codes.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class S, class Codes>
struct IntegerSums {
  using Int = typename S::Int;
  using Dot = typename Codes::Dot;
  using Lookup = typename Codes::Lookup;
  template <int M>
  using Parts = Int[S::template kChains<M>][2][M];

  /// part[c][v][m] += the products of packs [pack, end) with M tokens, `x` at column 0 of the first. kStarts: sums
  /// of chain 0 are zero, and are written where there are products: no addition for the first of them.
  template <int M, bool kStarts = false>
  LOWBIT_INLINE void add_products(const uint8_t* codes, const History& history, const Lookup& lookup, const int8_t* x,
                                  int64_t ldx, int64_t pack, int64_t end, Parts<M>& part) {
    if constexpr (!Codes::kWholeBlocks && Codes::kStreams) {
      add_steps<M>(codes, history, lookup, x, ldx, pack, end, part);
    } else {
      if constexpr (kStarts) {
        if (pack < end) add_pack<M, true>(codes, history, lookup, x, ldx, pack++, part);
      }
      for (; pack < end; ++pack) add_pack<M, false>(codes, history, lookup, x, ldx, pack, part);
    }
  }
  /// Steps [step, end); the first and the last block may have others, too.
  template <int M>
  LOWBIT_INLINE void add_steps(const uint8_t* codes, const History& history, const Lookup& lookup, const int8_t* x,
                               int64_t ldx, int64_t step, int64_t end, Parts<M>& part) {
    using Blocks = typename Codes::Blocks;
    constexpr int64_t kInBlock = Blocks::kSteps;
    while (step < end) {
      const int64_t pack = step / kInBlock, from = step - pack * kInBlock,
                    to = smaller(kInBlock, end - pack * kInBlock);
      Blocks block;
      block.load(codes, pack, history);
      const int8_t* column = x + 4 * kInBlock * pack;
#pragma GCC unroll 8
      for (int s = 0; s < kInBlock; ++s) {
        if (s < from || s >= to) continue;
        const Int c0 = block.step(0, s, lookup), c1 = block.step(1, s, lookup);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const Int xs = S::broadcast4(column + 4 * s + m * ldx);
          Int(&sum)[2][M] = part[s % S::template kChains<M>];
          Dot::add_to(sum[0][m], c0, xs);
          Dot::add_to(sum[1][m], c1, xs);
        }
      }
      step = pack * kInBlock + to;
    }
  }
  template <int M, bool kStarts>
  LOWBIT_INLINE void add_pack(const uint8_t* codes, const History& history, const Lookup& lookup, const int8_t* x,
                              int64_t ldx, int64_t pack, Parts<M>& part) {
    Codes block;
    block.load(codes, pack, history);
#pragma GCC unroll 8
    for (int s = 0; s < Codes::kSteps; ++s) {
      const Int c0 = block.step(0, s, lookup), c1 = block.step(1, s, lookup);
      const int8_t* column = x + 4 * (pack * Codes::kSteps + s);
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

  /// sum[v][m] = code_sums[m * stride] (where the format has an offset) + the products of packs [pack, end).
  template <int M>
  LOWBIT_INLINE void exact(const uint8_t* codes, const History& history, const Lookup& lookup, const int8_t* x,
                           int64_t ldx, int64_t pack, int64_t end, const int32_t* code_sums, int64_t stride,
                           Int (&sum)[2][M]) {
    constexpr int kChains = S::template kChains<M>;  // sums per output, where the dot product's latency asks for them
    constexpr int64_t kPacksPerWiden = Dot::kSteps / ((Codes::kSteps + kChains - 1) / kChains);
    static_assert(kPacksPerWiden >= 1);
    Int part[kChains][2][M];
    for (int c = 0; c < kChains; ++c)
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
        part[c][0][m] = part[c][1][m] =
            !Dot::kWidens && c == 0 && Codes::kAdds ? S::broadcast32(code_sums + m * stride) : S::zero();
    add_products<M, (Dot::kWidens)>(codes, history, lookup, x, ldx, pack,
                                    Dot::kWidens ? smaller(pack + kPacksPerWiden, end) : end, part);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const Int first = Dot::kWidens && Codes::kAdds ? S::broadcast32(code_sums + m * stride) : S::zero();
      for (int v = 0; v < 2; ++v) {
        sum[v][m] = Dot::widen(part[0][v][m]);
        for (int c = 1; c < kChains; ++c) sum[v][m] = S::add32(sum[v][m], Dot::widen(part[c][v][m]));
        if (Dot::kWidens && Codes::kAdds) sum[v][m] = S::add32(sum[v][m], first);
      }
    }
    if constexpr (Dot::kWidens) {
      while (__builtin_expect((pack += kPacksPerWiden) < end, 0)) {
        for (int c = 0; c < kChains; ++c)
          for (int m = 0; m < M; ++m) part[c][0][m] = part[c][1][m] = S::zero();
        add_products<M>(codes, history, lookup, x, ldx, pack, smaller(pack + kPacksPerWiden, end), part);
        for (int c = 0; c < kChains; ++c)
          for (int m = 0; m < M; ++m)
            for (int v = 0; v < 2; ++v) sum[v][m] = S::add32(sum[v][m], Dot::widen(part[c][v][m]));
      }
    }
  }
};

/// One token times whole packs of a BlockCodes: fields of a word are multiplied where they lie, in sums of their
/// own, where shifts saved are more than what puts the sums together.
template <class S, class Codes>
struct RowSums {
  using Int = typename S::Int;
  using Dot = typename Codes::Dot;
  using Packed = typename Codes::Packed;
  using Codec = typename Codes::Codec;
  using Lookup = typename Codes::Lookup;
  static constexpr int kUp = Codes::kUp, kPackK = 4 * Codes::kSteps;
  static constexpr int64_t kBytes = Codes::kBytes;

  /// With sums of 16 bits the fields of a nibble, so that a group of 64 columns fits.
  template <int kColumns>
  static constexpr int fields_in_place() {
    constexpr int kBits = Codec::kBits, kPacks = kColumns / kPackK;
    if constexpr (kBits == 4 && !Dot::kWidens) return 2;
    if constexpr (kBits > 2) return 1;
    constexpr int kFields = 4 / kBits, kSaved = kPacks * (Packed::kSteps - 2), kPaid = 2 * (kFields - 1);
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

  /// sum[v] = code_sums[0] (where the format has an offset, and kStart) + the products of kColumns columns.
  template <int kColumns, bool kStart = true>
  LOWBIT_INLINE void of_columns(const uint8_t* codes, const History& history, const Lookup& lookup, const int8_t* x,
                                const int32_t* code_sums, Int (&sum)[2]) {
    constexpr int kPacks = kColumns / kPackK, kSteps = Packed::kSteps, kFields = fields_in_place<kColumns>();
    constexpr int kPiece =
        kFields > 1 ? kPacks : int(smaller(kPacks, Dot::kSteps / kSteps));  // before sums are widened
    static_assert(kPiece >= 1 && kPacks % kPiece == 0);
    static_assert(kFields == 1 || !Dot::kWidens ||
                  (kSteps * kPacks / kFields) << (4 - Codec::kBits) <= Dot::kSteps << kUp);
    constexpr bool kStartsInField = !Dot::kWidens && (kFields == 1 || kUp == 0);  // one piece, and sums of int32
    const Int start = kStart && Codes::kAdds ? S::broadcast32(code_sums) : S::zero();
    sum[0] = sum[1] = start;
#pragma GCC unroll 8
    for (int from = 0; from < kPacks; from += kPiece) {
      Int part[kFields][2];
      for (int f = 0; f < kFields; ++f) part[f][0] = part[f][1] = kStartsInField && f == 0 ? start : S::zero();
      for (int u = from; u < from + kPiece; ++u) {
        Codes block;
        block.load(codes, u, history);
#pragma GCC unroll 8
        for (int step = 0; step < kSteps; ++step) {
          const Int xs = S::broadcast4(x + 4 * (u * kSteps + step));
          Int(&to)[2] = part[step % kFields];
          for (int v = 0; v < 2; ++v) {
            if constexpr (kFields > 1)
              to[v] = Dot::add(to[v], Packed::template in_place<S>(block.words[v][0], step, kFields), xs);
            if constexpr (kFields == 1) to[v] = Dot::add(to[v], block.step(v, step, lookup), xs);
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

  /// Columns that long_row() takes at a time: as many as sums of 16 bits hold, and else what shifts at their end are
  /// little beside.
  static constexpr int kLongColumns = Dot::kWidens && Codec::kBits > 1 ? 64 : 128;
  static constexpr bool kLong =
      Codec::kBits != 3 && !Codes::C::kBase3 && kPackK <= 32 && fields_in_place<kLongColumns>() > 1;

  /// IntegerSums::exact() of one token.
  LOWBIT_INLINE void long_row(const uint8_t* codes, const Lookup& lookup, const int8_t* x, int64_t ldx, int64_t pack,
                              int64_t end, const int32_t* code_sums, int64_t stride, Int (&sum)[2][1]) {
    constexpr int kPacks = kLongColumns / kPackK;
    Int total[2] = {S::zero(), S::zero()};
    for (; pack + kPacks <= end; pack += kPacks) {
      Int part[2];
      of_columns<kLongColumns, false>(codes + pack * kBytes, Codes::no_history(), lookup, x + pack * kPackK, code_sums,
                                      part);
      for (int v = 0; v < 2; ++v) total[v] = S::add32(total[v], part[v]);
    }
    IntegerSums<S, Codes>::template exact<1>(codes, Codes::no_history(), lookup, x, ldx, pack, end, code_sums, stride,
                                             sum);
    for (int v = 0; v < 2; ++v) sum[v][0] = S::add32(sum[v][0], total[v]);
  }
};

/// Products of a Base3Codes. vpdpbusd takes any byte: then digits never come out of theirs. With the fraction v of a
/// byte (kernels/cpu/panel.h) its next digit is (3 v - v') / 256, v' = 3 v mod 256 the fraction behind it, so sum digit
/// * x = (3 sum v * x - sum v' * x) / 256.
template <class S, class Codes>
struct Base3Sums {
  using Int = typename S::Int;
  using Dot = typename Codes::Dot;
  using Packed = typename Codes::Packed;
  using P = typename Codes::P;
  static constexpr int64_t kStepBytes = Codes::C::kStepBytes;
  static constexpr bool kFractions = !Dot::kWidens;
  static constexpr int64_t kMostRows = kFractions ? 3 : 2;  // of x, for which digits need not be stored first
  static constexpr int64_t kMaxFractionK = 32768;           // 256 * 2 * 127 * k < 2^31

  /// a += the products of steps [step, end), or of fractions v, then b those of fractions v'.
  template <int M>
  LOWBIT_INLINE void add(const uint8_t* codes, const int8_t* x, int64_t ldx, int64_t step, int64_t end, Int (&a)[2][M],
                         Int (&b)[2][M]) {
    constexpr int64_t kInBlock = Packed::kSteps;
    while (step < end) {
      const int64_t pack = step / kInBlock, from = step - pack * kInBlock,
                    to = smaller(kInBlock, end - pack * kInBlock);
      const uint8_t* block = codes + pack * P::kBlockBytes;
      S::prefetch_ahead(block + S::kAhead);
      Int v0 = S::load(block), v1 = S::load(block + kStepBytes / 2);
      const int8_t* column = x + 4 * kInBlock * pack;
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
      step = pack * kInBlock + to;
    }
  }

  /// IntegerSums::exact() of steps.
  template <int M>
  LOWBIT_INLINE void exact(const uint8_t* codes, const int8_t* x, int64_t ldx, int64_t step, int64_t end,
                           const int32_t* code_sums, int64_t stride, Int (&sum)[2][M]) {
    constexpr int64_t kStepsPerWiden = kFractions ? int64_t{1} << 30 : Dot::kSteps;
    for (int m = 0; m < M; ++m) sum[0][m] = sum[1][m] = S::broadcast32(code_sums + m * stride);
    for (; step < end; step += kStepsPerWiden) {
      Int a[2][M], b[2][M];
      for (int m = 0; m < M; ++m) a[0][m] = a[1][m] = b[0][m] = b[1][m] = S::zero();
      add<M>(codes, x, ldx, step, smaller(step + kStepsPerWiden, end), a, b);
      for (int m = 0; m < M; ++m)
        for (int v = 0; v < 2; ++v) {
          Int part = Dot::widen(a[v][m]);
          if constexpr (kFractions)
            part = S::shift_right_signed32(S::sub32(S::add32(part, S::add32(part, part)), b[v][m]), 8);
          sum[v][m] = S::add32(sum[v][m], part);
        }
    }
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
