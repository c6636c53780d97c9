#include "base/cpuid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace lowbit {
namespace {

/// A CPU with everything, under a system that saves everything.
CpuidWords everything() {
  CpuidWords w;
  w.leaf1_ecx = w.leaf7_ebx = w.leaf7_ecx = w.leaf7_edx = w.leaf7_1_eax = ~uint32_t{0};
  w.saved = ~uint64_t{0};
  return w;
}

bool runs(const CpuidWords& words, Isa isa) { return isa_runs_with(cpu_features(words), isa); }

TEST(Cpuid, ASystemThatDoesNotSaveRegistersHidesWhatNeedsThem) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx})
    EXPECT_TRUE(runs(everything(), isa));
  struct Case {
    uint64_t saved;
    bool avx2, avx512, amx;
  };
  for (const Case& c : {Case{0, false, false, false},
                        {0x2, false, false, false},
                        {0x4, false, false, false},
                        {0x7, true, false, false},
                        {0x27, true, false, false},
                        {0xa7, true, false, false},
                        {0xe7, true, true, false},
                        {0x200e7, true, true, false},
                        {0x400e7, true, true, false},
                        {0x600e7, true, true, true},
                        {0x60007, true, false, false},
                        {0xe0, false, false, false}}) {
    CpuidWords w = everything();
    w.saved = c.saved;
    EXPECT_EQ(runs(w, Isa::kAvx2), c.avx2) << c.saved;
    EXPECT_EQ(runs(w, Isa::kAvxVnni), c.avx2) << c.saved;
    EXPECT_EQ(runs(w, Isa::kAvx512), c.avx512) << c.saved;
    EXPECT_EQ(runs(w, Isa::kAmx), c.amx) << c.saved;
    EXPECT_TRUE(runs(w, Isa::kScalar));
  }
}

/// Which of the 32 bits of a word decide about an instruction set.
std::set<int> needed_bits(uint32_t CpuidWords::*word, Isa isa) {
  std::set<int> bits;
  for (int bit = 0; bit < 32; ++bit) {
    CpuidWords w = everything();
    w.*word &= ~(1u << bit);
    if (!runs(w, isa)) bits.insert(bit);
  }
  return bits;
}

TEST(Cpuid, EachMissingBitTakesTheInstructionSetsThatNeedIt) {
  const std::set<int> leaf1 = {12, 29};  // FMA, F16C
  for (const Isa isa : {Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx})
    EXPECT_EQ(needed_bits(&CpuidWords::leaf1_ecx, isa), leaf1);
  const std::set<int> avx2 = {5}, avx512 = {5, 16, 17, 30, 31}, avx512_ecx = {1, 6, 8, 11}, tiles = {24, 25};
  EXPECT_EQ(needed_bits(&CpuidWords::leaf7_ebx, Isa::kAvx2), avx2);
  EXPECT_EQ(needed_bits(&CpuidWords::leaf7_ebx, Isa::kAvx512), avx512);
  EXPECT_EQ(needed_bits(&CpuidWords::leaf7_ecx, Isa::kAvx2), std::set<int>{});
  EXPECT_EQ(needed_bits(&CpuidWords::leaf7_ecx, Isa::kAvx512), avx512_ecx);
  EXPECT_EQ(needed_bits(&CpuidWords::leaf7_edx, Isa::kAvx512), std::set<int>{});
  EXPECT_EQ(needed_bits(&CpuidWords::leaf7_edx, Isa::kAmx), tiles);
  EXPECT_EQ(needed_bits(&CpuidWords::leaf7_1_eax, Isa::kAvxVnni), std::set<int>{4});
  EXPECT_EQ(needed_bits(&CpuidWords::leaf7_1_eax, Isa::kAmx), std::set<int>{});
}

TEST(Cpuid, AnEmptyCpuRunsScalarCode) {
  EXPECT_TRUE(cpu_features({}).empty());
  EXPECT_EQ(cpu_model({}), "unknown");
  CpuidWords named;
  std::strcpy(named.brand.data(), "  A CPU @ 2 GHz   ");
  EXPECT_EQ(cpu_model(named), "A CPU @ 2 GHz");
}

// Only where /proc shows the CPU that runs this: not in an emulator.
TEST(Cpuid, TheKernelsListSaysTheSame) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, model;
  std::set<std::string> listed;
  while (listed.empty() && std::getline(file, line)) {
    if (line.rfind("model name", 0) == 0) model = line.substr(line.find(':') + 2);
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) listed.insert(word);
  }
  if (listed.empty()) GTEST_SKIP() << "no x86 CPU in /proc/cpuinfo";
  if (model.substr(0, model.find_last_not_of(' ') + 1) != cpu_info().model)
    GTEST_SKIP() << "/proc/cpuinfo shows '" << model << "', the CPU is '" << cpu_info().model << "'";
  const std::vector<std::string> mine = cpu_info().features;
  for (const std::string& name : cpu_features(everything()))
    EXPECT_EQ(std::count(mine.begin(), mine.end(), name), std::ptrdiff_t(listed.count(name))) << name;
}

}  // namespace
}  // namespace lowbit
