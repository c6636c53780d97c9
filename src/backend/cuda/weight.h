#pragma once
// Weights in device memory, and products with them.

#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/fp8_weight.h"
#include "backend/step.h"
#include "base/threads.h"
#include "kernels/cuda_matmul_api.h"
#include "ops/device_matmul.h"
#include "tensor/buffer.h"

namespace lowbit {

/// f32 values on the device. Errors: kOutOfMemory, what CUDA says.
Result<Buffer> to_device(std::span<const float> values, const char* what);
inline const float* floats_or_null(const Buffer& b) { return b.empty() ? nullptr : b.as<float>(); }

/// A weight of which rows are read: as it is stored.
struct DeviceTable {
  FormatId format = FormatId::kF32;
  Buffer codes, scales, offsets, values;
  int64_t row_bytes = 0, group = 0;
};

/// y = x W^T + bias; rows of the weight where it is an embedding. On the current device, of which `arena` has slabs.
/// `exact`: make_cuda_backend().
struct CudaWeight final : Weight {
  static Result<std::unique_ptr<CudaWeight>> make(const std::string& name, const QTensor& w,
                                                  const std::vector<float>& bias, const XSpec& x, WeightUse use,
                                                  bool exact, Arena& arena, ThreadPool& pool);
  WeightInfo info() const override;
  bool takes_codes() const { return multiplies && activation == Activation::kInt8; }
  bool takes_fp8() const { return multiplies && activation == Activation::kFp8; }
  /// Rows in f16 or bf16, for tensor cores.
  bool takes_halves() const { return multiplies && rounding.halves != Halves::kNone && plan.takes_halves(); }
  cuda::Element half() const { return rounding.halves == Halves::kBf16 ? cuda::Element::kBf16 : cuda::Element::kF16; }
  /// Rows whose values are those of halves, for the exact product.
  bool takes_rounded_floats() const {
    return multiplies && activation == Activation::kF32 && rounding.halves != Halves::kNone && !plan.takes_halves();
  }
  /// Columns of x that share a scale; 0: all of a row.
  int64_t code_group() const { return plan.x_groups() ? plan.group() : 0; }
  /// Its part of a product of few rows, in the CPU's order of sums, which y [m, n] gets. Only where the sums are such:
  /// has_exact_products().
  cuda::ExactProductPart exact_product_part(float* y) const;
  bool has_exact_products() const { return multiplies && !takes_codes() && !takes_halves() && offsets.empty(); }
  /// A call of exact_products(), but for x and its parts.
  cuda::ExactProducts exact_products() const;
  /// y [m, n] of rows x [m, k] in f32, or of their int8 codes or halves.
  Status run(const DeviceRows& x, float* y, uint8_t* scratch, void* stream) const;

  std::string name, kernel, reason;
  FormatId format = FormatId::kF32;
  int64_t n = 0, k = 0;
  bool multiplies = false;
  Activation activation = Activation::kF32;
  ActivationRounding rounding;
  Buffer bias;                     // [n] or empty
  DeviceTable table;               // of an embedding
  DeviceMatmulPlan plan;           // int8 activations, and those in 16 bits where tensor cores take them
  CudaFp8Weight fp8;               // fp8 activations
  Buffer values, scales, offsets;  // f32 activations: WeightParts
  cuda::ValueType type = cuda::ValueType::kF32;
  int64_t group = 0;

 private:
  Status set_values(const QTensor& w, ThreadPool& pool);
  Status set_table(const QTensor& w, ThreadPool& pool);
  Status set_stored_table(const QTensor& w);
};

}  // namespace lowbit
