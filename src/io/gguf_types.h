#pragma once
// GGUF's tensor types: sizes of their blocks and what the blocks mean.

#include <cstddef>
#include <cstdint>
#include <span>

#include "format/qtensor.h"
#include "lowbit/error.h"
#include "tensor/buffer.h"

namespace lowbit {

/// Numbers as in ggml.h's enum ggml_type. Types that lowbit knows by size but cannot decode are in gguf_type_info only.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23,
  kBf16 = 30,
  kTq1_0 = 34,
  kTq2_0 = 35,
  kI2S = 36,
  kMxfp4 = 39,
  kQ1_0 = 41,
  kQ2_0 = 42,
};

struct GgufTypeInfo {
  GgufType id;
  const char* name;  // "Q4_K"
  int block_elems;
  int block_bytes;
  bool decodable;
};

/// Null for a number that no GGUF version has given a meaning. I2_S (gguf_i2s.h) has a tail behind its blocks.
const GgufTypeInfo* gguf_type_info(uint32_t id);
std::span<const GgufTypeInfo> gguf_types();

/// out[0..count) = the values of `count / block_elems` blocks, in f32 and with the operations of gguf-py's dequantize
/// in their order, so that the results are equal bit for bit. `count` must be a multiple of the block. Errors:
/// kUnsupported (the type is named).
Status gguf_dequantize(GgufType type, const uint8_t* blocks, int64_t count, float* out);

/// A GGUF tensor on lowbit's own grids: dequantize_rows of the result equals gguf_dequantize for every element (+0
/// and -0 may differ for Q2_0). F32, F16 and BF16 borrow `raw` (copied when unaligned), the others are repacked. `raw`
/// is [n, k] in blocks along k.
///   Q4_0: int4 g32 · Q8_0, Q5_0: int8 g32 · IQ4_NL: codebook4 g32 · Q1_0: binary g128 · Q2_0: int2 g64, scale negated
///     · all with f16 scales
///   Q4_1: codebook4 0..15 · Q5_1: int8: g32, f16 scale and f16 offset (int4's -8..7 would need offset m + 8 d, which
///     f16 cannot hold)
///   TQ1_0, TQ2_0: ternary g256 f16 (int2 with negated scale if a TQ2_0 block holds the unused code 3)
///   MXFP4: codebook4 g32, power-of-two scale (f32 where the exponents do not fit)
///   Q6_K: int8 g16 · Q3_K: int3 g16: double-quantized scales, as in the file · IQ4_XS: codebook4 g32 f32 scale
///   Q2_K: codebook2 g16 · Q4_K: codebook4 g32 · Q5_K: int8 g32: f32 scale and f32 offset
/// Errors: kUnsupported (type), kShapeMismatch (bytes), kOutOfMemory.
Result<QTensor> gguf_to_qtensor(GgufType type, int64_t n, int64_t k, const Buffer& raw);

}  // namespace lowbit
