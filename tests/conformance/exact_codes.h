#pragma once
// int8 codes with exact scales (docs/numerics.md#activations) as the kernels of GPUs keep them.

#include <cstdint>
#include <vector>

#include "kernels/tables.h"
#include "ops/activation_rounding.h"

namespace lowbit::conformance {

/// Codes of x [k] by the reference, zeros from there to `ld`, and for every 32 columns a copy of the scale that 128
/// share.
inline void exact_codes(const float* x, int64_t k, int64_t ld, int8_t* codes, float* scales) {
  constexpr int64_t kCopies = kExactScaleColumns / 32;
  const int64_t groups = (k + 31) / 32;
  std::vector<float> of_128(static_cast<size_t>((groups + kCopies - 1) / kCopies));
  std::vector<int32_t> sums(of_128.size());
  kRefVectorOps.quantize_groups_int8(x, nullptr, 1.0f, k, kExactScaleColumns, ld, true, codes, of_128.data(),
                                     sums.data());
  for (int64_t g = 0; g < groups; ++g) scales[g] = of_128[static_cast<size_t>(g / kCopies)];
}

}  // namespace lowbit::conformance
