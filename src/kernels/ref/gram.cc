#include "kernels/gram_api.h"

#include <cmath>

namespace lowbit {
namespace {

void add_products(const GramArgs& a) {
  for (int64_t i = 0; i < a.m; ++i)
    for (int64_t j = 0; j < a.n; ++j) {
      float sum = 0;
      for (int64_t r = 0; r < a.rows; ++r)
        sum = std::fma(a.left[r * kGramColumns + i], a.right[r * kGramColumns + j], sum);
      a.sum[i * a.ld + j] += double(sum);
    }
}

}  // namespace

constinit const GramKernel kRefGram = &add_products;

}  // namespace lowbit
