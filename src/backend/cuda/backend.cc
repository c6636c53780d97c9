#include <algorithm>
#include <utility>

#include "backend/cuda/hessian_sum.h"
#include "backend/cuda/program.h"
#include "base/try.h"
#include "kernels/cuda_halves_api.h"
#include "kernels/cuda_memory_api.h"
#include "kernels/cuda_step_api.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};
constexpr int64_t kKvSlabPages = 8;                  // 512 positions
constexpr int64_t kGranuleBytes = int64_t{2} << 20;  // of cudaMalloc()
constexpr int64_t kSlabBytes = int64_t{32} << 20;

class CudaBackend final : public Backend {
 public:
  CudaBackend(int gpu, ThreadPool& pool, bool exact) : gpu_(gpu), pool_(&pool), exact_(exact) {}
  const char* name() const override { return "cuda"; }

  Result<std::unique_ptr<Weight>> prepare(const std::string& name, const QTensor& w, std::vector<float> bias,
                                          const XSpec& x, WeightUse use) override {
    LOWBIT_TRY(cuda::use_device(gpu_));
    LOWBIT_TRY_ASSIGN(auto weight, CudaWeight::make(name, w, bias, x, use, exact_, arena_, *pool_));
    return std::unique_ptr<Weight>(std::move(weight));
  }

  Result<std::unique_ptr<Program>> compile(std::span<const Step> steps, const CompileOptions& options) override {
    return CudaProgram::make(gpu_, steps, options);
  }

  Result<std::unique_ptr<Workspace>> workspace(std::span<const Step> steps, const Limits& limits) override {
    LOWBIT_TRY(cuda::use_device(gpu_));
    LOWBIT_TRY_ASSIGN(auto work, CudaWorkspace::make(gpu_, steps, limits, *pool_));
    return std::unique_ptr<Workspace>(std::move(work));
  }

  Result<RowBuffer> allocate_rows(int64_t numbers, RowFormat format, const char* what) override {
    LOWBIT_TRY(cuda::use_device(gpu_));
    LOWBIT_TRY_ASSIGN(Buffer floats, cuda::allocate(numbers * kFloat, what));
    return RowBuffer(std::move(floats), numbers, format);
  }
  Status upload(std::span<const float> from, RowBuffer& to, int64_t at) override {
    LOWBIT_TRY(cuda::use_device(gpu_));
    float* const floats = to.bytes.as<float>() + at;
    LOWBIT_TRY(cuda::upload_on(nullptr, floats, from.data(), int64_t(from.size_bytes())));
    if (to.format == RowFormat::kBf16)
      LOWBIT_TRY(cuda::round_to_halves(floats, int64_t(from.size()), true, floats, nullptr));
    return cuda::synchronize(nullptr);
  }
  Status download(const RowBuffer& from, int64_t at, std::span<float> to) override {
    LOWBIT_TRY(cuda::use_device(gpu_));
    LOWBIT_TRY(cuda::download_on(nullptr, to.data(), from.bytes.as<float>() + at, int64_t(to.size_bytes())));
    return cuda::synchronize(nullptr);
  }

  BatchSize batch_size() const override {
    return {.rows = 8192, .bytes = int64_t{256} << 20, .session_rows = 2048, .session_bytes = int64_t{192} << 20};
  }

  Result<std::unique_ptr<HessianSum>> hessian_sum(int64_t k, int64_t n) override {
    return CudaHessianSum::make(gpu_, k, n);
  }

  Result<int64_t> free_memory() const override {
    LOWBIT_TRY(cuda::use_device(gpu_));
    return cuda::free_memory();
  }

  KvPageMemory kv_page_memory() const override {
    return {[gpu = gpu_](int64_t bytes) -> Result<Buffer> {
              LOWBIT_TRY(cuda::use_device(gpu));
              LOWBIT_TRY_ASSIGN(Buffer pages, cuda::allocate(bytes, "kv cache"));
              LOWBIT_TRY(cuda::fill(pages, 0));  // kernels read 16 bytes at a time
              return pages;
            },
            [gpu = gpu_](std::byte* to, const std::byte* from, int64_t bytes) -> Status {
              LOWBIT_TRY(cuda::use_device(gpu));
              LOWBIT_TRY(cuda::copy_on(nullptr, to, from, bytes));
              return cuda::synchronize(nullptr);
            },
            kKvSlabPages, kGranuleBytes};
  }

 private:
  int gpu_;
  ThreadPool* pool_;
  bool exact_;
  Arena arena_{cuda::allocate, kSlabBytes, kSlabBytes / 4, 256};  // of weights
};

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(int gpu, ThreadPool& pool, bool exact) {
  LOWBIT_TRY(cuda::use_device(gpu));
  return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(gpu, pool, exact));
}

}  // namespace lowbit
