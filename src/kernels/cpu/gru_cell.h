#pragma once
// The integer GRU cell on vectors S, for any instruction set; the bits of kernels/ref/gru.cc.
//
// Products: a lane is an output row. Inputs are offset codes u = q - lo in one or two unsigned bytes ("limbs"), so that
// sum w q = sum_l 256^l sum w u_l + lo sum w, the last term folded into the bias at load. Weights up to 8 bits are signed bytes,
// S::kColumns of them a lane; their sums of one limb fit int32 up to kMaxBytesK columns. Weights of up to 4 bits that would not stay
// in the second-level cache as bytes lie two or four to a byte; a field comes out as its value times 16 or 64 by a shift and a mask,
// so that sums are that much too large and shifted back, exactly. Wider weights are 16-bit pairs, their sums
// move to int64 every kWideRun columns. Where the plan has proved that the whole sum fits int32 it is put together there:
// arithmetic modulo 2^32 cannot go wrong when the true result fits.
// Elements: blocks of kBlock in loops for the compiler to vectorize, in int32 where the plan allows, else in double where it has
// proved that exact (x 2^-k + 1.5 * 2^52 - 1.5 * 2^52 is rs(x, k)), else in int64.

#include <cstdint>

#include "base/isa.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/gru_packing.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

// ---- Rounding shifts --------------------------------------------------------------------------------------------------

/// One shift for a whole tensor. In int32 the plan has proved that what is added and shifted fits.
template <class T>
struct UniformShift {
  int left, right;
  T add, odd;
  explicit UniformShift(int k) : left(k < 0 ? -k : 0), right(k > 0 ? k : 0) {
    // Where all values are below a half, any larger shift gives the same 0.
    constexpr int kMost = sizeof(T) == 4 ? 31 : 62;
    if (right > kMost) right = kMost;
    add = right > 0 ? T((T{1} << (right - 1)) - 1) : T{0};
    odd = right > 0;
  }
  __attribute__((always_inline)) T operator()(T v) const {
    v = T(v << left);
    return T((v + add + ((v >> right) & odd)) >> right);
  }
};

/// In double: a power of two, then a number that leaves no fraction bits.
template <>
struct UniformShift<double> {
  static constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  double scale;
  explicit UniformShift(int k) {
    const uint64_t bits = uint64_t(1023 - k) << 52;
    __builtin_memcpy(&scale, &bits, 8);
  }
  __attribute__((always_inline)) double operator()(double v) const { return (v * scale + kMagic) - kMagic; }
};

template <class T>
static inline __attribute__((always_inline)) T gru_clamp(T v, T low, T high) {
  v = v < low ? low : v;
  return v > high ? high : v;
}

/// centered[r] = clamp(rs(sum + bias, shift)) for rows [first, first + count) of one product; `sums` is that of row `first`, limb l
/// lies l * limb_stride further.
template <class T, class Sum>
void finish_product(const PackedProduct& p, const uint8_t* base, const Sum* sums, int64_t limb_stride, int64_t first,
                    int64_t count, int32_t* centered) {
  const auto* left = reinterpret_cast<const int32_t*>(base + p.left) + first;
  const auto* right = reinterpret_cast<const int32_t*>(base + p.right) + first;
  const T low = p.low, high = p.high;
  const Sum* upper = sums + (p.limbs - 1) * limb_stride;
  const T weight = p.limbs == 2 ? 256 : 0;
  const int down = p.down;
  centered += first;
  if constexpr (sizeof(T) == 4) {
    const auto* bias = reinterpret_cast<const int32_t*>(base + p.bias32) + first;
    for (int64_t r = 0; r < count; ++r) {
      // Unsigned: the parts may leave int32, the sum does not.
      const auto v = int32_t(
          (uint32_t(sums[r] >> down) + uint32_t(upper[r] >> down) * uint32_t(weight) + uint32_t(bias[r])) << left[r]);
      const int32_t k = right[r], odd = k > 0;
      const auto add = int32_t((uint32_t(odd) << ((k - odd) & 31)) - uint32_t(odd));
      centered[r] = gru_clamp<int32_t>((v + add + ((v >> k) & odd)) >> k, low, high);
    }
  } else if constexpr (T(0.5) != T(0)) {
    const auto* bias = reinterpret_cast<const int64_t*>(base + p.bias64) + first;
    for (int64_t r = 0; r < count; ++r) {
      const double v = double(sums[r] >> down) + double(upper[r] >> down) * weight + double(bias[r]);
      const int64_t bits = int64_t(1023 + left[r] - right[r]) << 52;
      double scale;
      __builtin_memcpy(&scale, &bits, 8);
      constexpr double kMagic = UniformShift<double>::kMagic;
      centered[r] = int32_t(gru_clamp<double>((v * scale + kMagic) - kMagic, low, high));
    }
  } else {
    const auto* bias = reinterpret_cast<const int64_t*>(base + p.bias64) + first;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t v =
          int64_t(uint64_t(int64_t(sums[r] >> down) + int64_t(upper[r] >> down) * weight + bias[r]) << left[r]);
      const int64_t k = right[r], odd = k > 0;
      const int64_t add = (odd << (k - odd)) - odd;
      centered[r] = int32_t(gru_clamp<int64_t>((v + add + ((v >> k) & odd)) >> k, low, high));
    }
  }
}

/// The same where there is nothing but a bias and a right shift.
inline void finish_plain(const PackedProduct& p, const uint8_t* base, const int32_t* sums, int64_t first, int64_t count,
                         int32_t* centered) {
  const auto* bias = reinterpret_cast<const int32_t*>(base + p.bias32) + first;
  const auto* right = reinterpret_cast<const int32_t*>(base + p.right) + first;
  const auto* round = reinterpret_cast<const int32_t*>(base + p.round) + first;
  const int32_t low = p.low, high = p.high;
  int32_t* const to = centered + first;
  for (int64_t r = 0; r < count; ++r) {
    const int32_t v = sums[r] + bias[r], k = right[r];
    to[r] = gru_clamp<int32_t>((v + round[r] + ((v >> k) & (k < 1 ? k : 1))) >> k, low, high);
  }
}

/// The same from sums in int32, in the cheapest numbers that hold the result.
inline void finish_rows(const PackedProduct& p, const uint8_t* base, const int32_t* sums, int64_t limb_stride,
                        int64_t first, int64_t count, int32_t* centered) {
  if (p.plain) return finish_plain(p, base, sums, first, count, centered);
  if (p.fits32) return finish_product<int32_t>(p, base, sums, limb_stride, first, count, centered);
  if (p.exact64) return finish_product<double>(p, base, sums, limb_stride, first, count, centered);
  finish_product<int64_t>(p, base, sums, limb_stride, first, count, centered);
}

// ---- Products ---------------------------------------------------------------------------------------------------------

/// Byte weights: sums[m][l][row] for M rows of x and L limbs, kPanels vectors of rows at a time, put away at once: that hides
/// behind the next weights' way from the second-level cache. 8 / Bits fields a byte.
template <class S, int M, int L, int Bits>
void byte_products(const PackedProduct& p, const uint8_t* base, const typename S::Element* x, int32_t* sums,
                   int32_t* out) {
  constexpr int kFields = 8 / Bits, kColumns = S::kColumns * kFields;
  constexpr int kChains = M * L == 1 && kFields == 1 && S::kColumns == 4 ? 2 : 1;  // sums per row, to hide latency
  const int64_t steps = p.k_padded / kColumns, step_bytes = S::kLanes * S::kColumns, panel_bytes = steps * step_bytes;
  for (int64_t row = 0; row < p.rows_padded; row += kPanels * S::kLanes) {
    const uint8_t* w = base + p.weights + row / S::kLanes * panel_bytes;
    typename S::Int acc[kChains][kPanels][M][L];
    for (int c = 0; c < kChains; ++c)
      for (int i = 0; i < kPanels; ++i)
        for (int m = 0; m < M; ++m)
          for (int l = 0; l < L; ++l) acc[c][i][m][l] = S::zero();
    const auto one = [&](int chain, int64_t k) __attribute__((always_inline)) {
      typename S::Int v[kFields][M][L];
      for (int f = 0; f < kFields; ++f)
        for (int m = 0; m < M; ++m)
          for (int l = 0; l < L; ++l)
            v[f][m][l] = S::broadcast(x + (m * L + l) * p.k_padded + k * kColumns + f * S::kColumns);
      for (int i = 0; i < kPanels; ++i) {
        const typename S::Int wi = S::load_bytes(w + i * panel_bytes + k * step_bytes);
        for (int f = 0; f < kFields; ++f) {
          const typename S::Int wf = S::template field<Bits>(wi, f);
          for (int m = 0; m < M; ++m)
            for (int l = 0; l < L; ++l) acc[chain][i][m][l] = S::dot(acc[chain][i][m][l], v[f][m][l], wf);
        }
      }
    };
    int64_t k = 0;
    if constexpr (kChains == 2)
      for (; k + 2 <= steps; k += 2) {  // spelled out: sums must stay in registers
        one(0, k);
        one(1, k + 1);
      }
    for (; k < steps; ++k) one(0, k);
    for (int i = 0; i < kPanels; ++i)
      for (int m = 0; m < M; ++m)
        for (int l = 0; l < L; ++l) {
          typename S::Int sum = acc[0][i][m][l];
          for (int c = 1; c < kChains; ++c) sum = S::add(sum, acc[c][i][m][l]);
          S::store(sums + (m * L + l) * p.rows_padded + row + i * S::kLanes, sum);
        }
    const int64_t left = p.rows - row, count = left < kPanels * S::kLanes ? left : kPanels * S::kLanes;
    for (int m = 0; m < M && count > 0; ++m)
      finish_rows(p, base, sums + m * L * p.rows_padded + row, p.rows_padded, row, count, out + m * p.rows);
  }
}

/// 16-bit weights: one row of x; int32 sums are moved to int64 every kWideRun columns.
template <class S>
void wide_products(const PackedProduct& p, const uint8_t* weights, const int16_t* x, int64_t* sums) {
  const int64_t steps = p.k_padded / 2;
  int32_t part[S::kLanes];
  for (int l = 0; l < p.limbs; ++l)
    for (int64_t row = 0; row < p.rows_padded; row += S::kLanes) {
      const auto* w = reinterpret_cast<const int16_t*>(weights) + row * p.k_padded;
      int64_t* to = sums + l * p.rows_padded + row;
      for (int i = 0; i < S::kLanes; ++i) to[i] = 0;
      for (int64_t k = 0; k < steps; k += kWideRun / 2) {
        const int64_t end = k + kWideRun / 2 < steps ? k + kWideRun / 2 : steps;
        typename S::Int acc = S::zero();
        for (int64_t j = k; j < end; ++j)
          acc = S::dot_pairs(acc, S::broadcast_pair(x + l * p.k_padded + 2 * j), S::load_words(w + j * 2 * S::kLanes));
        S::store(part, acc);
        for (int i = 0; i < S::kLanes; ++i) to[i] += part[i];
      }
    }
}

/// Codes as limbs, zero-padded: [rows][limbs][k_padded].
template <class E>
void split_codes(const PackedProduct& p, const uint16_t* codes, int64_t rows, E* out) {
  const int64_t k = p.k, padded = p.k_padded, limbs = p.limbs;  // `out` may alias p for all that the compiler knows
  for (int64_t m = 0; m < rows; ++m, codes += k)
    for (int64_t l = 0; l < limbs; ++l, out += padded) {
      if (l == 0)
        for (int64_t i = 0; i < k; ++i) out[i] = E(uint8_t(codes[i]));
      else
        for (int64_t i = 0; i < k; ++i) out[i] = E(uint8_t(codes[i] >> 8));
      for (int64_t i = k; i < padded; ++i) out[i] = 0;
    }
}

// ---- A matrix unit of 16 x 16 x 64 tiles ------------------------------------------------------------------------------

/// The fields of two panels as bytes, in the order of byte weights: values times 2^down.
template <class S, int Bits>
void unpack_panels(const PackedProduct& p, const uint8_t* panels, uint8_t* bytes) {
  constexpr int kFields = 8 / Bits;
  const int64_t blocks = 2 * p.k_padded / (S::kColumns * kFields), step_bytes = S::kLanes * S::kColumns;
  for (int64_t b = 0; b < blocks; ++b)
    for (int f = 0; f < kFields; ++f)
      S::store_bytes(bytes + (b * kFields + f) * step_bytes,
                     S::template field<Bits>(S::load_bytes(panels + b * step_bytes), f));
}

/// 32 rows of x by 32 rows of weights at a time: a panel of 16 rows is a column of B tiles as it lies.
template <class S>
void tile_products(const PackedProduct& p, const uint8_t* base, const uint8_t* x, int64_t rows, int32_t* out,
                   uint8_t* scratch) {
  using Tiles = typename S::Tiles;
  auto* block = reinterpret_cast<int32_t*>(scratch);  // [limb][32][32]
  uint8_t* unpacked = scratch + 2 * 32 * 32 * 4;
  const int64_t stride = p.limbs * p.k_padded, panel_bytes = p.k_padded * S::kLanes * p.field_bits / 8;
  int64_t configured = -1;
  for (int64_t row = 0; row < p.rows; row += 2 * S::kLanes) {
    const uint8_t* w = base + p.weights + row / S::kLanes * panel_bytes;
    if (p.field_bits == 4) unpack_panels<S, 4>(p, w, unpacked);
    if (p.field_bits == 2) unpack_panels<S, 2>(p, w, unpacked);
    if (p.field_bits != 8) w = unpacked;
    const uint8_t* second = w + p.k_padded * S::kLanes;
    const int64_t count = p.rows - row < 2 * S::kLanes ? p.rows - row : 2 * S::kLanes;
    for (int64_t m = 0; m < rows; m += 32) {
      const int64_t n = rows - m < 32 ? rows - m : 32;
      if (n != configured) {
        TileConfig config;
        for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64;
        const uint8_t upper = uint8_t(n < 16 ? n : 16), lower = uint8_t(n > 16 ? n - 16 : 1);
        config.rows[0] = config.rows[1] = config.rows[4] = upper;
        config.rows[2] = config.rows[3] = config.rows[5] = lower;
        config.rows[6] = config.rows[7] = 16;
        Tiles::configure(config);
        configured = n;
      }
      for (int l = 0; l < p.limbs; ++l) {
        const uint8_t* a = x + m * stride + l * p.k_padded;
        const uint8_t* b = a + 16 * stride;
        Tiles::template zero<0>(), Tiles::template zero<1>(), Tiles::template zero<2>(), Tiles::template zero<3>();
        for (int64_t k = 0; k < p.k_padded; k += 64) {
          Tiles::template load<6>(w + k * S::kLanes, 64);
          Tiles::template load<7>(second + k * S::kLanes, 64);
          Tiles::template load<4>(a + k, stride);
          Tiles::template dot_unsigned<0, 4, 6>();
          Tiles::template dot_unsigned<1, 4, 7>();
          if (n <= 16) continue;
          Tiles::template load<5>(b + k, stride);
          Tiles::template dot_unsigned<2, 5, 6>();
          Tiles::template dot_unsigned<3, 5, 7>();
        }
        int32_t* to = block + l * 32 * 32;
        Tiles::template store<0>(to, 128);
        Tiles::template store<1>(to + 16, 128);
        if (n <= 16) continue;
        Tiles::template store<2>(to + 16 * 32, 128);
        Tiles::template store<3>(to + 16 * 32 + 16, 128);
      }
      for (int64_t i = 0; i < n; ++i) {
        finish_rows(p, base, block + i * 32, 32 * 32, row, count, out + (m + i) * p.rows);
      }
    }
  }
  Tiles::release();
}

template <class S, int M, int L>
void byte_rows(const PackedProduct& p, const uint8_t* base, const typename S::Element* x, int32_t* sums, int32_t* out) {
  if constexpr (S::kUnpacks) {
    if (p.field_bits == 4) return byte_products<S, M, L, 4>(p, base, x, sums, out);
    if (p.field_bits == 2) return byte_products<S, M, L, 2>(p, base, x, sums, out);
  }
  byte_products<S, M, L, 8>(p, base, x, sums, out);
}

/// As many rows of x at a time as there are registers for.
template <class S, int L>
void all_byte_rows(const PackedProduct& p, const uint8_t* base, const typename S::Element* x, int64_t rows,
                   int32_t* sums, int32_t* out) {
  constexpr int M = S::kRows / L > 1 ? S::kRows / L : 1;
  const int64_t stride = L * p.k_padded;
  int64_t m = 0;
  for (; m + M <= rows; m += M) byte_rows<S, M, L>(p, base, x + m * stride, sums, out + m * p.rows);
  for (; m < rows; ++m) byte_rows<S, 1, L>(p, base, x + m * stride, sums, out + m * p.rows);
}

/// Bytes: limbs of up to `rows` rows, then sums (S::kRows rows of them in int32, or one in int64, or a block of tiles and the bytes
/// of its weights).
template <class S>
int64_t product_scratch(const PackedProduct& p, int64_t rows) {
  const int64_t narrow = 4 * S::kRows * p.limbs * p.rows_padded, wide = 8 * p.limbs * p.rows_padded;
  const int64_t tiles = S::kTileRows > 0 ? 2 * 32 * 32 * 4 + 32 * p.k_padded : 0;
  const int64_t sums = narrow > wide ? narrow : wide;
  return gru_round_up(rows * p.limbs * p.k_padded * 2, 64) + gru_round_up(sums > tiles ? sums : tiles, 64);
}

template <class S>
void product(const PackedProduct& p, const uint8_t* base, const uint16_t* codes, int64_t rows, int32_t* out,
             uint8_t* scratch) {
  auto* sums = reinterpret_cast<int32_t*>(scratch + gru_round_up(rows * p.limbs * p.k_padded * 2, 64));
  if (p.wide) {
    auto* x = reinterpret_cast<int16_t*>(scratch);
    split_codes(p, codes, rows, x);
    auto* wide = reinterpret_cast<int64_t*>(sums);
    for (int64_t m = 0; m < rows; ++m) {
      wide_products<S>(p, base + p.weights, x + m * p.limbs * p.k_padded, wide);
      finish_product<int64_t>(p, base, wide, p.rows_padded, 0, p.rows, out + m * p.rows);
    }
    return;
  }
  auto* x = reinterpret_cast<typename S::Element*>(scratch);
  split_codes(p, codes, rows, x);
  if constexpr (S::kTileRows > 0) {
    if (rows >= S::kTileRows) return tile_products<S>(p, base, x, rows, out, reinterpret_cast<uint8_t*>(sums));
  }
  if (p.limbs == 1)
    all_byte_rows<S, 1>(p, base, x, rows, sums, out);
  else
    all_byte_rows<S, 2>(p, base, x, rows, sums, out);
}

// ---- Tables -------------------------------------------------------------------------------------------------------------

inline int64_t segment_value(const GruTableView& t, const GruGrid& in, const GruGrid& out, int64_t i, int64_t q) {
  const int64_t product = int64_t{t.slope[i]} * (q - in.zp);
  const UniformShift<int64_t> shift(t.shift[i]);
  const int64_t y =
      t.kind == GruTableView::kSeed ? shift(product) + t.intercept[i] : shift(product + t.intercept[i]) + out.zp;
  return gru_clamp<int64_t>(y, out.lo, out.hi);
}

inline void pack_table(const PackedTable& p, const GruTableView& t, const GruGrid& in, const GruGrid& out,
                       uint8_t* base) {
  auto* data = reinterpret_cast<uint16_t*>(base + p.data);
  int64_t segment = 0;
  for (int64_t q = in.lo; q <= in.hi; ++q) {
    while (t.kind != GruTableView::kDirect && segment < t.segments - 1 && q >= t.threshold[segment]) ++segment;
    const int64_t u = q - in.lo;
    const auto value = [&] {
      return (t.kind == GruTableView::kDirect ? int64_t{t.direct[u]} : segment_value(t, in, out, segment, q)) - out.lo;
    };
    if (p.bytes)
      (base + p.data)[u] = uint8_t(value());
    else
      data[u] = uint16_t(value());
  }
}

/// y[j] = table(q[j]) - out.zp; q and y have room for kBlock.
template <class S, class T>
void look_up(const PackedTable& p, const uint8_t* base, const GruGrid& in, const GruGrid& out, const T* q, int64_t n,
             T* y) {
  const auto* data = reinterpret_cast<const uint16_t*>(base + p.data);
  const T centre = out.lo - out.zp;
  if constexpr (S::kByteTables && sizeof(T) == 4) {
    if (p.bytes) return S::look_up_bytes(base + p.data, q, in.lo, centre, y);
  }
  int32_t code[kBlock];
  for (int64_t j = 0; j < n; ++j) code[j] = int32_t(q[j]) - in.lo;
  if (p.bytes) {
    for (int64_t j = 0; j < n; ++j) y[j] = T((base + p.data)[code[j]]) + centre;
    return;
  }
  for (int64_t j = 0; j < n; ++j) y[j] = T(data[code[j]]) + centre;
}

// ---- Elements -----------------------------------------------------------------------------------------------------------

template <class T>
void trace_block(int32_t* to, const T* q, int64_t n, T zp) {
  if (to == nullptr) return;
  for (int64_t j = 0; j < n; ++j) to[j] = int32_t(q[j] + zp);
}

/// Gates and state of one row: elements [0, H) in blocks.
template <class S, class T>
void elements(const GruSpec& s, const PackedCell& cell, const uint8_t* base, const int32_t* ih, const int32_t* hh,
              uint16_t* h, const GruTrace* trace, int64_t row) {
  const GruGrid* g = s.grid;
  const auto between = [&](int a, int b) { return UniformShift<T>(g[a].shift - g[b].shift); };
  const UniformShift<T> ih_u = between(kSlotIh, kSlotUi), hh_u = between(kSlotHh, kSlotUi),
                        ih_r = between(kSlotIh, kSlotRi), hh_r = between(kSlotHh, kSlotRi),
                        ih_n = between(kSlotIh, kSlotNi), rh_n(g[kSlotR].shift + g[kSlotHh].shift - g[kSlotNi].shift),
                        n_h = between(kSlotN, kSlotH), to_h(g[kSlotU].shift);
  const T one = T(int64_t{1} << g[kSlotU].shift), old_zero = g[kSlotH].lo - g[kSlotH].zp;
  alignas(64) T ui[kBlock], u[kBlock], ri[kBlock], r[kBlock], ni[kBlock], n[kBlock];
  for (int64_t at = 0; at < s.h; at += kBlock) {
    const int64_t count = s.h - at < kBlock ? s.h - at : kBlock;
    const int32_t *iu = ih + at, *ir = iu + s.h, *in = ir + s.h, *hu = hh + at, *hr = hu + s.h, *hn = hr + s.h;
    for (int64_t j = 0; j < count; ++j) {
      ui[j] = gru_clamp<T>(ih_u(iu[j]) + hh_u(hu[j]) + g[kSlotUi].zp, g[kSlotUi].lo, g[kSlotUi].hi);
      ri[j] = gru_clamp<T>(ih_r(ir[j]) + hh_r(hr[j]) + g[kSlotRi].zp, g[kSlotRi].lo, g[kSlotRi].hi);
    }
    look_up<S>(cell.table[0], base, g[kSlotUi], g[kSlotU], ui, count, u);
    look_up<S>(cell.table[1], base, g[kSlotRi], g[kSlotR], ri, count, r);
    for (int64_t j = 0; j < count; ++j)
      ni[j] = gru_clamp<T>(ih_n(in[j]) + rh_n(T(r[j] * T(hn[j]))) + g[kSlotNi].zp, g[kSlotNi].lo, g[kSlotNi].hi);
    look_up<S>(cell.table[2], base, g[kSlotNi], g[kSlotN], ni, count, n);
    uint16_t* state = h + at;
    for (int64_t j = 0; j < count; ++j) {
      const T old = T(state[j]) + old_zero;
      const T sum = u[j] * old + (one - u[j]) * n_h(n[j]);
      state[j] = uint16_t(int32_t(gru_clamp<T>(to_h(sum) + g[kSlotH].zp, g[kSlotH].lo, g[kSlotH].hi) - g[kSlotH].lo));
    }
    if (trace == nullptr) continue;
    const auto row_of = [&](int32_t* p) { return p == nullptr ? p : p + row * s.h + at; };
    trace_block<T>(row_of(trace->ui), ui, count, 0);
    trace_block<T>(row_of(trace->ri), ri, count, 0);
    trace_block<T>(row_of(trace->ni), ni, count, 0);
    trace_block<T>(row_of(trace->u), u, count, g[kSlotU].zp);
    trace_block<T>(row_of(trace->r), r, count, g[kSlotR].zp);
    trace_block<T>(row_of(trace->n), n, count, g[kSlotN].zp);
  }
}

// ---- The kernel ---------------------------------------------------------------------------------------------------------

template <class S>
int64_t gru_packed_bytes(const GruSpec& s) {
  return plan_cell<S>(s).bytes;
}

template <class S>
void gru_pack(const GruSpec& s, uint8_t* packed) {
  const PackedCell c = plan_cell<S>(s);
  __builtin_memset(packed, 0, size_t(c.bytes));
  __builtin_memcpy(packed, &c, sizeof c);
  if (c.use_reference) return;
  pack_product<S>(c.x, s.grid[kSlotX], s.w, s.x_bias, s.x_shift, packed);
  pack_product<S>(c.h, s.grid[kSlotH], s.r, s.h_bias, s.h_shift, packed);
  const int inputs[3] = {kSlotUi, kSlotRi, kSlotNi}, outputs[3] = {kSlotU, kSlotR, kSlotN};
  for (int i = 0; i < 3; ++i) pack_table(c.table[i], s.table[i], s.grid[inputs[i]], s.grid[outputs[i]], packed);
}

template <class S>
int64_t gru_scratch_bytes(const GruSpec& s, int64_t rows) {
  const PackedCell c = plan_cell<S>(s);
  if (c.use_reference) return kRefGru.scratch_bytes(s, rows);
  const int64_t x = product_scratch<S>(c.x, rows), h = product_scratch<S>(c.h, rows);
  return gru_round_up(4 * rows * 3 * s.h, 64) + (x > h ? x : h);
}

template <class S>
void gru_input(const GruSpec& s, const uint8_t* packed, const uint16_t* x, int64_t rows, int32_t* ih,
               uint8_t* scratch) {
  const auto& c = *reinterpret_cast<const PackedCell*>(packed);
  if (c.use_reference) return kRefGru.input(s, packed, x, rows, ih, scratch);
  product<S>(c.x, packed, x, rows, ih, scratch);
}

template <class S>
void gru_step(const GruSpec& s, const uint8_t* packed, const int32_t* ih, int64_t rows, uint16_t* h,
              const GruTrace* trace, uint8_t* scratch) {
  const auto& c = *reinterpret_cast<const PackedCell*>(packed);
  if (c.use_reference) return kRefGru.step(s, packed, ih, rows, h, trace, scratch);
  auto* hh = reinterpret_cast<int32_t*>(scratch);
  product<S>(c.h, packed, h, rows, hh, scratch + gru_round_up(4 * rows * 3 * s.h, 64));
  for (int64_t m = 0; m < rows; ++m) {
    if (s.elements32)
      elements<S, int32_t>(s, c, packed, ih + m * 3 * s.h, hh + m * 3 * s.h, h + m * s.h, trace, m);
    else if (s.elements_f64)
      elements<S, double>(s, c, packed, ih + m * 3 * s.h, hh + m * 3 * s.h, h + m * s.h, trace, m);
    else
      elements<S, int64_t>(s, c, packed, ih + m * 3 * s.h, hh + m * 3 * s.h, h + m * s.h, trace, m);
  }
  if (trace != nullptr) trace_block<int32_t>(trace->hh, hh, rows * 3 * s.h, s.grid[kSlotHh].zp);
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
