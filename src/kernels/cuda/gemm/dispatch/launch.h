#pragma once
// Shared by all launches: a problem is checked, its sizes are worked out, the tensor map of x is made.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/schedule/device_args.h"

namespace lowbit::cuda::gemm_launch {

inline constexpr int64_t kMaxSize = int64_t(1) << 30;       // of m, n, k: indices inside a kernel are int
inline constexpr int64_t kTileRowLimit = int64_t(1) << 31;  // tiles of a launch

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline bool is_integer(GemmActivation a) { return a == GemmActivation::kInt8 || a == GemmActivation::kBit; }
inline int64_t x_bytes(GemmActivation a) { return is_integer(a) ? 1 : 2; }
inline int64_t pack_k(GemmActivation a) { return 128 / x_bytes(a); }
/// Elements of a row as kernels see them: eight bits are one.
inline int64_t elements(const GemmWeights& w) { return w.activation == GemmActivation::kBit ? ceil_div(w.k, 8) : w.k; }
inline int64_t group_of(const GemmWeights& w) { return w.group <= 0 || w.group >= w.k ? elements(w) : w.group; }
inline int64_t row_bytes_of(const GemmProblem& p) {
  return p.w.activation == GemmActivation::kBit ? p.ldx / 8 : p.ldx * x_bytes(p.w.activation);
}

/// kInvalidArgument: a size or pointer that no kernel takes.
GemmStatus check(const GemmProblem& p);

/// Tokens of a band of tiles (tile_at()). What a wave reads from memory is least where its tokens and its rows of
/// weights are as many bytes: wide weights want high bands. 8192^3 with 8 bits 1398 -> 1415 TOP/s, since memory takes
/// power too.
int band_rows(const GemmProblem& p);

/// The problem's sizes for tiles of `bm` tokens by `tile_packs` packs of weights, their K in `split` parts.
GemmArgs make_args(const GemmProblem& p, int bm, int tile_packs, int split);

/// Boxes of `bm` rows by 128 bytes of x, zeros outside.
bool make_map(const GemmProblem& p, int bm, CUtensorMap* map);

struct Device {
  int id = -1, arch = 0, processors = 0, shared = 0;
};
/// The current one, asked once per thread.
Device current_device();

inline GemmStatus launched(cudaError_t e) { return e == cudaSuccess ? GemmStatus::kOk : GemmStatus::kCudaError; }

}  // namespace lowbit::cuda::gemm_launch
