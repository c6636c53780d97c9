#include "kernels/cpu/avx512/simd.h"
// The vocabulary comes first: the lists below are templates over it.
#include <array>

#include "kernels/cpu/matmul_list.h"
#include "kernels/tables.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// And the one that takes a product of bit matrices.
constexpr auto kKernels = [] {
  std::array<MatmulKernel, kPanelKernelCount<Simd> + 1> all{};
  for (size_t i = 0; i < size_t(kPanelKernelCount<Simd>); ++i) all[i] = kPanelKernels<Simd>[i];
  all.back() = IntegerMatmul<Simd, Trellis2>::kernel();
  return all;
}();

}  // namespace LOWBIT_ISA

constinit const KernelTable kAvx512Table = {"avx512", kKernels.data(), int(kKernels.size()), &kAvx512VectorOps};

}  // namespace lowbit
