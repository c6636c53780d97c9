#include <bit>
#include <cmath>
#include <cstring>

#include "ops/bitlinear.h"

namespace lowbit {
namespace {

/// Columns where two rows of bits differ.
int64_t differences(const uint8_t* a, const uint8_t* b, int64_t k) {
  int64_t count = 0, byte = 0;
  for (; 8 * (byte + 8) <= k; byte += 8) {
    uint64_t left = 0, right = 0;
    std::memcpy(&left, a + byte, 8);
    std::memcpy(&right, b + byte, 8);
    count += std::popcount(left ^ right);
  }
  for (; 8 * byte < k; ++byte) {
    const int64_t columns = k - 8 * byte;
    const unsigned mask = columns < 8 ? (1u << columns) - 1 : 0xffu;
    count += std::popcount((unsigned(a[byte]) ^ b[byte]) & mask);
  }
  return count;
}

}  // namespace

void binarize_activations(const float* x, int64_t m, int64_t k, int64_t ldx, uint8_t* bits, int64_t stride,
                          float* scales) {
  for (int64_t i = 0; i < m; ++i) {
    const float* row = x + i * ldx;
    uint8_t* out = bits + i * stride;
    std::memset(out, 0, size_t((k + 7) / 8));
    float sums[32] = {};
    for (int64_t c = 0; c < k; ++c) {
      if (!(row[c] < 0)) out[c / 8] = uint8_t(out[c / 8] | 1u << (c % 8));
      sums[c % 32] += std::abs(row[c]);
    }
    for (int half = 16; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    scales[i] = k > 0 ? sums[0] / float(k) : 0;
  }
}

void binary_matmul(const BinaryProduct& call, ThreadPool& pool) {
  pool.parallel_for(call.n, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t j = begin; j < end; ++j)
      for (int64_t i = 0; i < call.m; ++i) {
        const int64_t differ = differences(call.x + i * call.x_stride, call.weight + j * call.weight_stride, call.k);
        const float scaled = float(call.k - 2 * differ) * (call.w_scales != nullptr ? call.w_scales[j] : 1);
        call.y[i * call.ldy + j] =
            std::fma(scaled, call.x_scales != nullptr ? call.x_scales[i] : 1, call.bias != nullptr ? call.bias[j] : 0);
      }
  });
}

}  // namespace lowbit
