#pragma once
// Features of this CPU, and the instruction set that lowbit uses.

#include <string>
#include <vector>

#include "lowbit/error.h"

namespace lowbit {

/// Instruction sets that lowbit has kernels for, weakest first. An Isa includes all weaker ones, but for kAvxVnni,
/// which some CPUs with AVX-512 lack.
enum class Isa { kScalar, kAvx2, kAvxVnni, kAvx512, kAmx };

const char* isa_name(Isa isa);  // "scalar", "avx2", "avxvnni", "avx512", "amx"
Result<Isa> parse_isa(const std::string& name);

/// True when CPU and operating system both allow it. kAvx2: AVX2, FMA, F16C. kAvxVnni:
/// kAvx2 and the VEX form of VNNI. kAvx512: F, BW, DQ, VL, VNNI, VBMI, VBMI2, GFNI. kAmx: kAvx512 and AMX int8
/// with the kernel's permission to use tiles (asked for on first use).
bool isa_available(Isa isa);
Isa best_isa();
/// AVX-512 BF16, which only some CPUs with kAvx512 have: products of pairs of bf16, added one after the other.
bool has_bf16_pairs();

/// The one to use: `requested` ("" = not given), else LOWBIT_ISA, else the best. Refuses one that
/// the machine lacks.
Result<Isa> choose_isa(const std::string& requested);

struct CpuInfo {
  std::string model;                  // as the machine names itself
  std::vector<std::string> features;  // those that matter here, e.g. "avx2", "avx512_vnni"
  int logical_cpus = 1;               // usable by this process
  int physical_cores = 1;             // of those
};
const CpuInfo& cpu_info();

/// `requested` (0 = not given), else LOWBIT_THREADS, else physical cores.
Result<int> choose_threads(int requested);

}  // namespace lowbit
