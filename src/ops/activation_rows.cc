#include <algorithm>
#include <cmath>

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

int32_t sum_int8(const int8_t* xq, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += xq[i];
  return sum;
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
  if (ldxq_ % 128 == 0) ldxq_ += 64;  // an odd number of cache lines: rows of a tile do not fall into one cache set
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
  pool.parallel_for(m_, rows_per_chunk(), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * width, n = std::min(width, k_ - first), padded = g + 1 < groups ? n : ldxq_ - first;
        ops.quantize_row_int8(x_ + r * ldx_ + first, n, padded, values + r * ldxq_ + first, scales + r * groups + g);
      }
  });
  found->valid = true;
  return &*found;
}

ActivationRows::Sums& ActivationRows::sums_entry(int64_t group, int64_t code_group, int factor) {
  for (Sums& s : sums_)
    if (s.group == group && s.code_group == code_group && s.factor == factor) return s;
  return sums_.emplace_back(Sums{code_group, group, factor, false, {}});
}

Result<const float*> ActivationRows::sums(int64_t group, int64_t code_group, ThreadPool& pool) {
  const Codes* quantized = nullptr;
  if (kind_ == Activation::kInt8) {
    LOWBIT_TRY_ASSIGN(quantized, codes(code_group, pool));
  }
  Sums& entry = sums_entry(group, code_group, 0);
  if (entry.valid) return entry.values.as<float>();
  const int64_t groups = ceil_div(k_, group), segments = code_group > 0 ? ceil_div(k_, code_group) : 1;
  LOWBIT_TRY(grow(entry.values, 4 * m_ * groups, "activation sums"));
  float* out = entry.values.as<float>();
  pool.parallel_for(m_, rows_per_chunk(), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * group, last = std::min(first + group, k_);
        if (quantized == nullptr) {
          out[r * groups + g] = sum_ascending(x_ + r * ldx_ + first, last - first);
          continue;
        }
        const int8_t* xq = quantized->values.as<int8_t>() + r * ldxq_;
        float sum = code_group > 0 ? 0.0f : float(sum_int8(xq + first, last - first));
        for (int64_t c = first; code_group > 0 && c < last; c += code_group) {
          const float scale = quantized->scales.as<float>()[r * segments + c / code_group];
          sum = std::fma(float(sum_int8(xq + c, std::min(code_group, last - c))), scale, sum);
        }
        out[r * groups + g] = sum;
      }
  });
  entry.valid = true;
  return out;
}

Result<const int32_t*> ActivationRows::code_sums(int64_t segment, int64_t code_group, int factor, ThreadPool& pool) {
  LOWBIT_TRY_ASSIGN(const Codes* const quantized, codes(code_group, pool));
  Sums& entry = sums_entry(segment, code_group, factor);
  if (entry.valid) return entry.values.as<int32_t>();
  const int64_t segments = ceil_div(k_, segment);
  LOWBIT_TRY(grow(entry.values, 4 * m_ * segments, "activation sums"));
  int32_t* out = entry.values.as<int32_t>();
  const int8_t* xq = quantized->values.as<int8_t>();
  pool.parallel_for(m_, rows_per_chunk(), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t j = 0; j < segments; ++j) {
        const int64_t first = j * segment;
        // Modulo 2^32, as the kernels' sums are.
        const auto sum = uint32_t(sum_int8(xq + r * ldxq_ + first, std::min(segment, k_ - first)));
        out[r * segments + j] = int32_t(sum * uint32_t(factor));
      }
  });
  entry.valid = true;
  return out;
}

/// Rows whose quantization is worth a thread of its own.
int64_t ActivationRows::rows_per_chunk() const { return std::max<int64_t>(1, 16384 / ldxq_); }

Result<uint8_t*> ActivationRows::scratch(int64_t bytes, int workers) {
  LOWBIT_TRY(grow(scratch_, bytes * workers, "matmul scratch"));
  return scratch_.as<uint8_t>();
}

}  // namespace lowbit
