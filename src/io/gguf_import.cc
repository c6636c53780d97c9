// GGUF blocks onto lowbit's grids, value for value. How each type maps is told in gguf_types.h.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/try.h"
#include "format/registry.h"
#include "io/gguf_blocks.h"
#include "io/gguf_types.h"

namespace lowbit {
namespace {

using namespace gguf;  // NOLINT: the block readers of this folder

/// Goes through the blocks of a tensor and writes codes and scales of the QTensor under way.
struct Import {
  QTensor w;
  const uint8_t* raw = nullptr;
  int64_t blocks = 0;  // of the whole tensor
  int block_bytes = 0, block_elems = 0;

  /// Allocates for `format` with `group` columns a scale. k is a multiple of the block, so rows need no padding and the
  /// codes of block i start at its own byte.
  Status start(FormatId format, int64_t group, ScaleKind scale, ZeroKind zero) {
    w.format = format;
    w.scaling = {1, group, scale, zero};
    const int64_t groups = w.n * w.scale_cols();
    LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(w.n * row_bytes(format, w.k), "GGUF tensor codes"));
    LOWBIT_TRY_ASSIGN(w.scales, Buffer::allocate(groups * scale_bytes(scale), "GGUF tensor scales"));
    LOWBIT_TRY_ASSIGN(w.zeros, Buffer::allocate(groups * zero_bytes(w.scaling), "GGUF tensor offsets"));
    if (scale == ScaleKind::kDouble) {
      LOWBIT_TRY_ASSIGN(w.super_scales, Buffer::allocate(2 * blocks, "GGUF tensor super-scales"));
    }
    return {};
  }

  const uint8_t* block(int64_t i) const { return raw + i * block_bytes; }

  /// codes of block i, given as lowbit codes one a byte.
  void put(int64_t i, const uint8_t* codes) {
    const int bits = format_info(w.format).code_bits;
    uint8_t* out = w.codes.as<uint8_t>() + i * block_elems * bits / 8;
    if (bits == 8) {
      std::memcpy(out, codes, static_cast<size_t>(block_elems));
    } else if (bits == 3) {
      format_ops(w.format).pack(codes, block_elems, out);
    } else {
      const int per_byte = 8 / bits;
      for (int j = 0; j < block_elems / per_byte; ++j) {
        unsigned byte = 0;
        for (int e = 0; e < per_byte; ++e) byte |= static_cast<unsigned>(codes[j * per_byte + e]) << (e * bits);
        out[j] = static_cast<uint8_t>(byte);
      }
    }
  }
  void put_f16_scale(int64_t group, const uint8_t* f16) { std::memcpy(w.scales.as<uint8_t>() + 2 * group, f16, 2); }
  void put_f16_zero(int64_t group, const uint8_t* f16) { std::memcpy(w.zeros.as<uint8_t>() + 2 * group, f16, 2); }

  /// One scale and one run of codes a block: `decode(block, codes)`; the f16 scale lies at `scale_at`.
  template <class Decode>
  void simple(int scale_at, Decode decode) {
    uint8_t codes[256];
    for (int64_t i = 0; i < blocks; ++i) {
      decode(block(i), codes);
      put(i, codes);
      put_f16_scale(i, block(i) + scale_at);
    }
  }
  void codebook_of(const int8_t* values, int count) { w.codebook.assign(values, values + count); }
  void codebook_of_indices(int count) {
    for (int i = 0; i < count; ++i) w.codebook.push_back(static_cast<float>(i));
  }
};

/// value - bias as a byte of int8 codes.
void recentre(uint8_t* codes, int count, int bias) {
  for (int j = 0; j < count; ++j) codes[j] = static_cast<uint8_t>(codes[j] - bias);
}

void negate_scales(QTensor* w) {
  for (int64_t i = 1; i < w->scales.size(); i += 2) w->scales.as<uint8_t>()[i] ^= 0x80;
}

Status import_q4_0(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kInt4, 32, ScaleKind::kF16, ZeroKind::kNone));
  t.simple(0, [](const uint8_t* b, uint8_t* codes) {
    nibbles32(b + 2, codes);
    for (int j = 0; j < 32; ++j) codes[j] ^= 8;  // q - 8 in two's complement
  });
  return {};
}

Status import_q4_1(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kUint4, 32, ScaleKind::kF16, ZeroKind::kOffset));
  t.simple(0, [](const uint8_t* b, uint8_t* codes) { nibbles32(b + 4, codes); });
  for (int64_t i = 0; i < t.blocks; ++i) t.put_f16_zero(i, t.block(i) + 2);
  return {};
}

Status import_q5_0(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kInt8, 32, ScaleKind::kF16, ZeroKind::kNone));
  t.simple(0, [](const uint8_t* b, uint8_t* codes) {
    codes_q5(b + 2, b + 6, codes);
    recentre(codes, 32, 16);
  });
  return {};
}

Status import_q5_1(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kInt8, 32, ScaleKind::kF16, ZeroKind::kOffset));
  t.simple(0, [](const uint8_t* b, uint8_t* codes) { codes_q5(b + 4, b + 8, codes); });
  for (int64_t i = 0; i < t.blocks; ++i) t.put_f16_zero(i, t.block(i) + 2);
  return {};
}

Status import_q8_0(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kInt8, 32, ScaleKind::kF16, ZeroKind::kNone));
  t.simple(0, [](const uint8_t* b, uint8_t* codes) { std::memcpy(codes, b + 2, 32); });
  return {};
}

Status import_iq4_nl(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kCodebook4, 32, ScaleKind::kF16, ZeroKind::kNone));
  t.codebook_of(kIq4Values, 16);
  t.simple(0, [](const uint8_t* b, uint8_t* codes) { nibbles32(b + 2, codes); });
  return {};
}

Status import_q1_0(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kBinary, 128, ScaleKind::kF16, ZeroKind::kNone));
  for (int64_t i = 0; i < t.blocks; ++i) {
    std::memcpy(t.w.codes.as<uint8_t>() + 16 * i, t.block(i) + 2, 16);
    t.put_f16_scale(i, t.block(i));
  }
  return {};
}

/// (q - 1) d = (1 - q) (-d), and 1 - q is int2's alphabet: code = value + 2 = 3 - q.
Status import_q2_0(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kInt2, 64, ScaleKind::kF16, ZeroKind::kNone));
  for (int64_t i = 0; i < t.blocks; ++i) {
    const uint8_t* b = t.block(i);
    for (int j = 0; j < 16; ++j) t.w.codes.as<uint8_t>()[16 * i + j] = static_cast<uint8_t>(~b[2 + j]);
    t.put_f16_scale(i, b);
  }
  negate_scales(&t.w);
  return {};
}

Status import_tq1(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kTernary, 256, ScaleKind::kF16, ZeroKind::kNone));
  t.simple(52, codes_tq1);
  return {};
}

Status import_tq2(Import& t) {
  bool ternary = true;
  for (int64_t i = 0; i < t.blocks && ternary; ++i)
    for (int j = 0; j < 64; ++j) {
      const unsigned byte = t.block(i)[j];
      ternary = ternary && (byte & (byte >> 1) & 0x55u) == 0;
    }
  LOWBIT_TRY(t.start(ternary ? FormatId::kTernary : FormatId::kInt2, 256, ScaleKind::kF16, ZeroKind::kNone));
  t.simple(64, [ternary](const uint8_t* b, uint8_t* codes) {
    codes_2bit(b, codes);
    if (!ternary)
      for (int j = 0; j < 256; ++j) codes[j] = static_cast<uint8_t>(3 - codes[j]);
  });
  if (!ternary) negate_scales(&t.w);
  return {};
}

/// scale = 2^(e - 128) with E2M1 doubled, which is 2^-shift for e >= 1. The lowest exponent belongs to all-zero blocks,
/// where any shift is right; should it hold values, E2M1 as it is and 2^(e - 127) do it, unless the highest exponent
/// occurs as well.
Status import_mxfp4(Import& t) {
  bool low = false, high = false;
  for (int64_t i = 0; i < t.blocks; ++i) {
    const uint8_t* b = t.block(i);
    high = high || b[0] == 255;
    if (b[0] != 0) continue;
    for (int j = 1; j < 17; ++j) low = low || (b[j] & 0x77) != 0;
  }
  const bool fits = !(low && high);
  LOWBIT_TRY(t.start(FormatId::kCodebook4, 32, fits ? ScaleKind::kPow2 : ScaleKind::kF32, ZeroKind::kNone));
  t.codebook_of(kMxfp4Values, 16);
  const bool halve = low && fits;
  if (halve)
    for (float& v : t.w.codebook) v *= 0.5f;
  uint8_t codes[32];
  for (int64_t i = 0; i < t.blocks; ++i) {
    const uint8_t* b = t.block(i);
    nibbles32(b + 1, codes);
    t.put(i, codes);
    if (fits) {
      t.w.scales.as<int8_t>()[i] = static_cast<int8_t>(std::min((halve ? 127 : 128) - b[0], 127));
    } else {
      t.w.scales.as<float>()[i] = e8m0_half(b[0]);
    }
  }
  return {};
}

Status import_q6k(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kInt8, 16, ScaleKind::kDouble, ZeroKind::kNone));
  uint8_t codes[256];
  for (int64_t i = 0; i < t.blocks; ++i) {
    const uint8_t* b = t.block(i);
    codes_q6k(b, b + 128, codes);
    recentre(codes, 256, 32);
    t.put(i, codes);
    std::memcpy(t.w.scales.as<uint8_t>() + 16 * i, b + 192, 16);
    std::memcpy(t.w.super_scales.as<uint8_t>() + 2 * i, b + 208, 2);
  }
  return {};
}

Status import_q3k(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kInt3, 16, ScaleKind::kDouble, ZeroKind::kNone));
  uint8_t codes[256];
  for (int64_t i = 0; i < t.blocks; ++i) {
    const uint8_t* b = t.block(i);
    codes_q3k(b, codes, t.w.scales.as<int8_t>() + 16 * i);
    t.put(i, codes);
    std::memcpy(t.w.super_scales.as<uint8_t>() + 2 * i, b + 108, 2);
  }
  return {};
}

Status import_iq4_xs(Import& t) {
  LOWBIT_TRY(t.start(FormatId::kCodebook4, 32, ScaleKind::kF32, ZeroKind::kNone));
  t.codebook_of(kIq4Values, 16);
  uint8_t codes[256];
  int8_t scales[8];
  for (int64_t i = 0; i < t.blocks; ++i) {
    const uint8_t* b = t.block(i);
    scales_iq4xs(b, scales);
    for (int g = 0; g < 8; ++g) {
      nibbles32(b + 8 + 16 * g, codes + 32 * g);
      t.w.scales.as<float>()[8 * i + g] = load_f16(b) * static_cast<float>(scales[g]);
    }
    t.put(i, codes);
  }
  return {};
}

/// d * sc and dmin * m are exact in f32, so (d sc) q - (dmin m) is value * scale + offset with the very same roundings.
Status import_k_with_mins(Import& t, FormatId format, int group,
                          int (*split)(const uint8_t*, uint8_t*, uint8_t*, uint8_t*)) {
  LOWBIT_TRY(t.start(format, group, ScaleKind::kF32, ZeroKind::kOffset));
  if (format_info(format).kind == ValueKind::kTable) t.codebook_of_indices(1 << format_info(format).code_bits);
  const int groups = 256 / group;
  uint8_t codes[256], scales[16], mins[16];
  for (int64_t i = 0; i < t.blocks; ++i) {
    const int d_at = split(t.block(i), codes, scales, mins);
    const float d = load_f16(t.block(i) + d_at), dmin = load_f16(t.block(i) + d_at + 2);
    t.put(i, codes);
    for (int g = 0; g < groups; ++g) {
      t.w.scales.as<float>()[i * groups + g] = d * static_cast<float>(scales[g]);
      t.w.zeros.as<float>()[i * groups + g] = -(dmin * static_cast<float>(mins[g]));
    }
  }
  return {};
}

int split_q2k(const uint8_t* b, uint8_t* codes, uint8_t* scales, uint8_t* mins) {
  codes_2bit(b + 16, codes);
  for (int g = 0; g < 16; ++g) {
    scales[g] = b[g] & 15;
    mins[g] = b[g] >> 4;
  }
  return 80;
}
int split_q4k(const uint8_t* b, uint8_t* codes, uint8_t* scales, uint8_t* mins) {
  codes_q4k(b + 16, codes);
  scales_q4k(b + 4, scales, mins);
  return 0;
}
int split_q5k(const uint8_t* b, uint8_t* codes, uint8_t* scales, uint8_t* mins) {
  codes_q5k(b + 16, b + 48, codes);
  scales_q4k(b + 4, scales, mins);
  return 0;
}

Result<QTensor> import_dense(FormatId format, Import t, const Buffer& source) {
  t.w.format = format;
  t.w.codes = source;
  if (reinterpret_cast<uintptr_t>(source.data()) % static_cast<uint64_t>(t.block_bytes) != 0) {
    LOWBIT_TRY_ASSIGN(t.w.codes, Buffer::allocate(source.size(), "GGUF tensor"));
    std::memcpy(t.w.codes.data(), source.data(), static_cast<size_t>(source.size()));
  }
  return t.w;
}

/// Types that gguf_type_info() calls decodable, floats aside.
Status import_blocks(GgufType type, Import& t) {
  switch (type) {
    case GgufType::kQ4_0:
      return import_q4_0(t);
    case GgufType::kQ4_1:
      return import_q4_1(t);
    case GgufType::kQ5_0:
      return import_q5_0(t);
    case GgufType::kQ5_1:
      return import_q5_1(t);
    case GgufType::kQ8_0:
      return import_q8_0(t);
    case GgufType::kQ2K:
      return import_k_with_mins(t, FormatId::kCodebook2, 16, split_q2k);
    case GgufType::kQ3K:
      return import_q3k(t);
    case GgufType::kQ4K:
      return import_k_with_mins(t, FormatId::kUint4, 32, split_q4k);
    case GgufType::kQ5K:
      return import_k_with_mins(t, FormatId::kInt8, 32, split_q5k);
    case GgufType::kQ6K:
      return import_q6k(t);
    case GgufType::kIq4Nl:
      return import_iq4_nl(t);
    case GgufType::kIq4Xs:
      return import_iq4_xs(t);
    case GgufType::kTq1_0:
      return import_tq1(t);
    case GgufType::kTq2_0:
      return import_tq2(t);
    case GgufType::kMxfp4:
      return import_mxfp4(t);
    case GgufType::kQ1_0:
      return import_q1_0(t);
    case GgufType::kQ2_0:
      return import_q2_0(t);
    default:
      return {};
  }
}

}  // namespace

Result<QTensor> gguf_to_qtensor(GgufType type, int64_t n, int64_t k, const Buffer& raw) {
  const GgufTypeInfo* info = gguf_type_info(static_cast<uint32_t>(type));
  const std::string name = info ? info->name : std::to_string(static_cast<uint32_t>(type));
  if (info == nullptr || !info->decodable)
    return fail(ErrorCode::kUnsupported, "GGUF type " + name, "no decoder", "a type that lowbit reads",
                "convert the file to another type with llama-quantize");
  const auto count = n < 0 || k < 0 ? std::nullopt : checked_mul(static_cast<uint64_t>(n), static_cast<uint64_t>(k));
  const auto bytes =
      count ? checked_mul(*count / static_cast<uint64_t>(info->block_elems), static_cast<uint64_t>(info->block_bytes))
            : std::nullopt;
  if (!bytes || k % info->block_elems != 0 || *bytes != static_cast<uint64_t>(raw.size()))
    return fail(ErrorCode::kShapeMismatch, "GGUF " + name + " tensor",
                std::to_string(raw.size()) + " bytes for " + std::to_string(n) + " x " + std::to_string(k),
                "whole blocks of " + std::to_string(info->block_elems));
  Import t;
  t.w.n = n;
  t.w.k = k;
  t.raw = reinterpret_cast<const uint8_t*>(raw.data());
  t.blocks = static_cast<int64_t>(*count) / info->block_elems;
  t.block_bytes = info->block_bytes;
  t.block_elems = info->block_elems;
  if (type == GgufType::kF32) return import_dense(FormatId::kF32, std::move(t), raw);
  if (type == GgufType::kF16) return import_dense(FormatId::kF16, std::move(t), raw);
  if (type == GgufType::kBf16) return import_dense(FormatId::kBf16, std::move(t), raw);
  LOWBIT_TRY(import_blocks(type, t));
  return std::move(t.w);
}

}  // namespace lowbit
