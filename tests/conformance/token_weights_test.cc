// VectorOps::sum_token_weights of every instruction set beside the reference: the same integers.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/registry.h"

namespace lowbit {
namespace {

TEST(TokenWeights, SumsAreTheReferences) {
  const VectorOps& ref = *ref_table().vector;
  Rng rng(7);
  for (const int64_t n : {int64_t{1}, int64_t{15}, int64_t{16}, int64_t{17}, int64_t{100}, kMostTokenWeights})
    for (const float spread : {0.0f, 1e-6f, 1.0f, 10.0f, 100.0f, 1e30f})
      for (const float temperature : {1e-30f, 0.3f, 1.0f, 7.0f, 1e6f}) {
        std::vector<float> logits(static_cast<size_t>(n));
        for (float& l : logits) l = spread * float(rng.normal());
        const float largest = *std::max_element(logits.begin(), logits.end());
        if (n > 2) logits[rng.below(uint64_t(n))] = -std::numeric_limits<float>::infinity();
        for (const float above : {largest, largest + spread}) {
          const uint64_t want = ref.sum_token_weights(logits.data(), n, above, temperature);
          for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
            if (!isa_available(isa)) continue;
            EXPECT_EQ(want, vector_ops(isa).sum_token_weights(logits.data(), n, above, temperature))
                << isa_name(isa) << ", " << n << " logits, spread " << spread << ", temperature " << temperature;
          }
        }
      }
}

TEST(TokenWeights, EqualLogitsWeighOneEach) {
  const std::vector<float> logits(size_t(kMostTokenWeights), 3.5f);
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (!isa_available(isa)) continue;
    EXPECT_EQ(vector_ops(isa).sum_token_weights(logits.data(), kMostTokenWeights, 3.5f, 0.7f),
              uint64_t(kMostTokenWeights) << 40);
  }
}

}  // namespace
}  // namespace lowbit
