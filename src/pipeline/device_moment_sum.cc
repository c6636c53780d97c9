#include "pipeline/device_moment_sum.h"

#include <algorithm>
#include <limits>

#include "base/try.h"
#include "kernels/cuda_api.h"
#include "kernels/cuda_block_api.h"
#include "pipeline/moment_sum.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};
constexpr uint64_t kNoneBad = std::numeric_limits<uint64_t>::max();

}  // namespace

Status DeviceMomentSum::prepare(int64_t m, int64_t k) {
  if (sum_.empty()) {
    k_ = k;
    LOWBIT_TRY_ASSIGN(sum_, cuda::allocate(k * k * int64_t(sizeof(double)), "second moments"));
    LOWBIT_TRY(cuda::fill(sum_, 0));
    LOWBIT_TRY_ASSIGN(bad_, cuda::allocate(int64_t(sizeof(uint64_t)), "second moments"));
    LOWBIT_TRY(cuda::upload(bad_, &kNoneBad, int64_t(sizeof(kNoneBad))));
  }
  const int64_t needed = kMomentChunk + m;  // less than a chunk is left of the calls before
  if (needed <= capacity_) return {};
  LOWBIT_TRY_ASSIGN(Buffer rows, cuda::allocate(needed * k * kFloat, "second moments"));
  if (filled_ > 0) LOWBIT_TRY(cuda::copy_floats(rows_.as<float>(), filled_ * k, rows.as<float>(), nullptr));
  LOWBIT_TRY(cuda::synchronize(nullptr));
  rows_ = std::move(rows);
  capacity_ = needed;
  LOWBIT_TRY_ASSIGN(workspace_,
                    cuda::allocate(cuda::moments_workspace_bytes(needed, k, kMomentChunk), "second moments"));
  return {};
}

Status DeviceMomentSum::sum_up(int64_t rows) {
  return cuda::add_moments(
      {rows_.as<float>(), rows, k_, kMomentChunk, sum_.as<double>(), workspace_.as<float>(), nullptr});
}

Status DeviceMomentSum::add(const float* rows, int64_t m, int64_t k) {
  LOWBIT_TRY(prepare(m, k));
  LOWBIT_TRY(cuda::find_non_finite(rows, m * k, static_cast<uint64_t>(count_ * k), bad_.as<uint64_t>(), nullptr));
  LOWBIT_TRY(cuda::copy_floats(rows, m * k, rows_.as<float>() + filled_ * k, nullptr));
  count_ += m;
  filled_ += m;
  const int64_t whole = filled_ / kMomentChunk * kMomentChunk;
  if (whole == 0) return {};
  LOWBIT_TRY(sum_up(whole));
  filled_ -= whole;  // fewer than a chunk, so the copy does not overlap
  return filled_ == 0 ? Status{}
                      : cuda::copy_floats(rows_.as<float>() + whole * k, filled_ * k, rows_.as<float>(), nullptr);
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
  const double scale = 1.0 / static_cast<double>(count_);
  LOWBIT_TRY_ASSIGN(const Buffer h, cuda::allocate(k_ * k_ * kFloat, "second moments"));
  LOWBIT_TRY(cuda::finish_moments(sum_.as<double>(), k_, scale, const_cast<Buffer&>(h).as<float>(), nullptr));
  SecondMoments moments;
  moments.k = k_;
  moments.h.resize(static_cast<size_t>(k_ * k_));
  LOWBIT_TRY(cuda::download(moments.h.data(), h, h.size()));
  return moments;
}

}  // namespace lowbit
