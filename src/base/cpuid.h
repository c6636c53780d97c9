#pragma once
// CPU features from the CPUID instruction. This works also where /proc is missing or shows another machine's CPU (an
// emulator).

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/cpu.h"

namespace lowbit {

/// The words that features are read from; all 0 on other machines than x86-64. `saved`: the parts of a thread's state
/// that the operating system keeps (XCR0), 0 where it does not tell (no OSXSAVE).
struct CpuidWords {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0, leaf7_ecx = 0, leaf7_edx = 0;  // subleaf 0
  uint32_t leaf7_1_eax = 0;                              // subleaf 1
  uint64_t saved = 0;
  std::array<char, 49> brand = {};  // ends in a zero
};

CpuidWords read_cpuid();

/// Names as the Linux kernel writes them, of what both the CPU has and the operating system saves.
std::vector<std::string> cpu_features(const CpuidWords& words);
/// "unknown" when the CPU has no name.
std::string cpu_model(const CpuidWords& words);

/// Whether kernels of `isa` run on a CPU with these features; AMX wants the kernel's permission besides.
bool isa_runs_with(const std::vector<std::string>& features, Isa isa);

}  // namespace lowbit
