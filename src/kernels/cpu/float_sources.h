#pragma once
// Where the loops of kernels/cpu/float_matmul.h get weights from: panels of a packed format or of a dense one, as
// floats in chunks of columns, or in registers for one token.

#include <type_traits>

#include "kernels/cpu/panel.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Columns expanded at a time: whole blocks of every format (20 and 32 columns); of E4M3 whole groups of 128.
template <class F>
inline constexpr int64_t kChunkColumns = F::Codec::kKind == CodecKind::kFloat ? 256 : 160;

/// Packed formats: values[k - k0][row] of columns [k0, k0 + kChunkK) (fewer at the row's end).
template <class S, class F>
struct PackedSource {
  using P = Panel<S, F>;
  static constexpr int64_t kChunkK = kChunkColumns<F>;
  static_assert(kChunkK % P::kBlockK == 0);
  static constexpr FormatId kId = F::kId;
  static constexpr const char* kName = F::kName;
  static constexpr bool kScaled = true, kExpands = true;
  static constexpr int kColumnsInLane = 1, kTileRows = S::kFloatTileRows;
  static constexpr CodecKind kKind = F::Codec::kKind;
  /// E4M3: the four codes of a lane are decoded together. Codes that are NaN need not be: relayout() writes NaN to
  /// their row's scale, which has the same effect (docs/numerics.md: a NaN makes its whole row NaN).
  static constexpr bool kByStep = kKind == CodecKind::kFloat;
  using Table = std::conditional_t<kByStep, typename S::E4m3Table, typename S::Table>;

  LOWBIT_INLINE typename S::Float value(typename S::Int code, const typename S::Table& table) {
    if constexpr (kKind == CodecKind::kTable) {
      return S::look_up(table, code);
    } else {  // small integers: every step is exact
      typename S::Float v = S::to_float(code);
      if constexpr (F::Codec::kMul != 1) v = S::mul_f(v, S::set_f(F::Codec::kMul));
      return S::add_f(v, S::set_f(F::Codec::kAdd));
    }
  }

  static const float* values(const MatmulArgs& a, const uint8_t* panel, int64_t k0, float* out) {
    using Packed = typename P::Packed;
    Table table = {};
    if constexpr (kKind == CodecKind::kTable) table = S::load_table(a.table);
    if constexpr (kByStep) table = S::e4m3_table();
    const int64_t first = k0 / P::kBlockK, last = smaller(first + kChunkK / P::kBlockK, P::blocks(a.shape));
    typename P::BlockIterator blocks(a.shape, panel, first);
    float* to = out;
    for (int64_t b = first; b < last; ++b) {
      const uint8_t* block = blocks.next();
      for (int v = 0; v < 2; ++v) {
        typename S::Int words[Packed::kWords];
        for (int w = 0; w < Packed::kWords; ++w) words[w] = S::load(block + 4 * (w * P::kRows + v * S::kLanes));
        S::prefetch(block + 2048);
        if constexpr (kByStep) {
          typename S::Float columns[4];
          S::e4m3(table, words[0], columns);
          for (int j = 0; j < 4; ++j) S::store_f(to + j * P::kRows + v * S::kLanes, columns[j]);
        } else {
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
      }
      to += P::kBlockK * P::kRows;
    }
    return out;
  }

  /// Columns of one vector of rows, for one token: a pack is a block.
  static constexpr int kPackK = P::kBlockK;
  static constexpr bool kDirect = F::kId != FormatId::kTernaryPacked;
  static constexpr int kBits = F::Codec::kBits;
  /// A look-up in a short table is one instruction and takes no mask: small integers take that way, too.
  static constexpr bool kShortTable = kKind != CodecKind::kFloat && kBits <= S::kTableBits;
  LOWBIT_INLINE Table pack_table(const MatmulArgs& a) {
    if constexpr (kByStep) return S::e4m3_table();
    if constexpr (kShortTable) {
      float values[16];
      for (int i = 0; i < 16; ++i) {
        const int code = i & ((1 << kBits) - 1);
        if constexpr (kKind == CodecKind::kTable) values[i] = a.table[code];
        if constexpr (kKind == CodecKind::kInteger) values[i] = float(F::Codec::kMul * code + F::Codec::kAdd);
      }
      return S::load_table(values);
    }
    Table table = {};
    if constexpr (kKind == CodecKind::kTable) table = S::load_table(a.table);
    return table;
  }
  struct Pack {
    typename S::Int words[P::Packed::kWords];
  };
  LOWBIT_INLINE Pack load_pack(const uint8_t* panel, int64_t pack, int v) {
    Pack u;
    const uint8_t* block = panel + pack * P::kBlockBytes;
    for (int w = 0; w < P::Packed::kWords; ++w) {
      if (v == 0) S::prefetch(block + 4 * w * P::kRows + 1024);
      u.words[w] = S::load(block + 4 * (w * P::kRows + v * S::kLanes));
    }
    return u;
  }
  LOWBIT_INLINE void step(const Pack& u, const Table& table, typename S::Float (&columns)[4]) {
    S::e4m3(table, u.words[0], columns);
  }
  LOWBIT_INLINE typename S::Float column(const Pack& u, int c, const Table& table) {
    const typename S::Int code = P::Packed::template column<S, !kShortTable>(u.words, c);
    if constexpr (kShortTable) return S::look_up_short(table, code);
    return value(code, table);
  }

  static int64_t bytes(const PanelShape& s) { return P::bytes(s); }
  static int64_t gap(const PanelShape& s) { return P::gap(s); }
  static Factors<S> factors(const uint8_t* panel, const PanelShape& s) { return factors_of<S, F>(panel, s); }
  static void relayout(const CanonicalRows& rows, const PanelShape& s, uint8_t* panel, uint8_t* scratch) {
    if constexpr (kKind == CodecKind::kInteger) {
      relayout_panel<S, F, F::Codec::kFlip>(rows, s, panel, scratch);
    } else {
      relayout_panel<S, F, 0>(rows, s, panel, scratch);
    }
    if constexpr (kByStep) finish_e4m3(rows, s, panel);
  }

  /// Codes in the order that S::e4m3() wants, and NaN for the scales of rows with a NaN.
  static void finish_e4m3(const CanonicalRows& rows, const PanelShape& s, uint8_t* panel) {
    typename P::BlockIterator blocks(s, panel, 0);
    for (int64_t b = 0; b < P::blocks(s); ++b) {
      uint8_t* const block = panel + (blocks.next() - panel);
      for (int64_t at = 0; at < P::kBlockBytes; at += 4 * S::kLanes)
        S::store(block + at, S::e4m3_order(S::load(block + at)));
    }
    constexpr float kNan = __builtin_nanf("");
    for (int64_t r = 0; s.groups > 0 && r < rows.rows; ++r) {
      const uint8_t* const codes = rows.codes + r * rows.row_stride_bytes;
      uint8_t nan = 0;
      for (int64_t k = 0; k < rows.columns; ++k) nan |= uint8_t((codes[k] & 0x7f) == 0x7f);
      if (nan == 0) continue;  // the first group's scale reaches all sums behind it
      uint8_t* const scales = panel + P::factors_at(s);
      if (s.double_scales) store_column(&kNan, 1, r, 0, true, panel + P::supers_at(s));
      if (!s.double_scales) store_column(&kNan, 1, r, 0, s.half_scales, scales);
    }
  }
};

/// fp8 as bf16, two columns in a lane: what x is, too, when both operands have E4M3's few bits. S::add_pairs() adds the
/// first column's product and then the second's.
template <class S>
struct PairedFp8 : PackedSource<S, Fp8> {
  using Base = PackedSource<S, Fp8>;
  using P = typename Base::P;
  static constexpr int kColumnsInLane = 2, kTileRows = S::kFloatTileRows;

  static const float* values(const MatmulArgs& a, const uint8_t* panel, int64_t k0, float* out) {
    const typename Base::Table table = S::e4m3_table();
    const int64_t first = k0 / P::kBlockK, last = smaller(first + Base::kChunkK / P::kBlockK, P::blocks(a.shape));
    typename P::BlockIterator blocks(a.shape, panel, first);
    float* to = out;
    for (int64_t b = first; b < last; ++b, to += P::kBlockK / 2 * P::kRows) {
      const uint8_t* block = blocks.next();
      for (int v = 0; v < 2; ++v) {
        S::prefetch(block + 64 * v + 2048);
        typename S::Float pairs[2];
        S::e4m3_pairs(table, S::load(block + 4 * v * S::kLanes), pairs);
        for (int i = 0; i < 2; ++i) S::store_f(to + i * P::kRows + v * S::kLanes, pairs[i]);
      }
    }
    return out;
  }
  LOWBIT_INLINE void step(const typename Base::Pack& u, const typename Base::Table& table,
                          typename S::Float (&pairs)[2]) {
    S::e4m3_pairs(table, u.words[0], pairs);
  }
};

/// Dense formats: elements [k][row], no scales.
template <class S, FormatId Id>
struct DenseSource {
  static constexpr FormatId kId = Id;
  static constexpr const char* kName = Id == FormatId::kF32 ? "f32" : Id == FormatId::kF16 ? "f16" : "bf16";
  static constexpr bool kScaled = false, kExpands = Id != FormatId::kF32;
  static constexpr int kColumnsInLane = 1, kTileRows = S::kFloatTileRows;
  static constexpr int64_t kChunkK = 160;
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

  static constexpr int kPackK = 4;
  static constexpr bool kDirect = true, kByStep = false;
  struct Table {};
  LOWBIT_INLINE Table pack_table(const MatmulArgs&) { return {}; }
  struct Pack {
    const uint8_t* from;
  };
  LOWBIT_INLINE Pack load_pack(const uint8_t* panel, int64_t pack, int v) {
    const uint8_t* from = panel + (pack * kPackK * kRows + v * S::kLanes) * kElementBytes;
    if (v == 0)
      for (int c = 0; c < kPackK; ++c) S::prefetch(from + c * kRows * kElementBytes + 2048);
    return {from};
  }
  LOWBIT_INLINE typename S::Float column(const Pack& u, int c, const Table&) {
    const uint8_t* from = u.from + c * kRows * kElementBytes;
    if constexpr (Id == FormatId::kF32) return S::load_f(reinterpret_cast<const float*>(from));
    if constexpr (Id == FormatId::kF16) return S::load_f16(reinterpret_cast<const uint16_t*>(from));
    return S::load_bf16(reinterpret_cast<const uint16_t*>(from));
  }

  static int64_t bytes(const PanelShape& s) { return round_up_to(s.k * kRows * kElementBytes, 64); }
  static int64_t gap(const PanelShape&) { return 0; }
  static Factors<S> factors(const uint8_t*, const PanelShape&) { return {}; }
  static void relayout(const CanonicalRows& rows, const PanelShape& s, uint8_t* panel, uint8_t*) {
    for (int64_t k = 0; k < s.k; ++k)
      for (int64_t r = 0; r < rows.rows; ++r)
        __builtin_memcpy(panel + (k * kRows + r) * kElementBytes,
                         rows.codes + r * rows.row_stride_bytes + k * kElementBytes, kElementBytes);
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
