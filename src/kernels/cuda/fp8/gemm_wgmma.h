#pragma once
// The products of FP8 codes on the tensor cores of compute capability 9.0: which kernel takes one, and how it is cut.

#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.h"
#include "kernels/fp8_groups.h"
#include "kernels/fp8_problem.h"

namespace lowbit::cuda {

struct DeviceGemm : Fp8Gemm {
  const float* bias = nullptr;  // [n] or null
  bool new_weights = true;      // work before it on the stream may write b: none of it is fetched early
  bool exact = false;           // with a scale of b per row the CPU's bits, and no tensor cores
};

/// False where the tensor cores of compute capability 9.0 cannot take the product or may not: nothing was enqueued
/// then. `error` else. Groups: count 0 if there are none.
bool gemm_fp8_wgmma(const DeviceGemm& g, const Fp8Groups& groups, cudaStream_t stream, cudaError_t* error);

namespace fp8 {

/// With few rows of a its operands are exchanged: 64 rows of b by `q` rows of a make a tile, `split` thread blocks of a
/// cluster share the columns of K, and a multiprocessor has room for `blocks` of them. Else a tile is `p` rows of a by
/// `q` of b; warpgroups share the columns of K where it has 64 rows.
struct Cut {
  bool skinny = false;
  int p = 64, q = 0;
  int split = 1, blocks = 1;
};

Cut choose_cut(const Fp8Gemm& g, const Device& device);
/// For groups, of whose sizes the host knows the mean, or the most.
Cut choose_group_cut(const Fp8Gemm& g, const Fp8Groups& groups, const Device& device);

/// False: there is no such kernel.
bool launch_skinny(const DeviceGemm& g, const Fp8Groups& groups, const Cut& cut, const Device& device,
                   cudaStream_t stream, cudaError_t* error);
bool launch_many_rows(const DeviceGemm& g, const Fp8Groups& groups, const Cut& cut, const Device& device,
                      cudaStream_t stream, cudaError_t* error);

}  // namespace fp8
}  // namespace lowbit::cuda
