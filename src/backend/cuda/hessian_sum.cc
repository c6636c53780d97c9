#include "backend/cuda/hessian_sum.h"

#include <limits>
#include <utility>

#include "base/try.h"
#include "kernels/cuda_block_api.h"
#include "kernels/cuda_step_api.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};
constexpr uint64_t kNoneBad = std::numeric_limits<uint64_t>::max();

}  // namespace

Result<std::unique_ptr<HessianSum>> CudaHessianSum::make(int gpu, int64_t k, bool compares) {
  LOWBIT_TRY(cuda::use_device(gpu));
  LOWBIT_TRY_ASSIGN(cuda::Stream stream, cuda::Stream::create());
  std::unique_ptr<CudaHessianSum> sum(new CudaHessianSum(gpu, k, compares, std::move(stream)));
  for (Buffer* gram : {&sum->sum_, compares ? &sum->other_sum_ : nullptr}) {
    if (gram == nullptr) continue;
    LOWBIT_TRY_ASSIGN(*gram, cuda::allocate(k * k * int64_t(sizeof(double)), "Hessian"));
    LOWBIT_TRY(cuda::fill(*gram, 0));
  }
  LOWBIT_TRY_ASSIGN(sum->bad_, cuda::allocate(int64_t(sizeof(uint64_t)), "Hessian"));
  LOWBIT_TRY(cuda::upload(sum->bad_, &kNoneBad, int64_t(sizeof(kNoneBad))));
  return std::unique_ptr<HessianSum>(std::move(sum));
}

Status CudaHessianSum::reserve(int64_t rows) {
  if (rows <= capacity_) return {};
  const auto grow = [&](Buffer& of) -> Status {
    LOWBIT_TRY_ASSIGN(Buffer larger, cuda::allocate(rows * k_ * kFloat, "Hessian"));
    LOWBIT_TRY(cuda::copy_on(stream_.handle(), larger.data(), of.data(), filled_ * k_ * kFloat));
    LOWBIT_TRY(cuda::synchronize(stream_.handle()));
    of = std::move(larger);
    return {};
  };
  LOWBIT_TRY(grow(rows_));
  if (compares_) LOWBIT_TRY(grow(others_));
  LOWBIT_TRY_ASSIGN(workspace_, cuda::allocate(cuda::gram_workspace_bytes(rows, k_, kHessianChunk), "Hessian"));
  capacity_ = rows;
  return {};
}

Status CudaHessianSum::sum_up(int64_t rows) {
  cuda::AddGram call{rows_.as<float>(), rows,   k_, kHessianChunk, sum_.as<double>(), workspace_.as<float>(),
                     stream_.handle(),  nullptr};
  LOWBIT_TRY(cuda::add_gram(call));
  if (!compares_) return {};
  call.y = others_.as<float>();
  call.sum = other_sum_.as<double>();
  return cuda::add_gram(call);
}

Status CudaHessianSum::keep_rest(int64_t whole, Buffer& rows) const {
  const int64_t rest = filled_ - whole;  // fewer than a chunk, so the copy does not overlap
  return cuda::copy_on(stream_.handle(), rows.data(), rows.as<float>() + whole * k_, rest * k_ * kFloat);
}

Status CudaHessianSum::add(const float* x, const float* y, int64_t m) {
  LOWBIT_TRY(cuda::use_device(gpu_));
  LOWBIT_TRY(reserve(kHessianChunk + m));  // less than a chunk is left of the calls before
  void* const stream = stream_.handle();
  const auto seen = static_cast<uint64_t>(count_ * k_);
  LOWBIT_TRY(cuda::find_non_finite(x, m * k_, seen, bad_.as<uint64_t>(), stream));
  LOWBIT_TRY(cuda::copy_on(stream, rows_.as<float>() + filled_ * k_, x, m * k_ * kFloat));
  if (compares_) {
    float* const to = others_.as<float>() + filled_ * k_;
    LOWBIT_TRY(cuda::find_non_finite(y, m * k_, seen, bad_.as<uint64_t>(), stream));
    LOWBIT_TRY(cuda::copy_on(stream, to, y, m * k_ * kFloat));
    LOWBIT_TRY(cuda::subtract_rows(x, m * k_, to, stream));
  }
  count_ += m;
  filled_ += m;
  if (const int64_t whole = filled_ / kHessianChunk * kHessianChunk; whole > 0) {
    LOWBIT_TRY(sum_up(whole));
    LOWBIT_TRY(keep_rest(whole, rows_));
    if (compares_) LOWBIT_TRY(keep_rest(whole, others_));
    filled_ -= whole;
  }
  return cuda::synchronize(stream);  // the rows are the caller's again
}

Result<std::vector<float>> CudaHessianSum::mean_of(const Buffer& sum, bool upper) const {
  LOWBIT_TRY_ASSIGN(Buffer h, cuda::allocate(k_ * k_ * kFloat, "Hessian"));
  LOWBIT_TRY(cuda::finish_gram(sum.as<double>(), k_, 1.0 / static_cast<double>(count_), upper, h.as<float>(),
                               stream_.handle()));
  LOWBIT_TRY(cuda::synchronize(stream_.handle()));
  std::vector<float> mean(static_cast<size_t>(k_ * k_));
  LOWBIT_TRY(cuda::download(mean.data(), h, h.size()));
  return mean;
}

Result<InputHessian> CudaHessianSum::finish(const std::string& name) {
  if (count_ == 0) return no_inputs(name);
  LOWBIT_TRY(cuda::use_device(gpu_));
  uint64_t bad = kNoneBad;
  LOWBIT_TRY(cuda::download(&bad, bad_, int64_t(sizeof(bad))));
  if (bad != kNoneBad) return not_finite(name, static_cast<int64_t>(bad % static_cast<uint64_t>(k_)));
  if (filled_ > 0) LOWBIT_TRY(sum_up(filled_));
  filled_ = 0;
  InputHessian hessian;
  hessian.k = k_;
  LOWBIT_TRY_ASSIGN(hessian.h, mean_of(sum_, true));
  if (compares_) {
    LOWBIT_TRY_ASSIGN(hessian.mismatch, mean_of(other_sum_, false));
  }
  return hessian;
}

}  // namespace lowbit
