#pragma once
// Elements of a page of any form, as f16: packing reads f16 pages, demotion reads codes.

#include "base/float.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/packed_ops.cuh"
#include "kernels/packed_kv.h"

namespace lowbit::cuda::block {

/// The number of a code of fp8 rows; f16 has it, too (kernels/fp8_rows.h).
__device__ __forceinline__ float fp8_value(uint8_t code, int8_t exponent) {
  return __fmul_rn(e4m3_to_f32(code), __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23));
}

/// Of words of the highest of 3 bits, those that belong to a pack of the low two: four bits a byte, its bytes in the
/// order of that pack's.
__device__ __forceinline__ uint2 high_bits_of(uint2 words, int which) {
  const auto of = [which](uint32_t word) {
    const uint32_t twice = choose_bytes(word, word, which == 0 ? 0x2200 : 0x3311);
    return (twice & 0x000f000fu) | (twice >> 4 & 0x0f000f00u);
  };
  return {of(words.x), of(words.y)};
}

/// Row r, column c of a matrix of a page, as f16.
struct F16Rows {
  const uint16_t* rows;
  int64_t ld;
  __device__ __forceinline__ uint16_t operator()(int r, int c) const { return rows[r * ld + c]; }
};
struct Fp8Rows {
  const uint8_t* codes;
  const int8_t* exponents;
  int64_t columns;
  __device__ __forceinline__ float value(int r, int c) const { return fp8_value(codes[r * columns + c], exponents[r]); }
  __device__ __forceinline__ uint16_t operator()(int r, int c) const { return f16_nearest(value(r, c)); }
};
/// unpack_rows() of blocks of `width` columns, one behind the other.
struct CodedRows {
  const uint8_t *codes, *side;
  int bits, rows, columns, width;

  __device__ __forceinline__ uint16_t operator()(int r, int c) const {
    const int block = c / width, first = block * width;
    const PackedShape whole = {bits, rows, width}, shape = {bits, rows, min(width, columns - first)};
    const uint8_t* const of_codes = codes + block * whole.code_bytes();
    const uint8_t* const of_side = side + block * whole.side_bytes();
    const auto* const supers = reinterpret_cast<const float*>(of_side);
    const float step = __fmul_rn(supers[0], static_cast<float>(of_side[8 + r]));
    const float least = __fmul_rn(supers[1], static_cast<float>(static_cast<int8_t>(of_side[8 + rows + r])));
    float v = __fmaf_rn(step, static_cast<float>(code(of_codes, shape, r, c - first)), least);
    v = v < -65504.0f ? -65504.0f : v > 65504.0f ? 65504.0f : v;
    return f16_nearest(v);
  }
  static __device__ __forceinline__ uint32_t code(const uint8_t* codes, const PackedShape& shape, int r, int c) {
    const auto of = [&](const uint8_t* from, const PackedShape& part) -> uint32_t {
      const CodePosition at = code_position(part, r, c);
      return (from[at.byte] >> at.shift) & ((1 << part.bits) - 1);
    };
    if (shape.bits != 3) return of(codes, shape);
    return of(codes, low_bits(shape)) | of(codes + low_bits(shape).code_bytes(), high_bit(shape)) << 2;
  }
};

}  // namespace lowbit::cuda::block
