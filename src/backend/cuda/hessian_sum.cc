#include "backend/cuda/hessian_sum.h"

#include <array>
#include <limits>
#include <utility>

#include "base/try.h"
#include "kernels/cuda_block_api.h"
#include "kernels/cuda_step_api.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};
constexpr std::array<uint64_t, 2> kNoneBad = {std::numeric_limits<uint64_t>::max(),
                                              std::numeric_limits<uint64_t>::max()};

}  // namespace

Result<std::unique_ptr<HessianSum>> CudaHessianSum::make(int gpu, int64_t k, int64_t n) {
  LOWBIT_TRY(cuda::use_device(gpu));
  LOWBIT_TRY_ASSIGN(cuda::Stream stream, cuda::Stream::create());
  std::unique_ptr<CudaHessianSum> sum(new CudaHessianSum(gpu, k, n, std::move(stream)));
  const auto make_sum = [&](Buffer& gram, int64_t rows) -> Status {
    LOWBIT_TRY_ASSIGN(gram, cuda::allocate(rows * k * int64_t(sizeof(double)), "Hessian"));
    return cuda::fill(gram, 0);
  };
  LOWBIT_TRY(make_sum(sum->sum_, k));
  if (n > 0) LOWBIT_TRY(make_sum(sum->other_sum_, n));
  LOWBIT_TRY_ASSIGN(sum->bad_, cuda::allocate(int64_t(sizeof(kNoneBad)), "Hessian"));
  LOWBIT_TRY(cuda::upload(sum->bad_, kNoneBad.data(), int64_t(sizeof(kNoneBad))));
  return std::unique_ptr<HessianSum>(std::move(sum));
}

Status CudaHessianSum::reserve(int64_t rows) {
  if (rows <= capacity_) return {};
  const auto grow = [&](Buffer& of, int64_t columns) -> Status {
    LOWBIT_TRY_ASSIGN(Buffer larger, cuda::allocate(rows * columns * kFloat, "Hessian"));
    LOWBIT_TRY(cuda::copy_on(stream_.handle(), larger.data(), of.data(), filled_ * columns * kFloat));
    LOWBIT_TRY(cuda::synchronize(stream_.handle()));
    of = std::move(larger);
    return {};
  };
  LOWBIT_TRY(grow(rows_, k_));
  if (n_ > 0) LOWBIT_TRY(grow(others_, n_));
  LOWBIT_TRY_ASSIGN(workspace_, cuda::allocate(cuda::gram_workspace_bytes(rows, k_, n_, kHessianChunk), "Hessian"));
  capacity_ = rows;
  return {};
}

Status CudaHessianSum::sum_up(int64_t rows) {
  cuda::AddGram call{rows_.as<float>(), rows,    k_, kHessianChunk, sum_.as<double>(), workspace_.as<float>(),
                     stream_.handle(),  nullptr, 0};
  LOWBIT_TRY(cuda::add_gram(call));
  if (n_ == 0) return {};
  call.y = others_.as<float>();
  call.n = n_;
  call.sum = other_sum_.as<double>();
  return cuda::add_gram(call);
}

Status CudaHessianSum::keep_rest(int64_t whole, int64_t columns, Buffer& rows) const {
  const int64_t rest = filled_ - whole;  // fewer than a chunk, so the copy does not overlap
  return cuda::copy_on(stream_.handle(), rows.data(), rows.as<float>() + whole * columns, rest * columns * kFloat);
}

Status CudaHessianSum::add(const float* x, const float* y, const float* z, int64_t m) {
  LOWBIT_TRY(cuda::use_device(gpu_));
  LOWBIT_TRY(reserve(kHessianChunk + m));  // less than a chunk is left of the calls before
  void* const stream = stream_.handle();
  auto* const bad = bad_.as<uint64_t>();
  const auto find_bad = [&](const float* rows, int64_t columns, uint64_t* first) {
    return cuda::find_non_finite(rows, m * columns, static_cast<uint64_t>(count_ * columns), first, stream);
  };
  LOWBIT_TRY(find_bad(x, k_, bad));
  LOWBIT_TRY(cuda::copy_on(stream, rows_.as<float>() + filled_ * k_, x, m * k_ * kFloat));
  if (n_ > 0) {
    float* const to = others_.as<float>() + filled_ * n_;
    for (const float* rows : {y, z}) LOWBIT_TRY(find_bad(rows, n_, bad + 1));
    LOWBIT_TRY(cuda::copy_on(stream, to, y, m * n_ * kFloat));
    LOWBIT_TRY(cuda::subtract_rows(z, m * n_, to, stream));
  }
  count_ += m;
  filled_ += m;
  if (const int64_t whole = filled_ / kHessianChunk * kHessianChunk; whole > 0) {
    LOWBIT_TRY(sum_up(whole));
    LOWBIT_TRY(keep_rest(whole, k_, rows_));
    if (n_ > 0) LOWBIT_TRY(keep_rest(whole, n_, others_));
    filled_ -= whole;
  }
  return cuda::synchronize(stream);  // the rows are the caller's again
}

Result<std::vector<float>> CudaHessianSum::mean_of(const Buffer& sum, int64_t n) const {
  const int64_t floats = (n > 0 ? n : k_) * k_;
  LOWBIT_TRY_ASSIGN(Buffer h, cuda::allocate(floats * kFloat, "Hessian"));
  LOWBIT_TRY(
      cuda::finish_gram(sum.as<double>(), n, k_, 1.0 / static_cast<double>(count_), h.as<float>(), stream_.handle()));
  LOWBIT_TRY(cuda::synchronize(stream_.handle()));
  std::vector<float> mean(static_cast<size_t>(floats));
  LOWBIT_TRY(cuda::download(mean.data(), h, h.size()));
  return mean;
}

Result<InputHessian> CudaHessianSum::finish(const std::string& name) {
  if (count_ == 0) return no_inputs(name);
  LOWBIT_TRY(cuda::use_device(gpu_));
  std::array<uint64_t, 2> bad = kNoneBad;
  LOWBIT_TRY(cuda::download(bad.data(), bad_, int64_t(sizeof(bad))));
  for (const size_t compared : {0, 1})
    if (bad[compared] != kNoneBad[compared])
      return not_finite(name, static_cast<int64_t>(bad[compared] % static_cast<uint64_t>(compared == 0 ? k_ : n_)),
                        compared == 1);
  if (filled_ > 0) LOWBIT_TRY(sum_up(filled_));
  filled_ = 0;
  InputHessian hessian;
  hessian.k = k_;
  LOWBIT_TRY_ASSIGN(hessian.h, mean_of(sum_, 0));
  if (n_ > 0) {
    LOWBIT_TRY_ASSIGN(hessian.mismatch, mean_of(other_sum_, n_));
  }
  return hessian;
}

}  // namespace lowbit
