#pragma once
// Integer-valued formats, and codebooks of integers, x int8 activations. Up to S::kDirectRows tokens: codes are
// unpacked in registers. More: a panel is unpacked once into bytes, and tiles of x rows run over those.

#include "kernels/cpu/integer_tile.h"
#include "kernels/kernel_name.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class S, class F>
struct IntegerMatmul : IntegerCodes<S, F> {
  using C = IntegerCodes<S, F>;
  using P = typename C::P;
  using Packed = typename C::Packed;
  using Blocks = BlockCodes<S, F>;
  using Lookup = typename C::Lookup;
  using Base3 = Base3Sums<S, Base3Codes<S, F>>;
  static constexpr int64_t kStepBytes = C::kStepBytes;

  /// Prefetches the first bytes of a run of panels: nothing before it has. The rest is the hardware's guess or
  /// ReadAhead's.
  static constexpr int64_t kFirst = 8192;
  static void prefetch_first(const uint8_t* panel) {
    for (int64_t at = 0; at < kFirst; at += kStepBytes) S::prefetch(panel + at);
  }

  /// More tokens than these have panels unpacked to bytes whose groups of x are no whole blocks.
  static constexpr int64_t kStepsRows = 2;
  static constexpr bool kPartialBlocks = !C::kBase3 && P::kBlockK > 4;

  /// bytes[step][row][4] = codes, or a codebook's entries, of the whole panel.
  static void unpack_panel(const MatmulArgs& a, const uint8_t* panel, uint8_t* bytes) {
    const int64_t blocks = P::blocks(a.shape);
    const Lookup lookup = C::lookup_of(a);
    typename P::BlockIterator at(a.shape, panel, 0);
    const uint8_t* before = C::kNoBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      Blocks block;
      const uint8_t* const from = at.next();
      block.template load<false>(from, 0, {0, before});
      before = from;
      uint8_t* out = bytes + b * Packed::kSteps * kStepBytes;
#pragma GCC unroll 8
      for (int step = 0; step < Packed::kSteps; ++step)
        for (int v = 0; v < 2; ++v) S::store(out + step * kStepBytes + v * kStepBytes / 2, block.step(v, step, lookup));
    }
  }

  static bool whole_blocks(const PanelShape& s) { return s.x_groups == 1 || s.x_group % P::kBlockK == 0; }
  static bool direct(int64_t m, const PanelShape& s) {
    if (C::kBase3) return m <= Base3::kMostRows && s.x_group <= Base3::kMaxFractionK;
    const int64_t most = C::kHistory ? 2 * S::kTileRows : S::kDirectRows;  // a trellis costs more to unpack again
    return m <= (whole_blocks(s) ? most : kStepsRows);
  }

  static int64_t scratch_bytes(int64_t m, const PanelShape& s) {
    if (m == 0) return relayout_scratch_bytes(P::kRows);
    return direct(m, s) ? 0 : P::blocks(s) * P::kBlockK * P::kRows;
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
        if constexpr (C::kBase3) {
          IntegerTile<S, Base3Codes<S, F>>::template tiles<int(Base3::kMostRows)>(a, panel, factors, n, 0);
        } else if (whole_blocks(a.shape)) {
          IntegerTile<S, Blocks>::all_rows(a, panel, factors, n);
        } else if constexpr (kPartialBlocks) {
          IntegerTile<S, StepCodes<S, F>>::template tiles<int(kStepsRows)>(a, panel, factors, n, 0);
        }
      } else {
        unpack_panel(a, panel, a.scratch);
        IntegerTile<S, BytesOf<S, F>>::all_rows(a, a.scratch, factors, n);
      }
    }
  }

  static constexpr KernelName kName = matmul_name(F::kName, Activation::kInt8, S::kTileName);
  static constexpr MatmulKernel kernel() {
    constexpr auto kRelayout = &relayout_panel < S, F, C::kTable ? 0u : C::kFlip > ;
    return {kName.text, "docs/kernels.md#integer-panels",
            F::kId,     Activation::kInt8,
            C::kAdd,    P::kRows,
            4,          &P::bytes,
            kRelayout,  &scratch_bytes,
            &run,       C::kTable};
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
