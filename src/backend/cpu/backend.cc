#include <utility>

#include "backend/cpu/hessian_sum.h"
#include "backend/cpu/program.h"
#include "base/try.h"

namespace lowbit {
namespace {

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(Isa isa, ThreadPool& pool, bool tune) : isa_(isa), pool_(&pool), tune_(tune) {}
  const char* name() const override { return "cpu"; }

  Result<std::unique_ptr<Weight>> prepare(const std::string& name, const QTensor& w, std::vector<float> bias,
                                          const XSpec& x, WeightUse use) override {
    auto weight = std::make_unique<CpuWeight>();
    weight->name = name;
    weight->bias = std::move(bias);
    weight->rounding = x.rounding;
    weight->multiplies = use != WeightUse::kRows;
    if (use != WeightUse::kProducts) weight->table = w;
    if (weight->multiplies) {
      MatmulOptions options = host_options(x);
      options.isa = isa_;
      options.arena = &arena_;
      LOWBIT_TRY_ASSIGN(weight->plan, MatmulPlan::make(w, options, *pool_));
    }
    return std::unique_ptr<Weight>(std::move(weight));
  }

  Result<std::unique_ptr<Program>> compile(std::span<const Step> steps, const CompileOptions& options) override {
    return CpuProgram::make(steps, options);
  }

  Result<std::unique_ptr<Workspace>> workspace(std::span<const Step> steps, const Limits& limits) override {
    LOWBIT_TRY_ASSIGN(auto work, CpuWorkspace::make(steps, limits, isa_, *pool_, tune_));
    return std::unique_ptr<Workspace>(std::move(work));
  }

  Result<std::unique_ptr<HessianSum>> hessian_sum(int64_t k, int64_t n) override {
    return std::unique_ptr<HessianSum>(std::make_unique<CpuHessianSum>(k, n, isa_, *pool_));
  }

 private:
  Isa isa_;
  ThreadPool* pool_;
  bool tune_;
  Arena arena_;  // of weights
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(Isa isa, ThreadPool& pool, bool tune) {
  return std::make_unique<CpuBackend>(isa, pool, tune);
}

}  // namespace lowbit
