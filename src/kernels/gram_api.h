#pragma once
// Products of columns with columns, summed over rows, for Hessians: the contract between backend/ and the kernels of
// each instruction set.

#include <cstdint>

namespace lowbit {

/// Columns of a panel: its rows lie one behind the other, [rows, kGramColumns], so that a row is read as it came and no
/// matrix is transposed.
inline constexpr int64_t kGramColumns = 32;

/// For columns i < m of one panel and j < n of another: s = 0; s = fma(left[r][i], right[r][j], s), r ascending; then
/// sum[i * ld + j] += double(s). kernels/ref/gram.cc is the definition, every kernel gives the same bits, NaN payloads
/// aside. All columns of both panels may be read.
struct GramArgs {
  const float *left = nullptr, *right = nullptr;
  int64_t rows = 0;
  double* sum = nullptr;
  int64_t ld = 0, m = 0, n = 0;
};

using GramKernel = void (*)(const GramArgs& args);

extern const GramKernel kRefGram;
extern const GramKernel kAvx2Gram;
extern const GramKernel kAvx512Gram;

}  // namespace lowbit
