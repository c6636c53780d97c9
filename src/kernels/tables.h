#pragma once
// The one symbol each kernel folder exports.

#include "kernels/api.h"

namespace lowbit {

extern const KernelTable kRefTable;
extern const KernelTable kAvx2Table;
extern const KernelTable kAvxVnniTable;
extern const KernelTable kAvx512Table;
extern const KernelTable kAmxTable;
extern const KernelTable kCudaTable;  // cuda_stub/: empty where there is no CUDA

// Written in <folder>/vector_ops.cc.
extern const VectorOps kRefVectorOps;
extern const VectorOps kAvx2VectorOps;

}  // namespace lowbit
