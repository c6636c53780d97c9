#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/try.h"
#include "kernels/cuda_api.h"
#include "kernels/registry.h"
#include "lowbit/quantize.h"
#include "ops/time_matmul.h"
#include "runtime/engine.h"

namespace lowbit {
namespace {

constexpr int64_t kSweepBytes = int64_t{512} << 20;

std::string find_data() {
  const char* env = std::getenv("LOWBIT_DATA");
  const std::filesystem::path path = env != nullptr && *env != '\0' ? env : "../shared/data";
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) ? path.string() : "";
}

Isa isa_of(const MatmulKernel& kernel) {
  const std::string name = kernel.name;
  const size_t at = name.find("__");
  const std::string rest = at == std::string::npos ? "" : name.substr(at + 2);
  for (Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvxVnni, Isa::kAvx2})
    if (rest.rfind(isa_name(isa), 0) == 0) return isa;
  return Isa::kScalar;
}

/// The device, and the kernels that it runs.
std::string about(const cuda::DeviceInfo& gpu) {
  const bool hopper = gpu.major == 9 && gpu.minor == 0;
  return fmt::format("{} (compute capability {}.{}, {:.0f} GiB, {} multiprocessors; products by {})", gpu.name,
                     gpu.major, gpu.minor, static_cast<double>(gpu.memory_bytes) * 0x1p-30, gpu.multiprocessors,
                     hopper ? "wgmma, with TMA" : "mma.sync");
}

}  // namespace

std::vector<KernelInfo> kernels() {
  std::vector<KernelInfo> out;
  for (const MatmulKernel* k : all_matmul_kernels()) {
    const Isa isa = isa_of(*k);
    out.push_back({k->name, isa_name(isa), format_info(k->format).name, activation_tag(k->activation), k->doc,
                   isa_available(isa)});
  }
  const bool has_gpu = !cuda::devices().empty();
  for (const cuda::MatmulKernel& k : cuda::matmul_kernels())
    out.push_back({k.name, "cuda", format_info(k.format).name, activation_tag(k.activation), k.doc, has_gpu});
  return out;
}

Result<double> measure_bandwidth(const Compute& compute, int64_t bytes) {
  LOWBIT_TRY_ASSIGN(Engine engine, Engine::on_cpu(compute));
  LOWBIT_TRY_ASSIGN(const ReadBandwidth rate, measure_read_bandwidth(*engine.pool, std::max(bytes, int64_t{64} << 20)));
  return rate.median;
}

Result<DoctorReport> doctor(const Compute& compute) {
  LOWBIT_TRY_ASSIGN(Engine engine, Engine::on_cpu(compute));
  DoctorReport r;
  r.version = version();
  const CpuInfo& cpu = cpu_info();
  r.cpu = {cpu.model, cpu.features, cpu.logical_cpus, cpu.physical_cores};
  r.isa = isa_name(engine.isa);
  r.threads = engine.threads;
  r.kernels = kernels();
  r.cuda_built = cuda::built();
  for (const cuda::DeviceInfo& gpu : cuda::devices()) r.gpu += (r.gpu.empty() ? "" : ", ") + about(gpu);
  r.data_dir = find_data();
  if (auto bandwidth = measure_read_bandwidth(*engine.pool, kSweepBytes)) {
    r.bandwidth_gb_s = bandwidth->median;
    r.bandwidth_least_gb_s = bandwidth->least;
    r.bandwidth_most_gb_s = bandwidth->most;
  } else {
    r.problems.push_back("memory bandwidth not measured: " + bandwidth.error().message());
  }
  if (auto model = resolve_model("default")) {
    r.default_model = *model;
  } else {
    r.problems.push_back(model.error().message());
  }
  if (engine.isa == Isa::kScalar)
    r.problems.push_back(
        "scalar kernels in use: this CPU lacks AVX2, or LOWBIT_ISA says so. Everything works, "
        "slowly");
  if (engine.threads > cpu.logical_cpus)
    r.problems.push_back(std::to_string(engine.threads) + " threads on " + std::to_string(cpu.logical_cpus) +
                         " CPUs: more threads than CPUs only slow each other down");
  if (r.data_dir.empty())
    r.problems.push_back("no test data: set LOWBIT_DATA to run the tests that need real models and texts");
  return r;
}

}  // namespace lowbit
