#pragma once
// What the kernel of a chain of matmuls reads. The host side is matmul_chain.cu, the plan ops/device_matmul_chain.h.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/integer_gemv.h"

namespace lowbit::cuda {

/// Warps that multiply; one more brings weights. A strip of K is a block of 64 bytes of every row, and has a warp.
inline constexpr int kChainWarps = 30, kMostChainLinears = 128, kChainFlights = 16;
inline constexpr int kMostChainColumns = kChainWarps * GemvOrder<2>::kColumns;

struct alignas(16) ChainLinear {
  const uint8_t* codes;  // counted, in the order of integer_gemv.h
  const float* scales;   // zeros up to a multiple of 16
  int k, x;              // columns; where x is in the exchange, in bytes
  int strips;            // warps of a team, one for each block of K
  int team_inverse;      // warp / strips == warp * team_inverse >> 16
  int n, tiles;
  int least, longer;   // tiles of a thread block; `longer` of them have one more,
  int turn;            // and this one is the first of those
  int out, out_count;  // where outputs go in the exchange, in bytes, and how many the next one reads
  int teams;
};

struct ChainArgs {
  const ChainLinear* linears;  // in device memory
  int count;
  const void* x;      // of the first one
  float* y;           // of the last one
  uint32_t* state;    // [0]: which half of the exchange; [1]: thread blocks that are done
  uint8_t* exchange;  // [2, half_bytes]
  int half_bytes;
  Element x_element;
  bool half;  // what is handed over is bf16, not f32
  int ring_at, ring_bytes;
};

/// How a chain is cut for the current device; grid 0: it does not fit.
struct ChainFit {
  int grid = 0, ring_at = 0, ring_bytes = 0;
};
cudaError_t fit_chain(const ChainLinear* linears, int count, bool half, ChainFit* fit);
cudaError_t launch_chain(const ChainArgs& a, int grid, cudaStream_t stream);

}  // namespace lowbit::cuda
