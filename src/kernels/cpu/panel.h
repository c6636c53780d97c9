#pragma once
// The device layout of packed weights on CPUs, shared by GEMV, GEMM and the f32 path, for any vector width.
//
// A panel is 2 * S::kLanes weight rows side by side. A step is four columns: their codes of one row fill the four bytes
// of a 32-bit lane. A block packs kSteps steps into kWords words per row, so that each vector load brings the same
// columns of S::kLanes rows and a step comes out with a shift and a mask:
//   word w of row r lies at 4 * (w * kRows + r) in its block.
// A group's factors are its scales [rows] in f32, f16 or int8, and offsets likewise behind them. They lie before the
// group's codes, so that one token reads one stream, which prefetches and hardware follow; behind all codes where a
// row is one group or blocks span two.

#include <cstdint>

#include "base/float.h"
#include "format/formats.h"
#include "format/registry.h"
#include "kernels/api.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

constexpr int64_t round_up_to(int64_t a, int64_t b) { return (a + b - 1) / b * b; }
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// Bits that divide 8: field s of the word's bytes is step s. Steps come out shifted left by Up bits (0 or 1); bits
/// above a code are zero where kMasked.
template <int Bits>
struct Fields {
  static constexpr int kSteps = 8 / Bits, kWords = 1;
  static void put(uint32_t* words, int step, uint32_t codes) { words[0] |= codes << (Bits * step); }
  template <class S, int Up = 0, bool kMasked = true>
  LOWBIT_INLINE typename S::Int step(const typename S::Int* words, int s) {
    if constexpr (Bits == 8) return words[0];
    const typename S::Int codes = moved<S>(words[0], Bits * s - Up);
    return kMasked ? S::and_(codes, S::set8(((1 << Bits) - 1) << Up)) : codes;
  }
  /// Field s of a word as it lies, or behind one shift by four bits: the codes of step s times 2^(Bits * (s % fields)),
  /// with as many `fields` as one mask each can tell apart, those of a nibble or of the byte.
  template <class S>
  LOWBIT_INLINE typename S::Int in_place(typename S::Int word, int s, int fields) {
    const int from = Bits * s, down = from - Bits * (s % fields);
    return S::and_(moved<S>(word, down), S::set8(((1 << Bits) - 1) << (from - down)));
  }
  /// The codes of column c of the block, one a lane; bits above them are kept unless kMasked.
  template <class S, bool kMasked>
  LOWBIT_INLINE typename S::Int column(const typename S::Int* words, int c) {
    const int down = 8 * (c % 4) + Bits * (c / 4);
    const typename S::Int code = down == 0 ? words[0] : S::shift_right32(words[0], down);
    return kMasked ? S::and_(code, S::set32((1 << Bits) - 1)) : code;
  }
  template <class S>
  LOWBIT_INLINE typename S::Int moved(typename S::Int word, int down) {
    return down == 0 ? word : down > 0 ? S::shift_right16(word, down) : S::shift_left16(word, -down);
  }
};

/// Three bits as two words of 2-bit fields and one of 1-bit fields.
template <>
struct Fields<3> {
  static constexpr int kSteps = 8, kWords = 3;
  static void put(uint32_t* words, int step, uint32_t codes) {
    words[step / 4] |= (codes & 0x03030303u) << (2 * (step % 4));
    words[2] |= ((codes >> 2) & 0x01010101u) << step;
  }
  template <class S, int Up = 0, bool kMasked = true>
  LOWBIT_INLINE typename S::Int step(const typename S::Int* words, int s) {
    const typename S::Int low = Fields<2>::moved<S>(words[s / 4], 2 * (s % 4) - Up);
    const typename S::Int high = Fields<2>::moved<S>(words[2], s - 2 - Up);
    if constexpr (!kMasked) return S::choose(S::set8(4 << Up), high, low);
    return S::or_(S::and_(low, S::set8(3 << Up)), S::and_(high, S::set8(4 << Up)));
  }
  template <class S, bool kMasked>
  LOWBIT_INLINE typename S::Int column(const typename S::Int* words, int c) {
    const int s = c / 4, byte = 8 * (c % 4), down = byte + s - 2;
    const typename S::Int low = S::and_(S::shift_right32(words[s / 4], byte + 2 * (s % 4)), S::set32(3));
    const typename S::Int high = down < 0 ? S::shift_left32(words[2], -down) : S::shift_right32(words[2], down);
    return S::or_(low, S::and_(high, S::set32(4)));
  }
};

/// Five ternary digits a byte, as in the canonical Base3x5: digit s of each byte is step s.
struct Base3Fields {
  static constexpr int kSteps = 5, kWords = 1;
  static void put(uint32_t* words, int step, uint32_t codes) {
    constexpr uint32_t kPow3[5] = {81, 27, 9, 3, 1};
    words[0] += codes * kPow3[step];  // base-3 numbers for now: at most 242 a byte, no carry
  }
  static void finish(uint32_t* words) {  // number -> fraction
    uint32_t fractions = 0;
    for (int byte = 0; byte < 4; ++byte) {
      const uint32_t number = (words[0] >> (8 * byte)) & 0xffu;
      fractions |= (number * 256 + 242) / 243 << (8 * byte);
    }
    words[0] = fractions;
  }
  template <class S, int Up = 0>
  LOWBIT_INLINE typename S::Int step(const typename S::Int* words, int s) {
    static_assert(Up == 0);
    typename S::Int v = words[0];
    for (int i = 0; i < s; ++i) v = S::add8(v, S::add8(v, v));  // the fraction of 3 v
    return S::base3_digit(v);
  }
  template <class S, bool kMasked>
  static typename S::Int column(const typename S::Int* words, int c);  // never used: its blocks fit no group
};

/// The stored bits of trellis2, 16 columns of a row in a word in their order. A code depends on its own two bits and
/// the six before them: eight bits in a row, which for the first columns begin in the word before. words[1]: the word
/// moved up by a byte, below it that word's last.
struct TrellisFields {
  static constexpr int kSteps = 4, kWords = 1;
  static void put(uint32_t* words, int step, uint32_t codes) {
    words[0] |= ((codes | codes >> 6 | codes >> 12 | codes >> 18) & 0xffu) << (8 * step);
  }
  /// Bit a of the result's code: the parity of these bits of the eight, oldest lowest, where Trellis<2>::mask() has the
  /// newest lowest.
  static constexpr uint64_t kBits = [] {
    uint64_t rows = 0;
    for (int a = 0; a < 4; ++a)
      for (int i = 0; i < 8; ++i)
        rows |= uint64_t(Trellis<2>::mask(a) >> i & 1u) << (8 * (7 - a) + 2 * (3 - i / 2) + i % 2);
    return rows;
  }();
  template <class S, int Up = 0, bool kMasked = true>
  LOWBIT_INLINE typename S::Int step(const typename S::Int* words, int s) {
    return s < 3 ? S::parities(S::bits_of_bytes(words[1], 2 + 8 * s), kBits)
                 : S::parities(S::bits_of_bytes(words[0], 18), kBits);
  }
};

template <class F>
struct FieldsOf {
  using type = Fields<F::kBits>;
};
template <>
struct FieldsOf<Trellis2> {
  using type = TrellisFields;
};
template <>
struct FieldsOf<TernaryPacked> {
  using type = Base3Fields;
};

/// Where things lie in a panel of format F on vectors S.
template <class S, class F>
struct Panel {
  using Packed = typename FieldsOf<F>::type;
  static constexpr int kRows = 2 * S::kLanes;
  static constexpr int kBlockK = 4 * Packed::kSteps;
  static constexpr int64_t kBlockBytes = 4 * Packed::kWords * kRows;

  static bool interleaved(const PanelShape& s) { return s.groups > 1 && s.group % kBlockK == 0; }
  static int64_t blocks(const PanelShape& s) { return (s.k + kBlockK - 1) / kBlockK; }
  static int64_t group_blocks(const PanelShape& s) { return interleaved(s) ? s.group / kBlockK : blocks(s); }
  static int64_t scale_bytes(const PanelShape& s) { return kRows * (s.double_scales ? 1 : s.half_scales ? 2 : 4); }
  static int64_t factor_bytes(const PanelShape& s) {
    const int64_t bytes = scale_bytes(s) + kRows * (!s.offsets ? 0 : s.half_offsets ? 2 : 4);
    return interleaved(s) ? round_up_to(bytes, 2 * kRows) : bytes;  // codes stay aligned to vectors
  }
  /// f16 factors of int8 scales, [ceil(groups / kSuperGroups)][rows]: behind everything else.
  static int64_t supers_at(const PanelShape& s) {
    return round_up_to(round_up_to(blocks(s) * kBlockBytes, 64) + s.groups * factor_bytes(s), 64);
  }
  static int64_t super_bytes(const PanelShape& s) {
    return s.double_scales ? 2 * kRows * ((s.groups + kSuperGroups - 1) / kSuperGroups) : 0;
  }
  /// Bytes between the codes of one group and the next, and before the first: block b of group g begins at b blocks and
  /// g + 1 gaps.
  static int64_t gap(const PanelShape& s) { return interleaved(s) ? factor_bytes(s) : 0; }
  static int64_t factors_at(const PanelShape& s) {
    return interleaved(s) ? 0 : round_up_to(blocks(s) * kBlockBytes, 64);
  }
  static int64_t factor_stride(const PanelShape& s) {
    return gap(s) + (interleaved(s) ? group_blocks(s) * kBlockBytes : factor_bytes(s));
  }
  static int64_t bytes(const PanelShape& s) { return round_up_to(supers_at(s) + super_bytes(s), 64); }

  /// The blocks of a panel in their order, from one of them on.
  class BlockIterator {
   public:
    BlockIterator(const PanelShape& s, const uint8_t* panel, int64_t block)
        : group_blocks_(group_blocks(s)), gap_(gap(s)) {
      const int64_t groups = gap_ > 0 ? block / group_blocks_ : 0;
      at_ = panel + block * kBlockBytes + (groups + 1) * gap_;
      left_ = (groups + 1) * group_blocks_ - block;
    }
    __attribute__((always_inline)) const uint8_t* next() {
      const uint8_t* block = at_;
      at_ += kBlockBytes;
      if (--left_ == 0) {
        at_ += gap_;
        left_ = group_blocks_;
      }
      return block;
    }

   private:
    const uint8_t* at_;
    int64_t group_blocks_, gap_, left_;
  };
};

/// Element `row` of the values at to + g * stride becomes from[g].
static inline void store_column(const float* from, int64_t groups, int64_t row, int64_t stride, bool half,
                                uint8_t* to) {
  for (int64_t g = 0; g < groups; ++g, to += stride) {
    if (half) {
      const uint16_t h = f32_to_f16(from[g]);
      __builtin_memcpy(to + 2 * row, &h, 2);
    } else {
      __builtin_memcpy(to + 4 * row, &from[g], 4);
    }
  }
}

/// Columns [first, first + count) of a row as they lie in a panel, zeros behind the last.
static inline void unpack_columns(const FormatOps& ops, const uint8_t* row, const CanonicalRows& rows,
                                  const PanelShape& s, int64_t first, int64_t count, uint8_t* codes) {
  __builtin_memset(codes, 0, size_t(count));
  if (s.run == 0) {
    ops.unpack(row, first, smaller(count, s.k - first), codes);
    return;
  }
  for (int64_t j = first / s.x_group; j * s.run < rows.columns && j * s.x_group < first + count; ++j) {
    const int64_t begin = j * s.x_group, end = begin + smaller(s.run, rows.columns - j * s.run);
    const int64_t from = begin < first ? first : begin, to = smaller(end, first + count);
    if (from < to) ops.unpack(row, j * s.run + from - begin, to - from, codes + from - first);
  }
}

/// Columns that relayout_panel() unpacks of every row before it writes: they and what it writes stay in the first-level
/// cache.
inline constexpr int64_t kRelayoutColumns = 512, kRelayoutStride = kRelayoutColumns + 64;
inline constexpr int64_t relayout_scratch_bytes(int64_t panel_rows) { return panel_rows * kRelayoutStride; }

/// MatmulKernel::relayout; rows.format is F's, or one with the same codes. `flip` turns stored codes into what the
/// kernel's dot product wants. Scratch: relayout_scratch_bytes().
template <class S, class F, unsigned Flip>
void relayout_panel(const CanonicalRows& rows, const PanelShape& s, uint8_t* panel, uint8_t* scratch) {
  using P = Panel<S, F>;
  using Packed = typename P::Packed;
  constexpr uint32_t kFlips = Flip * 0x01010101u;
  constexpr int64_t kChunkBlocks = kRelayoutColumns / P::kBlockK;
  const int64_t chunk_bytes = row_bytes(rows.format, kChunkBlocks * P::kBlockK);
  const FormatOps& ops =
      format_ops(OnTrellis<F> ? FormatId::kCodebook2 : rows.format);  // what is stored, not what it means
  const int64_t blocks = P::blocks(s);
  for (int64_t b0 = 0; b0 < blocks; b0 += kChunkBlocks) {
    const int64_t b1 = smaller(b0 + kChunkBlocks, blocks);
    for (int64_t r = 0; r < rows.rows; ++r) {
      const uint8_t* row = rows.codes + r * rows.row_stride_bytes;
      const uint8_t* next = row + row_bytes(rows.format, b1 * P::kBlockK);  // a few lines of a row: no hardware's guess
      for (int64_t at = 0; at < chunk_bytes; at += 64) __builtin_prefetch(next + at);
      unpack_columns(ops, row, rows, s, b0 * P::kBlockK, (b1 - b0) * P::kBlockK, scratch + r * kRelayoutStride);
    }
    typename P::BlockIterator at(s, panel, b0);
    for (int64_t b = b0; b < b1; ++b) {
      uint8_t* const block = panel + (at.next() - panel);
      for (int64_t r = 0; r < rows.rows; ++r) {
        const uint8_t* codes = scratch + r * kRelayoutStride + (b - b0) * P::kBlockK;
        uint32_t words[Packed::kWords] = {};
#pragma GCC unroll 8
        for (int step = 0; step < Packed::kSteps; ++step) {
          uint32_t four;
          __builtin_memcpy(&four, codes + 4 * step, 4);
          Packed::put(words, step, four ^ kFlips);
        }
        if constexpr (requires { Packed::finish(words); }) Packed::finish(words);
        for (int w = 0; w < Packed::kWords; ++w) __builtin_memcpy(block + 4 * (w * P::kRows + r), &words[w], 4);
      }
    }
  }
  uint8_t *const scales = panel + P::factors_at(s), *const offsets = scales + P::scale_bytes(s);
  const int64_t supers = (s.groups + kSuperGroups - 1) / kSuperGroups;
  for (int64_t r = 0; r < rows.rows; ++r) {
    if (s.double_scales) {
      for (int64_t g = 0; g < s.groups; ++g)
        scales[g * P::factor_stride(s) + r] = uint8_t(rows.scale_codes[r * s.groups + g]);
      for (int64_t g = 0; g < supers; ++g)
        __builtin_memcpy(panel + P::supers_at(s) + 2 * (g * P::kRows + r), &rows.super_scales[r * supers + g], 2);
    } else {
      store_column(rows.scales + r * s.groups, s.groups, r, P::factor_stride(s), s.half_scales, scales);
    }
    if (s.offsets) store_column(rows.offsets + r * s.groups, s.groups, r, P::factor_stride(s), s.half_offsets, offsets);
  }
}

/// A panel's scales and offsets: row half v (0, 1) of group g.
template <class S>
struct Factors {
  const uint8_t *scales, *offsets;  // of group 0; offsets: null when there are none
  const uint8_t* supers;            // of int8 scales; else null
  int64_t stride;                   // from a group to the next
  bool half_scales, half_offsets;

  LOWBIT_INLINE typename S::Float at(const uint8_t* base, bool half, int v) {
    return half ? S::load_f16(reinterpret_cast<const uint16_t*>(base) + v * S::kLanes)
                : S::load_f(reinterpret_cast<const float*>(base) + v * S::kLanes);
  }
  /// Prefetches the bytes `ahead` of a group's scales and offsets.
  __attribute__((always_inline)) void prefetch(int64_t g, int64_t ahead) const {
    S::prefetch_ahead(scales + g * stride + ahead);
    if (offsets != nullptr) S::prefetch_ahead(offsets + g * stride + ahead);
  }
  __attribute__((always_inline)) typename S::Float scale(int64_t g, int v) const {
    if (supers != nullptr) {  // exact: 7 and 11 bits
      const int8_t* codes = reinterpret_cast<const int8_t*>(scales + g * stride) + v * S::kLanes;
      return S::mul_f(S::load_i8(codes), at(supers + g / kSuperGroups * (4 * S::kLanes), true, v));
    }
    return at(scales + g * stride, half_scales, v);
  }
  __attribute__((always_inline)) typename S::Float offset(int64_t g, int v) const {
    return at(offsets + g * stride, half_offsets, v);
  }
};

template <class S, class F>
Factors<S> factors_of(const uint8_t* panel, const PanelShape& s) {
  using P = Panel<S, F>;
  const uint8_t* const scales = panel + P::factors_at(s);
  return {scales,
          s.offsets ? scales + P::scale_bytes(s) : nullptr,
          s.double_scales ? panel + P::supers_at(s) : nullptr,
          P::factor_stride(s),
          s.half_scales,
          s.half_offsets};
}

/// y[m0 + i, n + row] = acc * x_scale + bias (int8 activations) or acc + bias (f32), of the rows of one half panel.
template <class S, Activation A>
LOWBIT_INLINE void write_rows(const MatmulArgs& a, int64_t m, int64_t n, typename S::Float acc) {
  const int rows = int(a.n1 - n);  // of this half; may be 0 or less
  if (rows <= 0) return;
  const typename S::Float bias = a.bias == nullptr ? S::zero_f() : S::load_rows(a.bias + n, rows);
  const typename S::Float y = A == Activation::kInt8
                                  ? S::fma(acc, S::set_f(a.x_scale == nullptr ? 1.0f : a.x_scale[m]), bias)
                                  : S::add_f(acc, bias);
  S::store_rows(a.y + m * a.ldy + n, y, rows);
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
