#pragma once
// FP8 in blocks on vectors: the operations of kernels/ref/fp8.cc in its order. In the product a lane is a row of b, so
// that each sum goes over k ascending in a lane of its own, whatever the vector's width. See
// docs/kernels.md#fp8-in-blocks.

#include <immintrin.h>

#include <cstdint>

#include "base/float.h"
#include "base/isa.h"
#include "kernels/fp8_api.h"
#include "kernels/fp8_math.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// E4M3 codes as f16 numbers of the value * 2^-8: sign and bits in f16's places, subnormals included. NaN is not looked
/// at.
static inline __m256i halves_of_codes(__m128i codes) {
  return _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), _mm256_set1_epi16(int16_t(0xbfff)));
}

template <class V>
struct Fp8Panels {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int kLanes = V::kLanes, kRows = 2 * kLanes, kPer16 = 16 / kLanes;
  static constexpr Fp8Kernels kernels(const char* name, const char* isa) {
    return {name, isa, quantize, dequantize, decode, V::kAFactor, V::kColumns == 2, kRows, gemm_scratch_bytes, gemm};
  }

 private:
  static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

  // ---- Quantization ----

  template <Fp8Element E>
  static F load(const void* x, int64_t i) {
    if constexpr (E == Fp8Element::kF32) return V::load(static_cast<const float*>(x) + i);
    const uint16_t* const p = static_cast<const uint16_t*>(x) + i;
    return E == Fp8Element::kF16 ? V::load_f16(p) : V::load_bf16(p);
  }
  template <Fp8Element E>
  static float load_one(const void* x, int64_t i) {
    if constexpr (E == Fp8Element::kF32) return static_cast<const float*>(x)[i];
    const uint16_t half = static_cast<const uint16_t*>(x)[i];
    return E == Fp8Element::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
  }

  /// Magnitudes compare as integers, and NaN is larger than all others.
  template <Fp8Element E>
  static uint32_t largest_bits(const void* x, int64_t begin, int64_t end) {
    const I mask = V::set_i(0x7fffffffu);
    I most = V::zero_i();
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) most = V::max_i(most, V::and_(V::bits(load<E>(x, i)), mask));
    uint32_t largest = V::largest(most);
    for (; i < end; ++i) {
      const uint32_t bits = f32_to_bits(load_one<E>(x, i)) & 0x7fffffffu;
      if (bits > largest) largest = bits;
    }
    return largest;
  }

  /// f32_to_e4m3 of finite numbers.
  static I encode(F v) {
    const I bits = V::bits(v), sign = V::and_(V::shift_right(bits, 24), V::set_i(0x80));
    const I magnitude = V::min_i(V::and_(bits, V::set_i(0x7fffffffu)), V::set_i(0x43e00000u));  // 448
    const I odd = V::and_(V::shift_right(magnitude, 20), V::set_i(1));
    const I rounding = V::sub(V::set_i(0x7ffffu), V::set_i(120u << 23));
    const I normal = V::shift_right(V::add(V::add(magnitude, rounding), odd), 20);
    // Below 2^-6: beside 2^14 a float's last place is 2^-9, the step of subnormal codes.
    const I beside = V::bits(V::add_f(V::floats(magnitude), V::set(16384.0f)));
    const I small = V::sub(beside, V::set_i(0x46800000u));
    return V::or_(V::where_less(magnitude, V::set_i(0x3c800000u), small, normal), sign);
  }

  template <Fp8Element E>
  static void encode_row(const void* x, int64_t begin, int64_t end, float scale, uint8_t* codes) {
    const F divisor = V::set(scale);
    int64_t i = begin;
    for (; i + 16 <= end; i += 16) {
      I c[kPer16];
      for (int j = 0; j < kPer16; ++j) c[j] = encode(V::div(load<E>(x, i + j * kLanes), divisor));
      V::store_codes(codes + i, c);
    }
    for (; i < end; ++i) codes[i] = f32_to_e4m3(load_one<E>(x, i) / scale);
  }

  template <Fp8Element E>
  static void quantize_of(const Fp8QuantArgs& a) {
    const auto row = [&](int64_t r) {
      return static_cast<const uint8_t*>(a.x) + r * a.ldx * fp8_element_bytes(a.element);
    };
    for (int64_t first = 0, b = 0; first < a.columns; first += a.block, ++b) {
      const int64_t end = least(first + a.block, a.columns);
      uint32_t largest = 0;
      for (int64_t r = 0; r < a.rows; ++r) {
        const uint32_t bits = largest_bits<E>(row(r), first, end);
        if (bits > largest) largest = bits;
      }
      const float scale = fp8_scale(bits_to_f32(largest), a.power_of_two);
      a.scales[b * a.scale_step] = scale;
      for (int64_t r = 0; r < a.rows; ++r) {
        uint8_t* const codes = a.codes + r * a.ldcodes;
        if (fp8_has_codes(scale)) {
          encode_row<E>(row(r), first, end, scale, codes);
        } else {
          __builtin_memset(codes + first, 0, size_t(end - first));
        }
      }
    }
  }
  static void quantize(const Fp8QuantArgs& a) {
    if (a.element == Fp8Element::kF32) return quantize_of<Fp8Element::kF32>(a);
    if (a.element == Fp8Element::kF16) return quantize_of<Fp8Element::kF16>(a);
    quantize_of<Fp8Element::kBf16>(a);
  }

  // ---- Back to floats ----

  static void decode(const uint8_t* codes, int64_t n, float factor, float* out) {
    const F all = V::set(256.0f * factor);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
      const __m128i magnitude = _mm_and_si128(c, _mm_set1_epi8(0x7f));
      const __m256i nan = _mm256_cvtepi8_epi16(_mm_cmpeq_epi8(magnitude, _mm_set1_epi8(0x7f)));
      F v[kPer16];
      V::widen(_mm256_or_si256(halves_of_codes(c), _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00))), v);
      for (int j = 0; j < kPer16; ++j) V::store(out + i + j * kLanes, V::mul(v[j], all));
    }
    for (; i < n; ++i) out[i] = e4m3_to_f32(codes[i]) * factor;
  }

  static void write_floats(const float* v, int64_t n, Fp8Element element, void* y, int64_t at) {
    if (element == Fp8Element::kF32) {
      __builtin_memcpy(static_cast<float*>(y) + at, v, sizeof(float) * size_t(n));
      return;
    }
    uint16_t* const half = static_cast<uint16_t*>(y) + at;
    for (int64_t i = 0; i < n; ++i) half[i] = element == Fp8Element::kF16 ? f32_to_f16(v[i]) : f32_to_bf16(v[i]);
  }

  static void dequantize(const Fp8DequantArgs& a) {
    constexpr int64_t kChunk = 256;
    float v[kChunk];
    for (int64_t first = 0, b = 0; first < a.columns; first += a.block, ++b) {
      const int64_t end = least(first + a.block, a.columns);
      const float scale = a.scales[b];
      for (int64_t i = first; i < end; i += kChunk) {
        const int64_t n = least(kChunk, end - i);
        decode(a.codes + i, n, 1.0f, v);
        for (int64_t j = 0; j < n; ++j) v[j] *= scale;
        write_floats(v, n, a.element, a.y, i);
      }
    }
  }

  // ---- Product ----

  /// Rows of a that take values from registers: for so few a detour through memory costs more than it saves. Up to
  /// kAbreastRows of them two panels go side by side, since each lane is one chain of additions.
  static constexpr int kDirectRows = 4, kAbreastRows = 2;

  static int64_t gemm_scratch_bytes(int64_t m) {
    return int64_t(sizeof(float)) * kRows * (kFp8Block + m + least(m, kAbreastRows));
  }

  /// As many lines as block `first` of a panel has, of the panel two further on and row by row: memory gives long runs
  /// faster than two lines of each row. They go to the second-level cache; gather() takes them to the first a block
  /// ahead. Hints, wherever they lead. In assembler: GCC 12 drops a function that does nothing but prefetch.
  static void fetch_ahead(const Fp8GemmArgs& a, int64_t n, int64_t first) {
    const int64_t blocks = (a.k + kFp8Block - 1) / kFp8Block, piece = first / kFp8Block * kRows;
    int64_t row = piece / blocks, block = piece - row * blocks;
    const uint8_t* const later = a.b + (n + 2 * kRows) * a.ldb;
    for (int i = 0; i < kRows; ++i) {
      const uint8_t* const line = later + row * a.ldb + block * kFp8Block;
      __asm__ volatile("prefetcht1 %0\n\tprefetcht1 %1" : : "m"(line[0]), "m"(line[64]));
      if (++block == blocks) block = 0, ++row;
    }
  }

  /// Codes of columns [first, first + count) of the panel's rows, zeros behind them, in the order of V::transpose();
  /// lanes of `nan` are ones for rows with a NaN that decoding does not give. Rows behind the last are the last.
  static void gather(const Fp8GemmArgs& a, int64_t n, int64_t first, int64_t count, uint8_t* codes, I (&nan)[2]) {
    alignas(64) uint8_t found[32], copy[16 * kFp8Block];
    fetch_ahead(a, n, first);
    for (int sixteen = 0; sixteen < kRows / 16; ++sixteen) {
      const uint8_t* rows[16];
      for (int i = 0; i < 16; ++i) {
        const uint8_t* const row = a.b + least(n + sixteen * 16 + i, a.n - 1) * a.ldb + first;
        rows[i] = row;
        __asm__ volatile("prefetcht0 %0\n\tprefetcht0 %1" : : "m"(row[kFp8Block]), "m"(row[kFp8Block + 64]));
        if (count == kFp8Block && V::kReadsLinesOnce) continue;
        // Rows often lie a multiple of 4 KiB apart, where 16 of their lines do not fit the first-level cache side by
        // side: so each line is read once.
        uint8_t* const to = copy + i * kFp8Block;
        if (count < kFp8Block) __builtin_memset(to, 0, size_t(kFp8Block));
        __builtin_memcpy(to, row, size_t(count));
        rows[i] = to;
      }
      _mm_store_si128(reinterpret_cast<__m128i*>(found + sixteen * 16), V::transpose(rows, sixteen, codes));
    }
    for (int v = 0; v < 2; ++v) nan[v] = V::mask_of(found + v * kLanes);
  }

  /// Columns in one word of 32 bits of a's and b's values: 1, or 2 as bf16.
  static constexpr int kColumns = V::kColumns;
  static constexpr int64_t kWords = kFp8Block / kColumns;

  /// Where tiles get a block's values from: memory [kWords][kRows], or V::Codes, which decode some words at a time.
  struct Floats {
    static constexpr int kStep = 1;
    const float* w;
    void words(int64_t p, F (&out)[1][2]) const {
      for (int v = 0; v < 2; ++v) out[0][v] = V::load(w + p * kRows + v * kLanes);
    }
  };

  static void write_floats_of(const typename V::Codes& codes, float* w) {
    constexpr int kStep = V::Codes::kStep;
    for (int64_t p = 0; p < kWords; p += kStep) {
      F words[kStep][2];
      codes.words(p, words);
      for (int c = 0; c < kStep; ++c)
        for (int v = 0; v < 2; ++v) V::store(w + (p + c) * kRows + v * kLanes, words[c][v]);
    }
  }

  /// Columns [first, first + count) of a panel.
  struct Block {
    int64_t first, count;
    F b_scale[2];
    float* acc;  // [m, kRows], which takes in the sums
  };

  /// M rows of a by P panels, one block of columns.
  template <int M, int P, class From>
  static void tile(const Fp8GemmArgs& a, int64_t i, const Block (&blocks)[P], const From (&from)[P]) {
    F s[M][P][2];
    for (int r = 0; r < M; ++r)
      for (int p = 0; p < P; ++p) s[r][p][0] = s[r][p][1] = V::zero();
    const auto [first, count, b_scale, none] = blocks[0];
    const float* const x = a.a + i * a.lda + first / kColumns;
    const int64_t words = (count + kColumns - 1) / kColumns;
    for (int64_t at = 0; at < words; at += From::kStep)
      for (int p = 0; p < P; ++p) {
        F w[From::kStep][2];
        from[p].words(at, w);
#pragma GCC unroll 4
        for (int c = 0; c < From::kStep; ++c) {
          if (From::kStep > 1 && at + c >= words) break;
          for (int r = 0; r < M; ++r) {
            const F v = V::set(x[r * a.lda + at + c]);
            s[r][p][0] = V::add_product(w[c][0], v, s[r][p][0]);
            s[r][p][1] = V::add_product(w[c][1], v, s[r][p][1]);
          }
        }
      }
    for (int r = 0; r < M; ++r) {
      const F a_scale = V::set(a.a_scales[(i + r) * a.a_scale_row + first / kFp8Block * a.a_scale_block]);
      for (int p = 0; p < P; ++p)
        for (int v = 0; v < 2; ++v) {
          float* const sum = blocks[p].acc + (i + r) * kRows + v * kLanes;
          V::store(sum, V::fma(V::mul(s[r][p][v], a_scale), blocks[p].b_scale[v], V::load(sum)));
        }
    }
  }
  template <int M>
  static int64_t tiles(const Fp8GemmArgs& a, int64_t i, const Block (&block)[1], const Floats (&from)[1]) {
    for (; i + M <= a.m; i += M) tile<M, 1>(a, i, block, from);
    if constexpr (M > 1) return tiles<(M + 1) / 2>(a, i, block, from);
    return i;
  }
  template <int M, int P>
  static void direct_tile(const Fp8GemmArgs& a, const Block (&blocks)[P], const typename V::Codes (&from)[P]) {
    if (a.m == M) return tile<M, P>(a, 0, blocks, from);
    if constexpr (M > 1) direct_tile<M - 1, P>(a, blocks, from);
  }

  /// P panels from row n of b on.
  template <int P>
  static void panels(const Fp8GemmArgs& a, int64_t n) {
    float* const w = reinterpret_cast<float*>(a.scratch);
    float* const acc = w + kFp8Block * kRows;
    __builtin_memset(acc, 0, sizeof(float) * size_t(P * a.m * kRows));
    int64_t scale_rows[P * kRows];
    for (int64_t j = 0; j < P * kRows; ++j) scale_rows[j] = least(n + j, a.n - 1) / a.b_rows * a.ldb_scales;
    for (int64_t first = 0; first < a.k; first += kFp8Block) {
      alignas(64) uint8_t codes[P][kFp8Block * kRows];
      Block blocks[P];
      typename V::Codes from[P];
      for (int p = 0; p < P; ++p) {
        Block& b = blocks[p];
        b.first = first, b.count = least(kFp8Block, a.k - first), b.acc = acc + p * a.m * kRows;
        I nan[2];
        gather(a, n + p * kRows, first, b.count, codes[p], nan);
        float scale[kRows];
        for (int j = 0; j < kRows; ++j) scale[j] = a.b_scales[scale_rows[p * kRows + j] + first / kFp8Block];
        for (int v = 0; v < 2; ++v) b.b_scale[v] = V::or_bits(V::load(scale + v * kLanes), nan[v]);
        from[p] = V::Codes::of(codes[p]);
      }
      if constexpr (P == 1) {
        if (a.m > kDirectRows) {
          write_floats_of(from[0], w);
          const Floats floats[1] = {{w}};
          tiles<V::kTileRows>(a, 0, blocks, floats);
          continue;
        }
      }
      direct_tile<P == 1 ? kDirectRows : kAbreastRows, P>(a, blocks, from);
    }
    for (int p = 0; p < P; ++p)
      for (int64_t i = 0; i < a.m; ++i)
        write_floats(acc + (p * a.m + i) * kRows, least(kRows, a.n1 - n - p * kRows), a.element, a.c,
                     i * a.ldc + n + p * kRows);
  }

  static void gemm(const Fp8GemmArgs& a) {
    int64_t n = a.n0;
    for (; a.m <= kAbreastRows && n + kRows < a.n1; n += 2 * kRows) panels<2>(a, n);
    for (; n < a.n1; n += kRows) panels<1>(a, n);
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
