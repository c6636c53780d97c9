#include "pipeline/engine.h"

#include <cstdlib>

#include "base/try.h"
#include "kernels/registry.h"

namespace lowbit {
namespace {

constexpr int64_t kActivationGroup = 32;  // docs/adr/0008-activation-groups.md

}  // namespace

Result<Engine> Engine::make(const Compute& compute) {
  std::string device = compute.device;
  const char* where = "--device";
  if (device.empty() || device == "auto") {
    const char* env = std::getenv("LOWBIT_DEVICE");
    device = env != nullptr && *env != '\0' ? env : "auto";
    where = "LOWBIT_DEVICE";
  }
  if (device.rfind("cuda", 0) == 0)
    return fail(ErrorCode::kUnsupported, where, device, "cpu", "this build has no CUDA kernels");
  if (device != "auto" && device != "cpu")
    return fail(ErrorCode::kInvalidArgument, where, "'" + device + "'", "auto, cpu, cuda or cuda:<i>");
  Engine engine;
  LOWBIT_TRY_ASSIGN(engine.isa, choose_isa(compute.isa));
  LOWBIT_TRY_ASSIGN(engine.threads, choose_threads(compute.threads));
  engine.pool = std::make_unique<ThreadPool>(engine.threads);
  return engine;
}

Result<ActivationChoice> parse_activation(const std::string& name) {
  if (name == "auto" || name == "int8" || name.empty()) return ActivationChoice{Activation::kInt8, kActivationGroup};
  if (name == "int8-row") return ActivationChoice{Activation::kInt8, 0};
  if (name == "f32") return ActivationChoice{Activation::kF32, 0};
  return fail(ErrorCode::kInvalidArgument, "--act", "'" + name + "'", "auto, int8, int8-row or f32");
}

}  // namespace lowbit
