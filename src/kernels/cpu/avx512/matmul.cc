#include "kernels/cpu/avx512/simd.h"
// The vocabulary comes first: the lists below are templates over it.
#include "kernels/cpu/matmul_list.h"
#include "kernels/tables.h"

namespace lowbit {

constinit const KernelTable kAvx512Table = {"avx512", kPanelKernels<Simd>, kPanelKernelCount<Simd>, &kAvx512VectorOps};

}  // namespace lowbit
