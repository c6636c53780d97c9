#pragma once
// The contract between backend/cuda/ and the kernels that round tokens to 16 bits. No CUDA types;
// kernels/cuda/block/halves.cu implements it, kernels/cuda_stub/ stands in for it. Numerics: base/float.h. Device
// memory; only enqueues work.

#include <cstdint>

#include "lowbit/error.h"

namespace lowbit::cuda {

/// Rows x [m, k] in f16, or bf16: [m, ldh], zeros from k on.
struct HalveRows {
  const float* x = nullptr;
  int64_t m = 0, k = 0;
  bool bf16 = false;
  uint16_t* halves = nullptr;
  int64_t ldh = 0;
  void* stream = nullptr;
};
Status halve_rows(const HalveRows& call);
/// Rounds x to f16 or bf16 and stores it as floats: y [count]; y may be x.
Status round_to_halves(const float* x, int64_t count, bool bf16, float* y, void* stream);

}  // namespace lowbit::cuda
