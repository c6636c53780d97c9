#pragma once
// GramArgs for any vocabulary of the panel kernels: a lane is a column of the right panel, a sum one chain of fma over
// the rows.

#include "kernels/gram_api.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// kTall: columns of the left panel whose sums stay in registers, in two vectors each.
template <class S, int kTall>
struct GramTiles {
  static constexpr int64_t kWide = 2 * S::kLanes;
  static constexpr int64_t kRows = 128;  // of both panels, in the first-level cache beside the sums
  static_assert(kGramColumns % kWide == 0 && kGramColumns % kTall == 0);

  LOWBIT_INLINE void add_rows(const float* left, const float* right, int64_t rows, float* sums) {
    typename S::Float sum[2][kTall];
    for (int v = 0; v < 2; ++v)
      for (int i = 0; i < kTall; ++i) sum[v][i] = S::load_f(sums + i * kGramColumns + v * S::kLanes);
    for (int64_t r = 0; r < rows; ++r, left += kGramColumns, right += kGramColumns) {
      const typename S::Float w[2] = {S::load_f(right), S::load_f(right + S::kLanes)};
#pragma GCC unroll 16
      for (int i = 0; i < kTall; ++i) {
        const typename S::Float x = S::set_f(left[i]);
        for (int v = 0; v < 2; ++v) sum[v][i] = S::fma(w[v], x, sum[v][i]);
      }
    }
    for (int v = 0; v < 2; ++v)
      for (int i = 0; i < kTall; ++i) S::store_f(sums + i * kGramColumns + v * S::kLanes, sum[v][i]);
  }

  static void add_products(const GramArgs& a) {
    alignas(64) float sums[kGramColumns * kGramColumns] = {};
    for (int64_t r = 0; r < a.rows; r += kRows) {
      const int64_t rows = r + kRows < a.rows ? kRows : a.rows - r, at = r * kGramColumns;
      for (int64_t j = 0; j < a.n; j += kWide)
        for (int64_t i = 0; i < a.m; i += kTall)
          add_rows(a.left + at + i, a.right + at + j, rows, sums + i * kGramColumns + j);
    }
    for (int64_t i = 0; i < a.m; ++i)
      for (int64_t j = 0; j < a.n; ++j) a.sum[i * a.ld + j] += double(sums[i * kGramColumns + j]);
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
