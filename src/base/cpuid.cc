#include "base/cpuid.h"

#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lowbit {
namespace {

enum class Word { kLeaf1Ecx, kLeaf7Ebx, kLeaf7Ecx, kLeaf7Edx, kLeaf71Eax };

// Parts of the state in XCR0. SSE needs none of them.
constexpr uint64_t kNone = 0, kAvx = 0x6, kAvx512 = 0xe6, kTiles = 0x60000;

struct Feature {
  const char* name;
  Word word;
  int bit;
  uint64_t needs;
};

// Intel's manual, volume 2A, CPUID.
constexpr Feature kFeatures[] = {{"sse4_2", Word::kLeaf1Ecx, 20, kNone},
                                 {"avx", Word::kLeaf1Ecx, 28, kAvx},
                                 {"avx2", Word::kLeaf7Ebx, 5, kAvx},
                                 {"fma", Word::kLeaf1Ecx, 12, kAvx},
                                 {"f16c", Word::kLeaf1Ecx, 29, kAvx},
                                 {"avx_vnni", Word::kLeaf71Eax, 4, kAvx},
                                 {"avx512f", Word::kLeaf7Ebx, 16, kAvx512},
                                 {"avx512bw", Word::kLeaf7Ebx, 30, kAvx512},
                                 {"avx512dq", Word::kLeaf7Ebx, 17, kAvx512},
                                 {"avx512vl", Word::kLeaf7Ebx, 31, kAvx512},
                                 {"avx512cd", Word::kLeaf7Ebx, 28, kAvx512},
                                 {"avx512_vnni", Word::kLeaf7Ecx, 11, kAvx512},
                                 {"avx512vbmi", Word::kLeaf7Ecx, 1, kAvx512},
                                 {"avx512_vbmi2", Word::kLeaf7Ecx, 6, kAvx512},
                                 {"avx512_vpopcntdq", Word::kLeaf7Ecx, 14, kAvx512},
                                 {"avx512_bf16", Word::kLeaf71Eax, 5, kAvx512},
                                 {"avx512_fp16", Word::kLeaf7Edx, 23, kAvx512},
                                 {"sha_ni", Word::kLeaf7Ebx, 29, kNone},
                                 {"gfni", Word::kLeaf7Ecx, 8, kNone},
                                 {"amx_tile", Word::kLeaf7Edx, 24, kTiles},
                                 {"amx_int8", Word::kLeaf7Edx, 25, kTiles},
                                 {"amx_bf16", Word::kLeaf7Edx, 22, kTiles}};

uint32_t word_of(const CpuidWords& words, Word which) {
  switch (which) {
    case Word::kLeaf1Ecx:
      return words.leaf1_ecx;
    case Word::kLeaf7Ebx:
      return words.leaf7_ebx;
    case Word::kLeaf7Ecx:
      return words.leaf7_ecx;
    case Word::kLeaf7Edx:
      return words.leaf7_edx;
    case Word::kLeaf71Eax:
      return words.leaf7_1_eax;
  }
  return 0;
}

}  // namespace

CpuidWords read_cpuid() {
  CpuidWords words;
#if defined(__x86_64__)
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) != 0) words.leaf1_ecx = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    words.leaf7_ebx = b;
    words.leaf7_ecx = c;
    words.leaf7_edx = d;
    // Leaves beyond the last subleaf (eax) are not defined.
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) words.leaf7_1_eax = a;
  }
  constexpr uint32_t kOsXsave = 1u << 27;
  if ((words.leaf1_ecx & kOsXsave) != 0) {
    uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    words.saved = uint64_t{high} << 32 | low;
  }
  for (uint32_t part = 0; part < 3; ++part) {
    uint32_t text[4] = {};
    if (__get_cpuid(0x80000002u + part, &text[0], &text[1], &text[2], &text[3]) == 0) break;
    std::memcpy(words.brand.data() + part * sizeof text, text, sizeof text);
  }
#endif
  return words;
}

std::vector<std::string> cpu_features(const CpuidWords& words) {
  std::vector<std::string> names;
  for (const Feature& f : kFeatures)
    if ((word_of(words, f.word) >> f.bit & 1) != 0 && (words.saved & f.needs) == f.needs) names.emplace_back(f.name);
  return names;
}

std::string cpu_model(const CpuidWords& words) {
  const std::string name = words.brand.data();
  const size_t first = name.find_first_not_of(' '), last = name.find_last_not_of(' ');
  return first == std::string::npos ? "unknown" : name.substr(first, last - first + 1);
}

}  // namespace lowbit
