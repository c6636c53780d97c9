#pragma once
// The contract between backend/cuda/ and the kernel of a decoding step: products of a few tokens with what stands
// before and behind them, in one launch. kernels/cuda/ implements it, kernels/cuda_stub/ stands in for it.
//
// Numerics: docs/numerics.md: the bits of norm_rows(), quantize_activations(), MatmulKernel::run(), add_rows() and
// gate_rows() one after the other; of x in 16 bits those of norm_rows() and halve_rows(), and sums within a bound.

#include <array>
#include <cstdint>

#include "kernels/cuda_api.h"

namespace lowbit::cuda {

/// The epilogue of a product: it is stored, added to y, or, of two products, act(first) * second is stored as the first
/// one's y.
enum class ProductEnd : uint8_t { kStore, kAdd, kSilu, kSquaredRelu };

inline constexpr int64_t kMostStepRows = 8;
inline constexpr int kMostStepProducts = 3;

/// Products of the same x, in f32. Device memory.
struct StepProducts {
  int count = 0;
  std::array<Matmul, kMostStepProducts> parts;  // x of the first counts: codes and scales or halves; not with rows
  const MatmulKernel* kernel = nullptr;         // that has made all weights
  const float* rows = nullptr;  // [m, k]: x before it is normed, if there is a norm, and quantized; every block does so
  const float* norm = nullptr;  // [k]
  float eps = 0;
  ProductEnd end = ProductEnd::kStore;
  /// Where leaves_codes(), or null: what quantize_activations() makes of a gated product, which is stored besides.
  int8_t* y_codes = nullptr;  // [n]
  float* y_scales = nullptr;  // per 32 columns
};
/// Whether step_products() takes them, room in a block and no offsets assumed: one to kMostStepRows rows, int8 with a
/// scale per 32 columns and weights with scales of 32 to 256 or, of one token, a scale per row; 16-bit and
/// DeviceMatmulPlan::takes_halves(); or one of `rows`, whose codes share a scale, and weights of 1 or 2 bits with a
/// scale per row.
bool takes_step_products(const StepProducts& call);
/// Whether thread blocks have whole activation groups of a gated product, so that they can leave its codes. What
/// takes_step_products() takes.
bool leaves_codes(const StepProducts& call);
/// Thread blocks of the launch, each of which norms and quantizes rows.
int64_t step_product_blocks(const StepProducts& call);
/// Enqueues them. Errors: what CUDA says.
Status step_products(const StepProducts& call);

}  // namespace lowbit::cuda
