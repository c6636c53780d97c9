#pragma once
// In place of src/kernels/cuda/elements.cuh: what kernels of cuda/block/ need of it, for a host compiler.

#include "base/float.h"

namespace lowbit::cuda {

inline float f16_value(uint16_t h) { return f16_to_f32(h); }
inline uint16_t f16_nearest(float f) { return f32_to_f16(f); }

}  // namespace lowbit::cuda
