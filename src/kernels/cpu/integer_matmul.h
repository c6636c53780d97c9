#pragma once
// Integer-valued formats x int8 activations. Few rows of x: codes are unpacked in registers (direct_panel). More: a panel is
// unpacked once into bytes and multiplied by tiles of x rows (byte_tile). Both sum exactly inside a group and fold it with one
// fma, so they agree bit for bit with kernels/ref/matmul.cc.

#include "kernels/cpu/panel.h"
#include "kernels/kernel_name.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class S, class F>
struct IntegerMatmul {
  using Int = typename S::Int;
  using Float = typename S::Float;
  using Codec = typename F::Codec;
  using P = Panel<S, F>;
  using Packed = typename P::Packed;
  static constexpr bool kBase3 = F::kId == FormatId::kTernaryPacked;
  static constexpr int kMaxCode = kBase3 ? 2 : (1 << Codec::kBits) - 1;  // an unused code 3 may still be in a file
  using Dot = typename S::template Dot<kMaxCode>;
  static constexpr unsigned kFlip = Dot::kSigned ? 0u : Codec::kFlip;
  static constexpr int kMul = Codec::kMul, kAdd = Dot::kSigned ? 0 : Codec::kAdd;
  static constexpr int64_t kStepBytes = 4 * P::kRows;
  static constexpr int64_t kPrefetchBytes = 2048;

  /// acc after group g: the exact sum of values as f32, times the scale, then the offset's share.
  LOWBIT_INLINE Float fold(const MatmulArgs& a, const Factors<S>& factors, int64_t m, int64_t g, int v, Int code_sum,
                           Float acc) {
    const float x_sum = a.x_sums == nullptr ? 0.0f : a.x_sums[m * a.shape.groups + g];
    Int sum = kMul == 1 ? code_sum : S::shift_left32(code_sum, 1);
    static_assert(kMul == 1 || kMul == 2);
    if constexpr (kAdd != 0) sum = S::add32(sum, S::set32(kAdd * int(x_sum)));
    if (a.x_group_scale == nullptr) {
      acc = S::fma(S::to_float(sum), factors.scale(g, v), acc);
      return a.shape.offsets ? S::fma(S::set_f(x_sum), factors.offset(g, v), acc) : acc;
    }
    const float x_scale = a.x_group_scale[m * a.shape.groups + g];
    acc = S::fma(S::mul_f(S::to_float(sum), S::set_f(x_scale)), factors.scale(g, v), acc);
    return a.shape.offsets ? S::fma(S::set_f(x_sum * x_scale), factors.offset(g, v), acc) : acc;
  }

  /// Rows [m0, m0 + M) of x times one panel, whose groups are whole blocks.
  template <int M>
  static void direct_panel(const MatmulArgs& a, const uint8_t* panel, int64_t n, int64_t m0) {
    constexpr int kChains = M == 1 ? 2 : 1;  // two sums per half panel hide the dot product's latency
    constexpr int64_t kBlocksPerWiden = Dot::kSteps / ((Packed::kSteps + kChains - 1) / kChains);
    static_assert(kBlocksPerWiden >= 1);
    const PanelShape& s = a.shape;
    const Factors<S> factors = factors_of<S, F>(panel, s);
    const int64_t blocks = P::blocks(s), group_blocks = s.groups == 1 ? blocks : s.group / P::kBlockK;
    const int8_t* x = a.xq + m0 * a.ldxq;  // [M, ldxq]
    Float acc[2][M];
    for (int m = 0; m < M; ++m) acc[0][m] = acc[1][m] = S::zero_f();
    int64_t b = 0;
    for (int64_t g = 0; g < s.groups; ++g) {
      const int64_t group_end = smaller(b + group_blocks, blocks);
      Int total[2][M];
      for (int m = 0; m < M; ++m) total[0][m] = total[1][m] = S::zero();
      while (b < group_end) {
        const int64_t end = smaller(b + kBlocksPerWiden, group_end);
        Int part[kChains][2][M];
        for (int c = 0; c < kChains; ++c)
          for (int m = 0; m < M; ++m) part[c][0][m] = part[c][1][m] = S::zero();
        for (; b < end; ++b) {
          const uint8_t* block = panel + b * P::kBlockBytes;
          Int words[2][Packed::kWords];
          for (int w = 0; w < Packed::kWords; ++w) {
            S::prefetch(block + w * kStepBytes + kPrefetchBytes);
            words[0][w] = S::load(block + w * kStepBytes);
            words[1][w] = S::load(block + w * kStepBytes + kStepBytes / 2);
          }
#pragma GCC unroll 8
          for (int step = 0; step < Packed::kSteps; ++step) {
            const Int c0 = Packed::template step<S>(words[0], step), c1 = Packed::template step<S>(words[1], step);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
              const Int xs = S::broadcast4(x + m * a.ldxq + b * P::kBlockK + 4 * step);
              Int(&sum)[2][M] = part[step % kChains];
              sum[0][m] = Dot::add(sum[0][m], c0, xs);
              sum[1][m] = Dot::add(sum[1][m], c1, xs);
              S::pin(sum[0][m], sum[1][m]);
            }
          }
        }
        for (int c = 0; c < kChains; ++c)
          for (int v = 0; v < 2; ++v)
            for (int m = 0; m < M; ++m) total[v][m] = S::add32(total[v][m], Dot::widen(part[c][v][m]));
      }
      for (int v = 0; v < 2; ++v)
        for (int m = 0; m < M; ++m) acc[v][m] = fold(a, factors, m0 + m, g, v, total[v][m], acc[v][m]);
    }
    for (int v = 0; v < 2; ++v)
      for (int m = 0; m < M; ++m) write_rows<S, Activation::kInt8>(a, m0 + m, n + v * S::kLanes, acc[v][m]);
  }

  /// bytes[step][row][4] = codes of the whole panel.
  static void unpack_panel(const PanelShape& s, const uint8_t* panel, uint8_t* bytes) {
    const int64_t blocks = P::blocks(s);
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* block = panel + b * P::kBlockBytes;
      uint8_t* out = bytes + b * Packed::kSteps * kStepBytes;
      for (int v = 0; v < 2; ++v) {
        Int words[Packed::kWords];
        for (int w = 0; w < Packed::kWords; ++w) words[w] = S::load(block + w * kStepBytes + v * kStepBytes / 2);
        S::prefetch(block + kPrefetchBytes);
#pragma GCC unroll 8
        for (int step = 0; step < Packed::kSteps; ++step)
          S::store(out + step * kStepBytes + v * kStepBytes / 2, Packed::template step<S>(words, step));
      }
    }
  }

  /// Rows [m0, m0 + M) of x times a panel of unpacked codes; groups are whole steps.
  template <int M>
  static void byte_tile(const MatmulArgs& a, const uint8_t* bytes, const Factors<S>& factors, int64_t n, int64_t m0) {
    const PanelShape& s = a.shape;
    const int64_t steps = (s.k + 3) / 4, group_steps = s.groups == 1 ? steps : s.group / 4;
    const int8_t* x = a.xq + m0 * a.ldxq;  // [M, ldxq]
    Float acc[2][M];
    for (int m = 0; m < M; ++m) acc[0][m] = acc[1][m] = S::zero_f();
    int64_t k4 = 0;
    for (int64_t g = 0; g < s.groups; ++g) {
      const int64_t group_end = smaller(k4 + group_steps, steps);
      Int total[2][M];
      for (int m = 0; m < M; ++m) total[0][m] = total[1][m] = S::zero();
      while (k4 < group_end) {
        const int64_t end = smaller(k4 + Dot::kSteps, group_end);
        Int part[2][M];
        for (int m = 0; m < M; ++m) part[0][m] = part[1][m] = S::zero();
        for (; k4 < end; ++k4) {
          const Int c0 = S::load(bytes + k4 * kStepBytes), c1 = S::load(bytes + k4 * kStepBytes + kStepBytes / 2);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            const Int xs = S::broadcast4(x + m * a.ldxq + 4 * k4);
            part[0][m] = Dot::add(part[0][m], c0, xs);
            part[1][m] = Dot::add(part[1][m], c1, xs);
            S::pin(part[0][m], part[1][m]);
          }
        }
        for (int v = 0; v < 2; ++v)
          for (int m = 0; m < M; ++m) total[v][m] = S::add32(total[v][m], Dot::widen(part[v][m]));
      }
      for (int v = 0; v < 2; ++v)
        for (int m = 0; m < M; ++m) acc[v][m] = fold(a, factors, m0 + m, g, v, total[v][m], acc[v][m]);
    }
    for (int v = 0; v < 2; ++v)
      for (int m = 0; m < M; ++m) write_rows<S, Activation::kInt8>(a, m0 + m, n + v * S::kLanes, acc[v][m]);
  }

  /// All rows of x from m0 on, in tiles of at most M rows.
  template <int M>
  static void byte_tiles(const MatmulArgs& a, const uint8_t* bytes, const Factors<S>& factors, int64_t n, int64_t m0) {
    for (; m0 + M <= a.m; m0 += M) byte_tile<M>(a, bytes, factors, n, m0);
    if constexpr (M > 1) {
      if (m0 < a.m) byte_tiles<M - 1>(a, bytes, factors, n, m0);
    }
  }

  template <int M>
  static void direct_rows(const MatmulArgs& a, const uint8_t* panel, int64_t n) {
    if (a.m == M) return direct_panel<M>(a, panel, n, 0);
    if constexpr (M > 1) direct_rows<M - 1>(a, panel, n);
  }

  static bool direct(int64_t m, const PanelShape& s) {
    return !kBase3 && m <= S::kDirectRows && (s.groups == 1 || s.group % P::kBlockK == 0);
  }

  static int64_t scratch_bytes(int64_t m, const PanelShape& s) {
    const int64_t codes = P::blocks(s) * P::kBlockK;  // relayout: one row
    return m == 0 ? codes : direct(m, s) ? 0 : codes * P::kRows;
  }

  static void run(const MatmulArgs& a) {
    if (a.m == 0) return;
    const int64_t bytes = P::bytes(a.shape);
    for (int64_t n = a.n0; n < a.n1; n += P::kRows) {
      const uint8_t* panel = a.w + n / P::kRows * bytes;
      if (direct(a.m, a.shape)) {
        direct_rows<S::kDirectRows>(a, panel, n);
      } else {
        unpack_panel(a.shape, panel, a.scratch);
        byte_tiles<S::kTileRows>(a, a.scratch, factors_of<S, F>(panel, a.shape), n, 0);
      }
    }
  }

  static constexpr KernelName kName = matmul_name(F::kName, Activation::kInt8, S::kTileName);
  static constexpr MatmulKernel kernel() {
    return {kName.text,
            "docs/kernels.md#integer-panels",
            F::kId,
            Activation::kInt8,
            kAdd != 0,
            P::kRows,
            4,
            &P::bytes,
            &relayout_panel<S, F, kFlip>,
            &scratch_bytes,
            &run};
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
