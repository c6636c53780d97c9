#include <algorithm>

#include "base/checked.h"
#include "base/try.h"
#include "kernels/registry.h"
#include "ops/matmul.h"

namespace lowbit {
namespace {

Status grow(Buffer& buffer, int64_t bytes, const char* what) {
  if (buffer.size() >= bytes) return {};
  LOWBIT_TRY_ASSIGN(buffer, Buffer::allocate(bytes, what));
  return {};
}

float sum_int8(const int8_t* xq, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += xq[i];
  return float(sum);
}

float sum_ascending(const float* x, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

}  // namespace

Status ActivationRows::prepare(Activation kind, const float* x, int64_t m, int64_t k, int64_t ldx, Isa isa,
                               ThreadPool&) {
  kind_ = kind;
  isa_ = isa;
  x_ = x;
  m_ = m;
  k_ = k;
  ldx_ = ldx;
  ldxq_ = round_up(std::max<int64_t>(k, 1), 64);
  for (Codes& c : codes_) c.valid = false;
  for (Sums& s : sums_) s.valid = false;
  return {};
}

Result<const ActivationRows::Codes*> ActivationRows::codes(int64_t group, ThreadPool& pool) {
  auto found = std::find_if(codes_.begin(), codes_.end(), [&](const Codes& c) { return c.group == group; });
  if (found == codes_.end()) {
    codes_.push_back(Codes{group, false, {}, {}});
    found = codes_.end() - 1;
  }
  if (found->valid) return &*found;
  const int64_t width = group == 0 ? std::max<int64_t>(k_, 1) : group,
                groups = std::max<int64_t>(1, ceil_div(k_, width));
  LOWBIT_TRY(grow(found->values, m_ * ldxq_, "int8 activations"));
  LOWBIT_TRY(grow(found->scales, 4 * m_ * groups, "activation scales"));
  const VectorOps& ops = vector_ops(isa_);
  int8_t* values = found->values.as<int8_t>();
  float* scales = found->scales.as<float>();
  const int64_t rows_per_chunk = std::max<int64_t>(1, 16384 / ldxq_);
  pool.parallel_for(m_, rows_per_chunk, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * width, n = std::min(width, k_ - first), padded = g + 1 < groups ? n : ldxq_ - first;
        ops.quantize_row_int8(x_ + r * ldx_ + first, n, padded, values + r * ldxq_ + first, scales + r * groups + g);
      }
  });
  found->valid = true;
  return &*found;
}

Result<const float*> ActivationRows::sums(int64_t group, int64_t code_group, ThreadPool& pool) {
  const int8_t* xq = nullptr;
  if (kind_ == Activation::kInt8) {
    LOWBIT_TRY_ASSIGN(const Codes* const quantized, codes(code_group, pool));
    xq = quantized->values.as<int8_t>();
  }
  auto found = std::find_if(sums_.begin(), sums_.end(),
                            [&](const Sums& s) { return s.group == group && s.code_group == code_group; });
  if (found == sums_.end()) {
    sums_.push_back(Sums{code_group, group, false, {}});
    found = sums_.end() - 1;
  }
  if (found->valid) return found->values.as<float>();
  const int64_t groups = ceil_div(k_, group);
  LOWBIT_TRY(grow(found->values, 4 * m_ * groups, "activation sums"));
  float* out = found->values.as<float>();
  const int64_t rows_per_chunk = std::max<int64_t>(1, 16384 / std::max<int64_t>(k_, 1));
  pool.parallel_for(m_, rows_per_chunk, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * group, n = std::min(group, k_ - first);
        out[r * groups + g] =
            xq != nullptr ? sum_int8(xq + r * ldxq_ + first, n) : sum_ascending(x_ + r * ldx_ + first, n);
      }
  });
  found->valid = true;
  return out;
}

Result<uint8_t*> ActivationRows::scratch(int64_t bytes, int workers) {
  LOWBIT_TRY(grow(scratch_, bytes * workers, "matmul scratch"));
  return scratch_.as<uint8_t>();
}

}  // namespace lowbit
