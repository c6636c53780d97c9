#include "runtime/engine.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/try.h"
#include "kernels/cuda_api.h"
#include "kernels/fp8_api.h"

namespace lowbit {
namespace {

constexpr int64_t kActivationGroup = 32;  // docs/adr/0008-activation-groups.md
constexpr double kClipped = 0.001;

/// cuda or cuda:<i>; nothing for other names.
std::optional<int> gpu_of(std::string_view name) {
  constexpr std::string_view kPrefix = "cuda:";
  constexpr size_t kMostDigits = 4;
  if (name == "cuda") return 0;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string number(name.substr(kPrefix.size()));
  if (number.empty() || number.size() > kMostDigits || number.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoi(number);
}

}  // namespace

Result<std::vector<int>> wanted_gpus(const Compute& compute) {
  std::string device = compute.device;
  const char* where = "--device";
  if (device.empty() || device == "auto") {
    const char* env = std::getenv("LOWBIT_DEVICE");
    device = env != nullptr && *env != '\0' ? env : "auto";
    where = "LOWBIT_DEVICE";
  }
  if (device == "auto" || device == "cpu") return std::vector<int>{};
  std::vector<int> gpus;
  for (size_t begin = 0; begin <= device.size();) {
    const size_t end = std::min(device.find(',', begin), device.size());
    const std::optional<int> gpu = gpu_of(std::string_view(device).substr(begin, end - begin));
    if (!gpu)
      return fail(ErrorCode::kInvalidArgument, where, "'" + device + "'",
                  "auto, cpu, cuda, cuda:<i> or cuda:<i>,cuda:<j>");
    gpus.push_back(*gpu);
    begin = end + 1;
  }
  return gpus;
}

Result<int> wanted_gpu(const Compute& compute) {
  LOWBIT_TRY_ASSIGN(const std::vector<int> gpus, wanted_gpus(compute));
  if (gpus.size() > 1)
    return fail(ErrorCode::kUnsupported, "--device", std::to_string(gpus.size()) + " GPUs", "one",
                "the layers of a model that runs may lie on several");
  return gpus.empty() ? -1 : gpus.front();
}

Result<Engine> Engine::make(const Compute& compute) {
  LOWBIT_TRY_ASSIGN(Engine engine, on_cpu(compute));
  LOWBIT_TRY_ASSIGN(engine.gpus, wanted_gpus(compute));
  if (!engine.gpus.empty()) engine.gpu = engine.gpus.front();
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
  if (name == "f16") return ActivationChoice{{Activation::kF32, 0, false, {.halves = Halves::kF16}}, "f16"};
  if (name == "bf16") return ActivationChoice{{Activation::kF32, 0, false, {.halves = Halves::kBf16}}, "bf16"};
  if (name == "f32") return ActivationChoice{{Activation::kF32, 0, false, {}}, "f32"};
  return fail(ErrorCode::kInvalidArgument, "--act", "'" + name + "'",
              "auto, int8, int8-row, int8-clip, int4, fp8, f16, bf16 or f32");
}

}  // namespace lowbit
