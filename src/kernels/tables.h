#pragma once
// The one symbol each kernel folder of the CPU exports. CUDA's kernels: cuda_api.h.

#include "kernels/api.h"

namespace lowbit {

extern const KernelTable kRefTable;
extern const KernelTable kAvx2Table;
extern const KernelTable kAvxVnniTable;
extern const KernelTable kAvx512Table;
extern const KernelTable kAmxTable;

// Written in <folder>/vector_ops.cc.
extern const VectorOps kRefVectorOps;
extern const VectorOps kAvx2VectorOps;
extern const VectorOps kAvx512VectorOps;

}  // namespace lowbit
