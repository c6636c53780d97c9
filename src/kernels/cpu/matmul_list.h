#pragma once
// Which panel kernels an instruction set offers: one list, instantiated for each vector vocabulary.

#include "kernels/cpu/float_matmul.h"
#include "kernels/cpu/integer_matmul.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class S>
inline constexpr MatmulKernel kIntegerKernels[] = {
    IntegerMatmul<S, Int8>::kernel(),        IntegerMatmul<S, Int4>::kernel(),
    IntegerMatmul<S, Uint4>::kernel(),       IntegerMatmul<S, Int3>::kernel(),
    IntegerMatmul<S, Int2>::kernel(),        IntegerMatmul<S, Int3Odd>::kernel(),
    IntegerMatmul<S, Int2Odd>::kernel(),     IntegerMatmul<S, Binary>::kernel(),
    IntegerMatmul<S, Ternary2Bit>::kernel(), IntegerMatmul<S, TernaryPacked>::kernel(),
    IntegerMatmul<S, Codebook4>::kernel(),   IntegerMatmul<S, Codebook3>::kernel(),
    IntegerMatmul<S, Codebook2>::kernel(),
};
template <class S>
inline constexpr int kIntegerKernelCount = sizeof(kIntegerKernels<S>) / sizeof(MatmulKernel);

template <class S>
inline constexpr MatmulKernel kPanelKernels[] = {
    kIntegerKernels<S>[0],
    kIntegerKernels<S>[1],
    kIntegerKernels<S>[2],
    kIntegerKernels<S>[3],
    kIntegerKernels<S>[4],
    kIntegerKernels<S>[5],
    kIntegerKernels<S>[6],
    kIntegerKernels<S>[7],
    kIntegerKernels<S>[8],
    kIntegerKernels<S>[9],
    kIntegerKernels<S>[10],
    kIntegerKernels<S>[11],
    kIntegerKernels<S>[12],
    FloatMatmul<S, PackedSource<S, Fp8>, Activation::kInt8>::kernel(),
    FloatMatmul<S, PackedSource<S, Fp8>, Activation::kFp8>::kernel(),
    FloatMatmul<S, PackedSource<S, Codebook4>, Activation::kInt8>::kernel(),
    FloatMatmul<S, PackedSource<S, Codebook3>, Activation::kInt8>::kernel(),
    FloatMatmul<S, PackedSource<S, Codebook2>, Activation::kInt8>::kernel(),
    FloatMatmul<S, PackedSource<S, Int8>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Int4>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Uint4>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Int3>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Int2>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Int3Odd>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Int2Odd>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Binary>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Ternary2Bit>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, TernaryPacked>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Fp8>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Codebook4>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Codebook3>, Activation::kF32>::kernel(),
    FloatMatmul<S, PackedSource<S, Codebook2>, Activation::kF32>::kernel(),
    FloatMatmul<S, DenseSource<S, FormatId::kF32>, Activation::kF32>::kernel(),
    FloatMatmul<S, DenseSource<S, FormatId::kF16>, Activation::kF32>::kernel(),
    FloatMatmul<S, DenseSource<S, FormatId::kBf16>, Activation::kF32>::kernel(),
};
template <class S>
inline constexpr int kPanelKernelCount = sizeof(kPanelKernels<S>) / sizeof(MatmulKernel);

}  // namespace LOWBIT_ISA
}  // namespace lowbit
