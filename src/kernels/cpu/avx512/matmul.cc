#include "kernels/cpu/avx512/simd.h"
// The vocabulary comes first: the lists below are templates over it.
#include <array>

#include "kernels/cpu/matmul_list.h"
#include "kernels/tables.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// And those that take a product of bit matrices, or of pairs of bf16, which come before the others of their formats.
constexpr auto kKernels = [] {
  std::array<MatmulKernel, kPanelKernelCount<Simd> + 2> all{};
  for (size_t i = 0; i < size_t(kPanelKernelCount<Simd>); ++i) all[i + 1] = kPanelKernels<Simd>[i];
  all.front() = FloatMatmul<Simd, PairedFp8<Simd>, Activation::kFp8>::kernel();
  all.back() = IntegerMatmul<Simd, Trellis2>::kernel();
  return all;
}();

}  // namespace LOWBIT_ISA

constinit const KernelTable kAvx512Table = {"avx512", kKernels.data(), int(kKernels.size()), &kAvx512VectorOps};

}  // namespace lowbit
