#include "kernels/cpu/avxvnni/simd.h"
// The vocabulary comes first: the lists below are templates over it.
#include "kernels/cpu/matmul_list.h"
#include "kernels/tables.h"

namespace lowbit {

// Floats are AVX2's: only dot products differ.
constinit const KernelTable kAvxVnniTable = {"avxvnni", kIntegerKernels<Simd>, kIntegerKernelCount<Simd>, nullptr};

}  // namespace lowbit
