#include "pipeline/device_moment_sum.h"

#include <algorithm>
#include <limits>

#include "backend/backend.h"
#include "base/try.h"
#include "kernels/cuda_api.h"
#include "kernels/cuda_block_api.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};
constexpr uint64_t kNoneBad = std::numeric_limits<uint64_t>::max();

}  // namespace

Status DeviceMomentSum::prepare(int64_t m, int64_t k, bool compares) {
  const auto zeros = [k](Buffer& sum) -> Status {
    LOWBIT_TRY_ASSIGN(sum, cuda::allocate(k * k * int64_t(sizeof(double)), "second moments"));
    return cuda::fill(sum, 0);
  };
  if (sum_.empty()) {
    k_ = k;
    LOWBIT_TRY(zeros(sum_));
    if (compares) LOWBIT_TRY(zeros(other_sum_));
    LOWBIT_TRY_ASSIGN(bad_, cuda::allocate(int64_t(sizeof(uint64_t)), "second moments"));
    LOWBIT_TRY(cuda::upload(bad_, &kNoneBad, int64_t(sizeof(kNoneBad))));
  }
  const int64_t needed = kMomentChunk + m;  // less than a chunk is left of the calls before
  if (needed <= capacity_) return {};
  const auto grow = [&](Buffer& rows) -> Status {
    LOWBIT_TRY_ASSIGN(Buffer larger, cuda::allocate(needed * k * kFloat, "second moments"));
    if (filled_ > 0) LOWBIT_TRY(cuda::copy_floats(rows.as<float>(), filled_ * k, larger.as<float>(), nullptr));
    LOWBIT_TRY(cuda::synchronize(nullptr));
    rows = std::move(larger);
    return {};
  };
  LOWBIT_TRY(grow(rows_));
  if (compares) LOWBIT_TRY(grow(others_));
  capacity_ = needed;
  LOWBIT_TRY_ASSIGN(workspace_,
                    cuda::allocate(cuda::moments_workspace_bytes(needed, k, kMomentChunk), "second moments"));
  return {};
}

Status DeviceMomentSum::sum_up(int64_t rows) {
  cuda::AddMoments call{rows_.as<float>(), rows, k_, kMomentChunk, sum_.as<double>(), workspace_.as<float>(), nullptr};
  LOWBIT_TRY(cuda::add_moments(call));
  if (others_.empty()) return {};
  call.y = others_.as<float>();
  call.sum = other_sum_.as<double>();
  return cuda::add_moments(call);
}

Status DeviceMomentSum::append(const float* rows, int64_t m, Buffer& to) const {
  return cuda::copy_floats(rows, m * k_, to.as<float>() + filled_ * k_, nullptr);
}

Status DeviceMomentSum::keep_rest(int64_t whole, Buffer& rows) const {
  const int64_t rest = filled_ - whole;  // fewer than a chunk, so the copy does not overlap
  return rest == 0 ? Status{} : cuda::copy_floats(rows.as<float>() + whole * k_, rest * k_, rows.as<float>(), nullptr);
}

Status DeviceMomentSum::add(const float* rows, const float* y, int64_t m, int64_t k) {
  LOWBIT_TRY(prepare(m, k, y != nullptr));
  const auto seen = static_cast<uint64_t>(count_ * k);
  LOWBIT_TRY(cuda::find_non_finite(rows, m * k, seen, bad_.as<uint64_t>(), nullptr));
  LOWBIT_TRY(append(rows, m, rows_));
  if (y != nullptr) {
    LOWBIT_TRY(cuda::find_non_finite(y, m * k, seen, bad_.as<uint64_t>(), nullptr));
    LOWBIT_TRY(append(y, m, others_));
    LOWBIT_TRY(cuda::subtract_rows(rows, m * k, others_.as<float>() + filled_ * k, nullptr));
  }
  count_ += m;
  filled_ += m;
  const int64_t whole = filled_ / kMomentChunk * kMomentChunk;
  if (whole == 0) return {};
  LOWBIT_TRY(sum_up(whole));
  LOWBIT_TRY(keep_rest(whole, rows_));
  if (y != nullptr) LOWBIT_TRY(keep_rest(whole, others_));
  filled_ -= whole;
  return {};
}

Result<std::vector<float>> DeviceMomentSum::mean_of(const Buffer& sum, bool upper) const {
  LOWBIT_TRY_ASSIGN(const Buffer h, cuda::allocate(k_ * k_ * kFloat, "second moments"));
  LOWBIT_TRY(cuda::finish_moments(const_cast<Buffer&>(sum).as<double>(), k_, 1.0 / static_cast<double>(count_), upper,
                                  const_cast<Buffer&>(h).as<float>(), nullptr));
  std::vector<float> mean(static_cast<size_t>(k_ * k_));
  LOWBIT_TRY(cuda::download(mean.data(), h, h.size()));
  return mean;
}

Result<SecondMoments> DeviceMomentSum::finish(const std::string& name) {
  if (sum_.empty()) return fail(ErrorCode::kInvalidArgument, name, "no inputs", "at least one row");
  uint64_t bad = kNoneBad;
  LOWBIT_TRY(cuda::download(&bad, bad_, int64_t(sizeof(bad))));
  if (bad != kNoneBad)
    return fail(ErrorCode::kInvalidArgument, name,
                "NaN or infinity as input " + std::to_string(bad % static_cast<uint64_t>(k_)), "finite activations",
                "the model overflows on the calibration text");
  if (filled_ > 0) LOWBIT_TRY(sum_up(filled_));
  filled_ = 0;
  SecondMoments moments;
  moments.k = k_;
  LOWBIT_TRY_ASSIGN(moments.h, mean_of(sum_, true));
  if (!other_sum_.empty()) {
    LOWBIT_TRY_ASSIGN(moments.deviation, mean_of(other_sum_, false));
  }
  return moments;
}

}  // namespace lowbit
