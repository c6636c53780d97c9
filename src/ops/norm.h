#pragma once
// Normalization of activation rows.

#include <cstdint>

#include "base/threads.h"
#include "kernels/api.h"

namespace lowbit {

/// y[m,i] = x[m,i] / sqrt(mean(x[m]^2) + eps) * weight[i].
/// Shapes:   x [M,N] row stride ldx, weight [N], y [M,N] row stride ldy (elements); y may be x.
/// Numerics: VectorOps::rms_norm; same bits for any thread count and any ISA. Reference:
/// kernels/ref/vector_ops.cc.
void rms_norm_rows(const VectorOps& ops, const float* x, int64_t ldx, const float* weight, int64_t m, int64_t n,
                   float eps, float* y, int64_t ldy, ThreadPool& pool);

}  // namespace lowbit
