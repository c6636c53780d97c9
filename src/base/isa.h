#pragma once
// The linker keeps one copy of an inline function. Were a header's code compiled both for the
// baseline and with -mavx2, the kept copy could hold AVX2 instructions and crash an older CPU. So
// every header with code that an ISA translation unit includes opens `inline namespace LOWBIT_ISA`,
// and each ISA's copies have names of their own. Plain structs that cross the boundary
// (kernels/api.h) stay outside of it and carry no code.
#ifndef LOWBIT_ISA
#define LOWBIT_ISA baseline
#endif

#if defined(__CUDACC__)
#define LOWBIT_HD __host__ __device__
#else
#define LOWBIT_HD
#endif
