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
constexpr std::array kLevels = {Level{Isa::kAvx512, &kAvx512Table}, Level{Isa::kAvx2, &kAvx2Table},
                                Level{Isa::kScalar, &kRefTable}};
#else
constexpr std::array kLevels = {Level{Isa::kScalar, &kRefTable}};
#endif

constexpr auto tables_of_levels() {
  std::array<const KernelTable*, kLevels.size()> tables{};
  for (size_t i = 0; i < tables.size(); ++i) tables[i] = kLevels[i].table;
  return tables;
}
constexpr auto kTables = tables_of_levels();

}  // namespace

std::span<const KernelTable* const> kernel_tables(Isa at_most) {
  size_t skip = 0;
  while (kLevels[skip].isa > at_most) ++skip;
  return std::span(kTables).subspan(skip);
}

const KernelTable& ref_table() { return kRefTable; }

std::vector<const MatmulKernel*> all_matmul_kernels() {
  std::vector<const MatmulKernel*> all;
  const auto append = [&](const KernelTable& table) {
    for (int i = 0; i < table.matmul_count; ++i) all.push_back(table.matmul + i);
  };
  for (const KernelTable* table : kTables) append(*table);
  return all;
}

const VectorOps& vector_ops(Isa at_most) {
  for (const KernelTable* table : kernel_tables(at_most))
    if (table->vector != nullptr) return *table->vector;
  return kRefVectorOps;
}

}  // namespace lowbit
