#include "backend/cuda/fp8_weight.h"

#include <cstring>
#include <vector>

#include "base/checked.h"
#include "base/try.h"
#include "kernels/cuda_api.h"
#include "kernels/cuda_fp8_api.h"

namespace lowbit {
namespace {

Result<Buffer> to_device_bytes(const void* from, int64_t bytes, const char* what) {
  LOWBIT_TRY_ASSIGN(Buffer buffer, cuda::allocate(bytes, what));
  LOWBIT_TRY(cuda::upload(buffer, from, bytes));
  return buffer;
}

}  // namespace

Result<CudaFp8Weight> CudaFp8Weight::make(const std::string& name, const QTensor& w) {
  CudaFp8Weight weight;
  weight.n = w.n, weight.k = w.k;
  weight.scale_rows = w.scaling.n_block;
  if (w.scaling.k_block != kFp8Block || (weight.scale_rows != 1 && weight.scale_rows != kFp8Block))
    return fail(ErrorCode::kUnsupported, name, "fp8 activations with scales of " + scaling_name(w.scaling),
                "128x128 or g128 on a GPU", "--act f32, or --device cpu");
  const int64_t ld = row_bytes(w.k), strips = ceil_div(w.n, weight.scale_rows), blocks = weight.blocks();
  std::vector<uint8_t> codes(size_t(w.n * ld));
  for (int64_t r = 0; r < w.n; ++r) std::memcpy(codes.data() + r * ld, w.row(r), size_t(w.k));
  std::vector<float> scales(size_t(strips * blocks));
  for (int64_t s = 0; s < strips; ++s)
    for (int64_t b = 0; b < blocks; ++b) scales[size_t(s * blocks + b)] = w.scale(s * weight.scale_rows, b);
  LOWBIT_TRY_ASSIGN(weight.codes, to_device_bytes(codes.data(), int64_t(codes.size()), "fp8 weights"));
  LOWBIT_TRY_ASSIGN(weight.scales,
                    to_device_bytes(scales.data(), int64_t(scales.size() * sizeof(float)), "fp8 scales"));
  return weight;
}

int64_t CudaFp8Weight::blocks() const { return ceil_div(k, kFp8Block); }
int64_t CudaFp8Weight::row_bytes(int64_t k) { return round_up(k, int64_t{16}); }
int64_t CudaFp8Weight::scale_stride(int64_t m) { return round_up(m, kFp8ScaleRowMultiple); }

Status CudaFp8Weight::quantize(const float* x, int64_t m, uint8_t* to, float* to_scales, void* stream) const {
  Fp8Quant q;
  q.x = x, q.rows = m, q.columns = k, q.ldx = k;
  q.codes = to, q.ldcodes = row_bytes(k);
  q.scales = to_scales, q.ldscales = scale_stride(m), q.scales_by_column = true;
  return cuda::quantize_fp8(q, stream);
}

Status CudaFp8Weight::multiply(const uint8_t* x, const float* x_scales, const float* bias, int64_t m, float* y,
                               bool exact, void* stream) const {
  const Fp8Gemm g{m,
                  n,
                  k,
                  x,
                  row_bytes(k),
                  x_scales,
                  scale_stride(m),
                  true,
                  codes.as<uint8_t>(),
                  row_bytes(k),
                  scales.as<float>(),
                  blocks(),
                  scale_rows,
                  y,
                  Fp8Element::kF32,
                  n};
  return cuda::gemm_fp8(g, stream, {.bias = bias, .new_weights = false, .exact = exact});
}

std::string CudaFp8Weight::kernel_name() const {
  return std::string("matmul_fp8_afp8_") + (scale_rows == 1 ? "g128" : "128x128") + "__cuda";
}

}  // namespace lowbit
