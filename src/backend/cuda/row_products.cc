// Products of several rows: weights of the same codes in one launch.

#include "kernels/cuda_row_products_api.h"

#include "backend/cuda/program.h"
#include "base/checked.h"
#include "base/try.h"

namespace lowbit {

Result<bool> CudaProgram::multiply_side_by_side(std::span<const StepPart> parts, const float* x, int64_t m,
                                                CudaWorkspace& work) const {
  const CudaWeight& front = *parts.front().weight;
  if (parts.size() < 2 || !front.takes_codes()) return false;
  const cuda::MatmulKernel& kernel = front.plan.kernel(m);
  const DeviceRows rows{work.codes_.data(), cuda::Element::kInt8, m, round_up(front.k, 64),
                        work.code_scales_.as<float>()};
  std::vector<cuda::Matmul> calls;
  for (const StepPart& part : parts) {
    const CudaWeight& w = *part.weight;
    if (!w.takes_codes() || w.k != front.k || w.code_group() != front.code_group() || !(w.rounding == front.rounding) ||
        &w.plan.kernel(m) != &kernel)
      return false;
    calls.push_back(
        w.plan.call(rows, floats_or_null(w.bias), part.to, cuda::Element::kF32, w.n, nullptr, work.stream()));
  }
  if (!cuda::takes_row_products(kernel, calls)) return false;
  LOWBIT_TRY(quantize(front, x, m, work));
  LOWBIT_TRY(cuda::row_products(kernel, calls));
  return true;
}

}  // namespace lowbit
