#include "ops/device_matmul_chain.h"

#include <string>

#include "base/try.h"

namespace lowbit {

Result<DeviceMatmulChain> DeviceMatmulChain::make(std::span<const DeviceMatmulPlan> plans, cuda::Element between) {
  DeviceMatmulChain chain;
  std::vector<cuda::Weight> weights;
  for (const DeviceMatmulPlan& plan : plans) {
    if (plan.kernel().most_rows != 1)
      return fail(ErrorCode::kUnsupported, "matmul " + std::to_string(weights.size()) + " of a chain",
                  plan.kernel_name(), "ternary weights with one scale per row, int8 activations",
                  "make its plan with most_rows = 1");
    weights.push_back(plan.weight());
    chain.plans_.push_back(plan);
  }
  LOWBIT_TRY_ASSIGN(chain.chain_, cuda::make_matmul_chain(weights, between));
  return chain;
}

Result<Buffer> DeviceMatmulChain::make_workspace() const {
  LOWBIT_TRY_ASSIGN(Buffer workspace, cuda::allocate(chain_.workspace_bytes, "chain of matmuls"));
  LOWBIT_TRY(cuda::upload(workspace, chain_.empty.data(), chain_.workspace_bytes));
  return workspace;
}

Status DeviceMatmulChain::run(const void* x, cuda::Element x_element, float* y, Buffer& workspace, void* stream) const {
  if (workspace.size() < chain_.workspace_bytes || workspace.device() != Device::kCuda)
    return fail(ErrorCode::kInvalidArgument, "workspace of a chain of matmuls",
                std::to_string(workspace.size()) + " bytes", "what make_workspace() gives");
  return cuda::run_matmul_chain(chain_, x, x_element, y, workspace.as<uint8_t>(), stream);
}

}  // namespace lowbit
