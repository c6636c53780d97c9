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

namespace lowbit {
namespace {

#if defined(__x86_64__)
bool amx_permitted() {
  // Linux hands out the tile registers on request only: arch_prctl(ARCH_REQ_XCOMP_PERM,
  // XFEATURE_XTILEDATA).
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
}

bool has(const std::vector<std::string>& features, const char* name) {
  return std::find(features.begin(), features.end(), name) != features.end();
}
#endif

// The kernel's own list already accounts for what the operating system saves and restores.
CpuInfo read_cpu_info() {
  CpuInfo info;
  static const std::set<std::string> kInteresting = {
      "sse4_2",      "avx",      "avx2",     "fma",      "f16c",        "avx_vnni",         "avx512f",
      "avx512bw",    "avx512dq", "avx512vl", "avx512cd", "avx512_vnni", "avx512vbmi",       "avx512_bf16",
      "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "gfni",        "avx512_vpopcntdq", "avx512_vbmi2"};
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) CPU_ZERO(&usable);

  std::ifstream file("/proc/cpuinfo");
  std::string line;
  int processor = -1, package = 0;
  std::set<std::pair<int, int>> cores;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::string value = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
    if (key == "processor") processor = std::atoi(value.c_str());
    if (key == "physical id") package = std::atoi(value.c_str());
    if (key == "core id" && processor >= 0 && CPU_ISSET(processor, &usable))
      cores.insert({package, std::atoi(value.c_str())});
    if (key == "model name" && info.model.empty()) info.model = value;
    if (key == "flags" && info.features.empty()) {
      for (size_t b = 0; b < value.size();) {
        const size_t e = std::min(value.find(' ', b), value.size());
        if (std::string word = value.substr(b, e - b); kInteresting.count(word)) info.features.push_back(word);
        b = e + 1;
      }
    }
  }
  info.logical_cpus =
      std::max(1, CPU_COUNT(&usable) > 0 ? CPU_COUNT(&usable) : static_cast<int>(std::thread::hardware_concurrency()));
  info.physical_cores =
      cores.empty() ? info.logical_cpus : std::min<int>(static_cast<int>(cores.size()), info.logical_cpus);
  if (info.model.empty()) info.model = "unknown";
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

bool isa_available(Isa isa) {
#if defined(__x86_64__)
  const auto& f = cpu_info().features;
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
      return avx512 && has(f, "amx_tile") && has(f, "amx_int8") && amx_permitted();
  }
  return false;
#else
  return isa == Isa::kScalar;
#endif
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
