// The definition of FP8 in blocks: docs/numerics.md#fp8-in-blocks. Written to be read, never tuned.

#include "kernels/fp8_api.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/fp8_math.h"

namespace lowbit {
namespace {

float read(const void* x, Fp8Element element, int64_t i) {
  if (element == Fp8Element::kF32) return static_cast<const float*>(x)[i];
  const uint16_t half = static_cast<const uint16_t*>(x)[i];
  return element == Fp8Element::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
}

void write(void* y, Fp8Element element, int64_t i, float v) {
  if (element == Fp8Element::kF32) {
    static_cast<float*>(y)[i] = v;
  } else {
    static_cast<uint16_t*>(y)[i] = element == Fp8Element::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
  }
}

void quantize(const Fp8QuantArgs& a) {
  for (int64_t first = 0; first < a.columns; first += a.block) {
    const int64_t end = std::min(first + a.block, a.columns);
    float largest = 0;
    for (int64_t r = 0; r < a.rows; ++r)
      for (int64_t i = first; i < end; ++i) {
        const float v = std::fabs(read(a.x, a.element, r * a.ldx + i));
        if (!(v <= largest) && largest == largest) largest = v;  // a NaN stays
      }
    const float scale = fp8_scale(largest, a.power_of_two);
    a.scales[first / a.block * a.scale_step] = scale;
    for (int64_t r = 0; r < a.rows; ++r)
      for (int64_t i = first; i < end; ++i)
        a.codes[r * a.ldcodes + i] =
            fp8_has_codes(scale) ? f32_to_e4m3(read(a.x, a.element, r * a.ldx + i) / scale) : uint8_t{0};
  }
}

void dequantize(const Fp8DequantArgs& a) {
  for (int64_t i = 0; i < a.columns; ++i) write(a.y, a.element, i, e4m3_to_f32(a.codes[i]) * a.scales[i / a.block]);
}

void decode(const uint8_t* codes, int64_t n, float factor, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = e4m3_to_f32(codes[i]) * factor;
}

int64_t gemm_scratch_bytes(int64_t) { return 0; }

void gemm(const Fp8GemmArgs& a) {
  for (int64_t i = 0; i < a.m; ++i)
    for (int64_t j = a.n0; j < a.n1; ++j) {
      float acc = 0;
      for (int64_t first = 0; first < a.k; first += kFp8Block) {
        const int64_t end = std::min(first + kFp8Block, a.k), g = first / kFp8Block;
        float s = 0;
        for (int64_t k = first; k < end; ++k) s = std::fma(a.a[i * a.lda + k], e4m3_to_f32(a.b[j * a.ldb + k]), s);
        acc = std::fma(s * a.a_scales[i * a.a_scale_row + g * a.a_scale_block],
                       a.b_scales[j / a.b_rows * a.ldb_scales + g], acc);
      }
      write(a.c, a.element, i * a.ldc + j, acc);
    }
}

}  // namespace

constinit const Fp8Kernels kRefFp8 = {"fp8__ref", "ref", quantize, dequantize,         decode,
                                      1.0f,       false, 1,        gemm_scratch_bytes, gemm};

}  // namespace lowbit
