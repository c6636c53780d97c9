#include "kernels/cpu/avx2/simd.h"
// The vocabulary comes first: the lists below are templates over it.
#include "kernels/cpu/matmul_list.h"
#include "kernels/tables.h"

namespace lowbit {

constinit const KernelTable kAvx2Table = {"avx2", kPanelKernels<Simd>, kPanelKernelCount<Simd>, &kAvx2VectorOps};

}  // namespace lowbit
