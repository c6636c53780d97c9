#include "base/cpu.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include "base/cpuid.h"

namespace lowbit {
namespace {

bool has(const std::vector<std::string>& features, const char* name) {
  return std::find(features.begin(), features.end(), name) != features.end();
}

bool amx_permitted() {
#if defined(__x86_64__)
  // Linux hands out the tile registers on request only: arch_prctl(ARCH_REQ_XCOMP_PERM,
  // XFEATURE_XTILEDATA).
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
#else
  return false;
#endif
}

/// Counts the cores of the processors that this process may use; 0 where the system does not tell.
int count_cores(const cpu_set_t& usable) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  int processor = -1, package = 0;
  std::set<std::pair<int, int>> cores;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const int value = std::atoi(line.c_str() + colon + 1);
    if (key == "processor") processor = value;
    if (key == "physical id") package = value;
    if (key == "core id" && processor >= 0 && processor < CPU_SETSIZE && CPU_ISSET(processor, &usable))
      cores.insert({package, value});
  }
  return static_cast<int>(cores.size());
}

CpuInfo read_cpu_info() {
  CpuInfo info;
  const CpuidWords words = read_cpuid();
  info.model = cpu_model(words);
  info.features = cpu_features(words);
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) CPU_ZERO(&usable);
  const int known = CPU_COUNT(&usable), cores = count_cores(usable);
  info.logical_cpus = std::max(1, known > 0 ? known : static_cast<int>(std::thread::hardware_concurrency()));
  info.physical_cores = cores == 0 ? info.logical_cpus : std::min(cores, info.logical_cpus);
  return info;
}

constexpr std::array<std::pair<Isa, const char*>, 5> kIsaNames = {{{Isa::kScalar, "scalar"},
                                                                   {Isa::kAvx2, "avx2"},
                                                                   {Isa::kAvxVnni, "avxvnni"},
                                                                   {Isa::kAvx512, "avx512"},
                                                                   {Isa::kAmx, "amx"}}};

}  // namespace

const CpuInfo& cpu_info() {
  static const CpuInfo info = read_cpu_info();
  return info;
}

const char* isa_name(Isa isa) { return kIsaNames[static_cast<size_t>(isa)].second; }

Result<Isa> parse_isa(const std::string& name) {
  for (const auto& [isa, text] : kIsaNames)
    if (name == text) return isa;
  return fail(ErrorCode::kInvalidArgument, "instruction set", "'" + name + "'", "scalar, avx2, avxvnni, avx512 or amx");
}

bool isa_runs_with(const std::vector<std::string>& f, Isa isa) {
  const bool avx2 = has(f, "avx2") && has(f, "fma") && has(f, "f16c");
  const bool avx512 = avx2 && has(f, "avx512f") && has(f, "avx512bw") && has(f, "avx512dq") && has(f, "avx512vl") &&
                      has(f, "avx512_vnni") && has(f, "avx512vbmi") && has(f, "avx512_vbmi2") && has(f, "gfni");
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvxVnni:
      return avx2 && has(f, "avx_vnni");
    case Isa::kAvx512:
      return avx512;
    case Isa::kAmx:
      return avx512 && has(f, "amx_tile") && has(f, "amx_int8");
  }
  return false;
}

bool isa_available(Isa isa) { return isa_runs_with(cpu_info().features, isa) && (isa != Isa::kAmx || amx_permitted()); }

bool has_bf16_pairs() {
  static const bool has_them = has(cpu_info().features, "avx512_bf16");
  return has_them;
}

Isa best_isa() {
  for (Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvxVnni, Isa::kAvx2})
    if (isa_available(isa)) return isa;
  return Isa::kScalar;
}

Result<Isa> choose_isa(const std::string& requested) {
  std::string name = requested;
  std::string where = "--isa";
  if (name.empty()) {
    const char* env = std::getenv("LOWBIT_ISA");
    if (env == nullptr || *env == '\0') return best_isa();
    name = env;
    where = "LOWBIT_ISA";
  }
  auto isa = parse_isa(name);
  if (!isa) {
    isa.error().where = where;
    return isa;
  }
  if (!isa_available(*isa))
    return fail(ErrorCode::kUnsupported, where, name, std::string("at most ") + isa_name(best_isa()) + " on this CPU");
  return isa;
}

Result<int> choose_threads(int requested) {
  if (requested > 0) return std::min(requested, 1024);
  if (requested < 0)
    return fail(ErrorCode::kInvalidArgument, "--threads", std::to_string(requested), "a positive number");
  const char* env = std::getenv("LOWBIT_THREADS");
  if (env == nullptr || *env == '\0') return cpu_info().physical_cores;
  const std::string text = env;
  int value = 0;
  const auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (err != std::errc() || end != text.data() + text.size() || value < 1)
    return fail(ErrorCode::kInvalidArgument, "LOWBIT_THREADS", "'" + text + "'", "a positive number");
  return std::min(value, 1024);
}

}  // namespace lowbit
