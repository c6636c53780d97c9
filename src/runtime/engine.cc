#include "runtime/engine.h"

#include <cstdlib>

#include "base/try.h"
#include "kernels/cuda_api.h"
#include "kernels/fp8_api.h"

namespace lowbit {
namespace {

constexpr int64_t kActivationGroup = 32;  // docs/adr/0008-activation-groups.md
constexpr double kClipped = 0.001;

}  // namespace

Result<int> wanted_gpu(const Compute& compute) {
  std::string device = compute.device;
  const char* where = "--device";
  if (device.empty() || device == "auto") {
    const char* env = std::getenv("LOWBIT_DEVICE");
    device = env != nullptr && *env != '\0' ? env : "auto";
    where = "LOWBIT_DEVICE";
  }
  if (device == "auto" || device == "cpu") return -1;
  if (device == "cuda") return 0;
  constexpr size_t kPrefix = 5, kMostDigits = 4;
  const std::string number = device.size() > kPrefix ? device.substr(kPrefix) : "";
  const bool digits =
      !number.empty() && number.size() <= kMostDigits && number.find_first_not_of("0123456789") == std::string::npos;
  if (device.rfind("cuda:", 0) != 0 || !digits)
    return fail(ErrorCode::kInvalidArgument, where, "'" + device + "'", "auto, cpu, cuda or cuda:<i>");
  return std::stoi(number);
}

Result<Engine> Engine::make(const Compute& compute) {
  LOWBIT_TRY_ASSIGN(Engine engine, on_cpu(compute));
  LOWBIT_TRY_ASSIGN(engine.gpu, wanted_gpu(compute));
  if (engine.gpu >= 0) LOWBIT_TRY(cuda::use_device(engine.gpu));
  return engine;
}

Result<Engine> Engine::on_cpu(const Compute& compute) {
  Engine engine;
  LOWBIT_TRY_ASSIGN(engine.isa, choose_isa(compute.isa));
  LOWBIT_TRY_ASSIGN(engine.threads, choose_threads(compute.threads));
  engine.pool = std::make_unique<ThreadPool>(engine.threads);
  engine.threads = engine.pool->size();
  return engine;
}

Result<std::unique_ptr<Backend>> make_backend(const Engine& engine) {
  if (engine.gpu >= 0) return make_cuda_backend(engine.gpu, *engine.pool);
  return make_cpu_backend(engine.isa, *engine.pool, false);
}

Result<ActivationChoice> parse_activation(const std::string& name) {
  if (name == "auto" || name.empty()) return ActivationChoice{{Activation::kInt8, kActivationGroup, true, {}}, "int8"};
  if (name == "int8") return ActivationChoice{{Activation::kInt8, kActivationGroup, false, {}}, "int8"};
  if (name == "int8-row") return ActivationChoice{{Activation::kInt8, 0, false, {}}, "int8-row"};
  if (name == "int8-clip") return ActivationChoice{{Activation::kInt8, 0, false, {127, kClipped}}, "int8-clip"};
  if (name == "int4") return ActivationChoice{{Activation::kInt8, kActivationGroup, false, {7, 0}}, "int4"};
  if (name == "fp8") return ActivationChoice{{Activation::kFp8, kFp8Block, false, {}}, "fp8"};
  if (name == "f32") return ActivationChoice{{Activation::kF32, 0, false, {}}, "f32"};
  return fail(ErrorCode::kInvalidArgument, "--act", "'" + name + "'",
              "auto, int8, int8-row, int8-clip, int4, fp8 or f32");
}

}  // namespace lowbit
