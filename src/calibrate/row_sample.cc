#include "calibrate/row_sample.h"

#include <algorithm>

#include "base/try.h"

namespace lowbit {
namespace {

constexpr int64_t kSampledShare = 16, kLeastSampled = 64;

}  // namespace

Result<QTensor> sample_rows(const QTensor& w) {
  QTensor some;
  some.n = std::min(w.n, std::max(kLeastSampled, w.n / kSampledShare));
  some.k = w.k;
  LOWBIT_TRY_ASSIGN(some.codes,
                    Buffer::allocate(some.n * some.k * static_cast<int64_t>(sizeof(float)), "sampled rows"));
  for (int64_t i = 0; i < some.n; ++i) dequantize_rows(w, i * w.n / some.n, 1, some.codes.as<float>() + i * some.k);
  return some;
}

int64_t bytes_of_rows(const QTensor& some, int64_t n) {
  const auto table = static_cast<int64_t>(some.codebook.size() * sizeof(float));
  return table + (some.total_bytes() - table) * n / some.n;
}

}  // namespace lowbit
