#pragma once
// Joins the kernel tables of all instruction sets that this binary was built for.

#include <span>
#include <vector>

#include "base/cpu.h"
#include "kernels/api.h"
#include "kernels/gram_api.h"

namespace lowbit {

/// This machine's tables up to `at_most`, strongest first; the reference table is always the last. The caller knows
/// that the machine has `at_most` (base/cpu.h: choose_isa).
std::span<const KernelTable* const> kernel_tables(Isa at_most);

/// The reference table: the normative meaning of every kernel.
const KernelTable& ref_table();

/// Every matmul kernel for the CPU in the binary, for listings. CUDA's: cuda::matmul_kernels() of kernels/cuda_api.h.
std::vector<const MatmulKernel*> all_matmul_kernels();

/// Vector operations of the strongest table up to `at_most` that has some.
const VectorOps& vector_ops(Isa at_most);

/// The strongest up to `at_most`, which the machine has.
GramKernel gram_kernel(Isa at_most);

}  // namespace lowbit
