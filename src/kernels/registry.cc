#include "kernels/registry.h"

#include <array>

#include "kernels/tables.h"

namespace lowbit {
namespace {

struct Level {
  Isa isa;
  const KernelTable* table;
};

#if defined(__x86_64__)
constexpr std::array kLevels = {Level{Isa::kAmx, &kAmxTable}, Level{Isa::kAvx512, &kAvx512Table},
                                Level{Isa::kAvxVnni, &kAvxVnniTable}, Level{Isa::kAvx2, &kAvx2Table},
                                Level{Isa::kScalar, &kRefTable}};
#else
constexpr std::array kLevels = {Level{Isa::kScalar, &kRefTable}};
#endif

struct Tables {
  std::array<const KernelTable*, kLevels.size()> table{};
  std::array<Isa, kLevels.size()> isa{};
  size_t count = 0;
};

/// The tables of this machine: some CPUs with AVX-512 lack AVX-VNNI. The others' code must not run.
const Tables& usable_tables() {
  static const Tables tables = [] {
    Tables t;
    for (const Level& level : kLevels)
      if (isa_available(level.isa)) {
        t.isa[t.count] = level.isa;
        t.table[t.count++] = level.table;
      }
    return t;
  }();
  return tables;
}

}  // namespace

std::span<const KernelTable* const> kernel_tables(Isa at_most) {
  const Tables& t = usable_tables();
  size_t skip = 0;
  while (t.isa[skip] > at_most) ++skip;
  return std::span(t.table).first(t.count).subspan(skip);
}

const KernelTable& ref_table() { return kRefTable; }

std::vector<const MatmulKernel*> all_matmul_kernels() {
  std::vector<const MatmulKernel*> all;
  const auto append = [&](const KernelTable& table) {
    for (int i = 0; i < table.matmul_count; ++i) all.push_back(table.matmul + i);
  };
  for (const Level& level : kLevels) append(*level.table);
  return all;
}

const VectorOps& vector_ops(Isa at_most) {
  for (const KernelTable* table : kernel_tables(at_most))
    if (table->vector != nullptr) return *table->vector;
  return kRefVectorOps;
}

GramKernel gram_kernel(Isa at_most) {
#if defined(__x86_64__)
  if (at_most >= Isa::kAvx512) return kAvx512Gram;
  if (at_most >= Isa::kAvx2) return kAvx2Gram;
#endif
  static_cast<void>(at_most);
  return kRefGram;
}

}  // namespace lowbit
