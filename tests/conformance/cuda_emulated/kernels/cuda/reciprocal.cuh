#pragma once
// In place of src/kernels/cuda/reciprocal.cuh, for a host compiler.

namespace lowbit::cuda {

inline float reciprocal_estimate(float d) { return 1.0f / d; }

}  // namespace lowbit::cuda
