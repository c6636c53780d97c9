#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/try.h"
#include "kernels/registry.h"
#include "ops/fp8.h"
#include "ops/matmul.h"

namespace lowbit {
namespace {

/// This code runs hundreds of times per generated token: it looks for work before it calls anything that returns a
/// Status.
Status grow(Buffer& buffer, int64_t bytes, const char* what) {
  LOWBIT_TRY_ASSIGN(buffer, Buffer::allocate(bytes, what, Pages::kLarge));
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

/// Runs of a contiguous row to their places, the last first, and zeros behind each and up to `end`.
void spread_runs(int8_t* row, int64_t k, int64_t run, int64_t stride, int64_t end) {
  for (int64_t j = ceil_div(k, run) - 1; j >= 0; --j) {
    const int64_t n = std::min(run, k - j * run);
    std::memmove(row + j * stride, row + j * run, size_t(n));
    std::memset(row + j * stride + n, 0, size_t(end - j * stride - n));
    end = j * stride;
  }
}

}  // namespace

void ActivationRows::reset(Activation kind, const float* x, int64_t m, int64_t k, int64_t ldx, Isa isa) {
  kind_ = kind;
  ops_ = &vector_ops(isa);
  fp8_ = &fp8_kernels(isa);
  x_ = x;
  norm_ = nullptr;
  m_ = m;
  k_ = k;
  ldx_ = ldx;
  expected_ = nullptr;
  for (Codes& c : codes_) c.valid = false;
  for (Fp8Rows& r : fp8_rows_) r.valid = false;
  for (Sums& s : sums_) s.valid = false;
}

Status ActivationRows::prepare(Activation kind, const float* x, int64_t m, int64_t k, int64_t ldx, Isa isa,
                               ThreadPool& pool) {
  reset(kind, x, m, k, ldx, isa);
  if (kind != Activation::kF32 || rounding_.halves == Halves::kNone || m * k == 0) return {};
  if (rounded_.size() < 4 * m * k) LOWBIT_TRY(grow(rounded_, 4 * m * k, "16-bit activations"));
  auto* const rounded = rounded_.as<float>();
  pool.parallel_for(m, rows_per_chunk(), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) round_to_halves(x + r * ldx, k, rounding_.halves, rounded + r * k);
  });
  x_ = rounded;
  ldx_ = k;
  return {};
}

Status ActivationRows::prepare_normed(const float* x, const float* weight, float eps, int64_t m, int64_t k, int64_t ldx,
                                      Isa isa, ThreadPool&) {
  reset(Activation::kInt8, x, m, k, ldx, isa);
  norm_ = weight;
  eps_ = eps;
  return {};
}

Result<ActivationRows::Codes*> ActivationRows::room_for_codes(const CodeLayout& layout) {
  auto found = std::find_if(codes_.begin(), codes_.end(), [&](const Codes& c) { return c.layout == layout; });
  if (found == codes_.end()) {
    codes_.push_back(Codes{});
    codes_.back().layout = layout;
    found = codes_.end() - 1;
  }
  int64_t columns = layout.run == 0 ? k_ : ceil_div(k_, layout.run) * layout.stride;
  if (layout.group > 0 && 64 % layout.group != 0) columns += 60;  // tiles of fewer than 64 columns end behind the last
  found->ld = round_up(std::max<int64_t>(columns, 1), 64);
  if (found->ld % 128 == 0) found->ld += 64;  // an odd number of cache lines: rows of a tile do not share a cache set
  found->groups = layout.group == 0 ? 1 : std::max<int64_t>(1, ceil_div(k_, layout.group));
  const int64_t bytes = round_up(m_, kActivationRowMultiple) * found->ld, factor_bytes = 4 * m_ * found->groups;
  if (found->values.size() < bytes) LOWBIT_TRY(grow(found->values, bytes, "int8 activations"));
  if (found->scales.size() < factor_bytes) LOWBIT_TRY(grow(found->scales, factor_bytes, "activation scales"));
  if (found->sums.size() < factor_bytes) LOWBIT_TRY(grow(found->sums, factor_bytes, "activation sums"));
  return &*found;
}

Result<const ActivationRows::Codes*> ActivationRows::codes(const CodeLayout& layout, ThreadPool& pool) {
  for (const Codes& c : codes_)
    if (c.valid && c.layout == layout) return &c;
  LOWBIT_TRY_ASSIGN(Codes* const entry, room_for_codes(layout));
  if (x_ == nullptr && m_ * k_ > 0)
    return fail(ErrorCode::kShapeMismatch, "matmul x", "codes of another layout", "those that were expected");
  const int64_t width = layout.group == 0 ? std::max<int64_t>(k_, 1) : layout.group;
  pool.parallel_for(m_, rows_per_chunk(), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = x_ + r * ldx_;
      const float factor = norm_ == nullptr ? 1.0f : ops_->rms_factor(row, k_, eps_);
      int8_t* to = entry->values.as<int8_t>() + r * entry->ld;
      float* scales = entry->scales.as<float>() + r * entry->groups;
      if (k_ == 0) scales[0] = 0;
      // One scale of a normed row takes the norm's factor: codes do not wait for it.
      const bool apart = norm_ != nullptr && layout.group == 0;
      if (rounding_.is_default())
        ops_->quantize_groups_int8(row, norm_, apart ? 1.0f : factor, k_, width, entry->ld, layout.exact_scales, to,
                                   scales, entry->sums.as<int32_t>() + r * entry->groups);
      else
        round_row(row, factor, width, *entry, r);
      if (apart && rounding_.is_default()) scales[0] *= factor;
      if (layout.run > 0) spread_runs(to, k_, layout.run, layout.stride, entry->ld);
    }
  });
  entry->valid = true;
  return entry;
}

Result<const ActivationRows::Fp8Rows*> ActivationRows::fp8_rows(int64_t group, bool in_pairs, ThreadPool& pool) {
  auto rows = std::find_if(fp8_rows_.begin(), fp8_rows_.end(),
                           [&](const Fp8Rows& r) { return r.group == group && r.in_pairs == in_pairs; });
  if (rows == fp8_rows_.end()) {
    fp8_rows_.emplace_back().group = group;
    rows = fp8_rows_.end() - 1;
    rows->in_pairs = in_pairs;
  }
  if (rows->valid) return &*rows;
  rows->groups = ceil_div(k_, group);
  rows->ld = fp8_row_words(k_, in_pairs);
  const int64_t code_bytes = m_ * k_, value_bytes = 4 * m_ * rows->ld, scale_bytes = 4 * m_ * rows->groups;
  if (rows->codes.size() < code_bytes) LOWBIT_TRY(grow(rows->codes, code_bytes, "fp8 activations"));
  if (rows->values.size() < value_bytes) LOWBIT_TRY(grow(rows->values, value_bytes, "fp8 activations"));
  if (rows->scales.size() < scale_bytes) LOWBIT_TRY(grow(rows->scales, scale_bytes, "activation scales"));
  pool.parallel_for(m_, rows_per_chunk(), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      Fp8QuantArgs a;
      a.x = x_ + r * ldx_;
      a.rows = 1, a.columns = k_, a.ldx = ldx_, a.block = group;
      a.codes = rows->codes.as<uint8_t>() + r * k_, a.ldcodes = k_;
      a.scales = rows->scales.as<float>() + r * rows->groups;
      fp8_->quantize(a);
      decode_fp8_row(*fp8_, a.codes, k_, 1.0f, in_pairs, rows->values.as<float>() + r * rows->ld);
    }
  });
  rows->valid = true;
  return &*rows;
}

void ActivationRows::round_row(const float* x, float factor, int64_t width, Codes& entry, int64_t row) const {
  std::vector<float> v(x, x + k_);
  for (int64_t i = 0; norm_ != nullptr && i < k_; ++i) v[static_cast<size_t>(i)] = x[i] * factor * norm_[i];
  clip_row(v.data(), k_, rounding_.clipped);
  round_groups(v.data(), k_, width, entry.ld, rounding_.largest, entry.values.as<int8_t>() + row * entry.ld,
               entry.scales.as<float>() + row * entry.groups, entry.sums.as<int32_t>() + row * entry.groups);
}

Status ActivationRows::expect_codes(int64_t m, int64_t k, const CodeLayout& layout, Isa isa) {
  reset(Activation::kInt8, nullptr, m, k, 0, isa);
  LOWBIT_TRY_ASSIGN(expected_, room_for_codes(layout));
  expected_->valid = true;
  return {};
}

void ActivationRows::write_codes(int64_t m, int64_t first, int64_t n, const float* x) {
  const int64_t group = expected_->layout.group, at = m * expected_->groups + first / group;
  const int64_t end = first + n == k_ ? expected_->ld : first + n;
  int8_t* const to = expected_->values.as<int8_t>() + m * expected_->ld + first;
  float* const scales = expected_->scales.as<float>() + at;
  int32_t* const code_sums = expected_->sums.as<int32_t>() + at;
  if (rounding_.is_default())
    ops_->quantize_groups_int8(x, nullptr, 1.0f, n, group, end - first, expected_->layout.exact_scales, to, scales,
                               code_sums);
  else
    round_groups(x, n, group, end - first, rounding_.largest, to, scales, code_sums);
}

ActivationRows::Sums& ActivationRows::sums_entry(int64_t group, const CodeLayout& layout, int factor) {
  for (Sums& s : sums_)
    if (s.group == group && s.layout == layout && s.factor == factor) return s;
  return sums_.emplace_back(Sums{layout, group, factor, false, {}});
}

Result<const float*> ActivationRows::sums(int64_t group, int64_t k, const CodeLayout& layout, ThreadPool& pool) {
  const Codes* quantized = nullptr;
  if (kind_ == Activation::kInt8) {
    LOWBIT_TRY_ASSIGN(quantized, codes(layout, pool));
  }
  Sums& entry = sums_entry(group, layout, 0);
  if (entry.valid) return entry.values.as<float>();
  // Columns that share a scale, as they lie in memory.
  const int64_t code_group = layout.group > 0 && layout.run > 0 ? layout.stride : layout.group;
  const int64_t groups = ceil_div(k, group), code_groups = code_group > 0 ? ceil_div(k, code_group) : 1;
  if (entry.values.size() < 4 * m_ * groups) LOWBIT_TRY(grow(entry.values, 4 * m_ * groups, "activation sums"));
  float* out = entry.values.as<float>();
  pool.parallel_for(m_, rows_per_chunk(), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * group, last = std::min(first + group, k);
        if (quantized == nullptr) {
          out[r * groups + g] = sum_ascending(x_ + r * ldx_ + first, last - first);
          continue;
        }
        const int8_t* xq = quantized->values.as<int8_t>() + r * quantized->ld;
        float sum = code_group > 0 ? 0.0f : float(sum_int8(xq + first, last - first));
        for (int64_t c = first; code_group > 0 && c < last; c += code_group) {
          const float scale = quantized->scales.as<float>()[r * code_groups + c / code_group];
          sum = std::fma(float(sum_int8(xq + c, std::min(code_group, last - c))), scale, sum);
        }
        out[r * groups + g] = sum;
      }
  });
  entry.valid = true;
  return out;
}

Result<const int32_t*> ActivationRows::code_sums(int64_t x_group, int64_t k, const CodeLayout& layout, int factor,
                                                 ThreadPool& pool) {
  LOWBIT_TRY_ASSIGN(const Codes* const quantized, codes(layout, pool));
  Sums& entry = sums_entry(x_group, layout, factor);
  if (entry.valid) return entry.values.as<int32_t>();
  const int64_t x_groups = ceil_div(k, x_group);
  if (entry.values.size() < 4 * m_ * x_groups) LOWBIT_TRY(grow(entry.values, 4 * m_ * x_groups, "activation sums"));
  int32_t* out = entry.values.as<int32_t>();
  const int8_t* xq = quantized->values.as<int8_t>();
  // Modulo 2^32, as the kernels' sums are.
  const auto times_factor = [&](int32_t sum) { return int32_t(uint32_t(sum) * uint32_t(factor)); };
  if (quantized->groups == x_groups) {  // the quantizer has summed them
    const int32_t* sums = quantized->sums.as<int32_t>();
    for (int64_t i = 0; i < m_ * x_groups; ++i) out[i] = times_factor(sums[i]);
    entry.valid = true;
    return out;
  }
  pool.parallel_for(m_, rows_per_chunk(), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t j = 0; j < x_groups; ++j) {
        const int64_t first = j * x_group;
        out[r * x_groups + j] = times_factor(sum_int8(xq + r * quantized->ld + first, std::min(x_group, k - first)));
      }
  });
  entry.valid = true;
  return out;
}

Status ActivationRows::prepare_for(const MatmulPlan& plan, ThreadPool& pool) {
  if (plan.shape_.offsets) LOWBIT_TRY(sums(plan.shape_.group, plan.shape_.k, plan.code_layout(), pool));
  if (kind_ == Activation::kFp8) LOWBIT_TRY(fp8_rows(plan.activation_group_, plan.kernel_->pairs, pool));
  if (kind_ != Activation::kInt8) return {};
  if (plan.kernel_->code_offset != 0)
    LOWBIT_TRY(code_sums(plan.shape_.x_group, plan.shape_.k, plan.code_layout(), plan.kernel_->code_offset, pool));
  LOWBIT_TRY(codes(plan.code_layout(), pool));
  return {};
}

/// Rows whose quantization is worth a thread of its own.
int64_t ActivationRows::rows_per_chunk() const { return std::max<int64_t>(1, 16384 / std::max<int64_t>(k_, 1)); }

Result<uint8_t*> ActivationRows::scratch(int64_t bytes, int workers) {
  if (scratch_.size() < bytes * workers) LOWBIT_TRY(grow(scratch_, bytes * workers, "matmul scratch"));
  return scratch_.as<uint8_t>();
}

}  // namespace lowbit
