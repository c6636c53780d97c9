#include "io/gguf_types.h"

#include <array>
#include <string>

#include "io/gguf_blocks.h"

namespace lowbit {
namespace {

using namespace gguf;  // NOLINT: the block readers of this folder

constexpr GgufTypeInfo row(uint32_t id, const char* name, int elems, int bytes, bool decodable) {
  return {static_cast<GgufType>(id), name, elems, bytes, decodable};
}
constexpr std::array kTypes = {
    row(0, "F32", 1, 4, true),         row(1, "F16", 1, 2, true),          row(2, "Q4_0", 32, 18, true),
    row(3, "Q4_1", 32, 20, true),      row(6, "Q5_0", 32, 22, true),       row(7, "Q5_1", 32, 24, true),
    row(8, "Q8_0", 32, 34, true),      row(9, "Q8_1", 32, 36, false),      row(10, "Q2_K", 256, 84, true),
    row(11, "Q3_K", 256, 110, true),   row(12, "Q4_K", 256, 144, true),    row(13, "Q5_K", 256, 176, true),
    row(14, "Q6_K", 256, 210, true),   row(15, "Q8_K", 256, 292, false),   row(16, "IQ2_XXS", 256, 66, false),
    row(17, "IQ2_XS", 256, 74, false), row(18, "IQ3_XXS", 256, 98, false), row(19, "IQ1_S", 256, 50, false),
    row(20, "IQ4_NL", 32, 18, true),   row(21, "IQ3_S", 256, 110, false),  row(22, "IQ2_S", 256, 82, false),
    row(23, "IQ4_XS", 256, 136, true), row(24, "I8", 1, 1, false),         row(25, "I16", 1, 2, false),
    row(26, "I32", 1, 4, false),       row(27, "I64", 1, 8, false),        row(28, "F64", 1, 8, false),
    row(29, "IQ1_M", 256, 56, false),  row(30, "BF16", 1, 2, true),        row(34, "TQ1_0", 256, 54, true),
    row(35, "TQ2_0", 256, 66, true),   row(36, "I2_S", 4, 1, false),       row(39, "MXFP4", 32, 17, true),
    row(40, "NVFP4", 64, 36, false),   row(41, "Q1_0", 128, 18, true),     row(42, "Q2_0", 64, 18, true),
};

void dequantize_q4_0(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  uint8_t q[32];
  nibbles32(b + 2, q);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(q[j] - 8);
}

void dequantize_q4_1(const uint8_t* b, float* out) {
  const float d = load_f16(b), m = load_f16(b + 2);
  uint8_t q[32];
  nibbles32(b + 4, q);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(q[j]) + m;
}

void dequantize_q5_0(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  uint8_t q[32];
  codes_q5(b + 2, b + 6, q);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(q[j] - 16);
}

void dequantize_q5_1(const uint8_t* b, float* out) {
  const float d = load_f16(b), m = load_f16(b + 2);
  uint8_t q[32];
  codes_q5(b + 4, b + 8, q);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(q[j]) + m;
}

void dequantize_q8_0(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<int8_t>(b[2 + j])) * d;
}

void dequantize_q2k(const uint8_t* b, float* out) {
  const float d = load_f16(b + 80), dmin = load_f16(b + 82);
  uint8_t q[256];
  codes_2bit(b + 16, q);
  for (int j = 0; j < 256; ++j) {
    const uint8_t s = b[j / 16];
    const float dl = d * static_cast<float>(s & 15), ml = dmin * static_cast<float>(s >> 4);
    out[j] = dl * static_cast<float>(q[j]) - ml;
  }
}

void dequantize_q3k(const uint8_t* b, float* out) {
  const float d = load_f16(b + 108);
  uint8_t q[256];
  int8_t scales[16];
  codes_q3k(b, q, scales);
  for (int j = 0; j < 256; ++j) out[j] = (d * static_cast<float>(scales[j / 16])) * static_cast<float>(q[j] - 4);
}

void dequantize_k45(const uint8_t* b, const uint8_t* q, float* out) {
  const float d = load_f16(b), dmin = load_f16(b + 2);
  uint8_t scales[8], mins[8];
  scales_q4k(b + 4, scales, mins);
  for (int j = 0; j < 256; ++j) {
    const float dl = d * static_cast<float>(scales[j / 32]), ml = dmin * static_cast<float>(mins[j / 32]);
    out[j] = dl * static_cast<float>(q[j]) - ml;
  }
}

void dequantize_q4k(const uint8_t* b, float* out) {
  uint8_t q[256];
  codes_q4k(b + 16, q);
  dequantize_k45(b, q, out);
}

void dequantize_q5k(const uint8_t* b, float* out) {
  uint8_t q[256];
  codes_q5k(b + 16, b + 48, q);
  dequantize_k45(b, q, out);
}

void dequantize_q6k(const uint8_t* b, float* out) {
  const float d = load_f16(b + 208);
  uint8_t q[256];
  codes_q6k(b, b + 128, q);
  for (int j = 0; j < 256; ++j)
    out[j] = (d * static_cast<float>(static_cast<int8_t>(b[192 + j / 16]))) * static_cast<float>(q[j] - 32);
}

void dequantize_iq4_nl(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  uint8_t q[32];
  nibbles32(b + 2, q);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(kIq4Values[q[j]]);
}

void dequantize_iq4_xs(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  int8_t scales[8];
  scales_iq4xs(b, scales);
  for (int g = 0; g < 8; ++g) {
    const float dl = d * static_cast<float>(scales[g]);
    uint8_t q[32];
    nibbles32(b + 8 + 16 * g, q);
    for (int j = 0; j < 32; ++j) out[32 * g + j] = dl * static_cast<float>(kIq4Values[q[j]]);
  }
}

void dequantize_tq1(const uint8_t* b, float* out) {
  const float d = load_f16(b + 52);
  uint8_t q[256];
  codes_tq1(b, q);
  for (int j = 0; j < 256; ++j) out[j] = d * static_cast<float>(q[j] - 1);
}

void dequantize_tq2(const uint8_t* b, float* out) {
  const float d = load_f16(b + 64);
  uint8_t q[256];
  codes_2bit(b, q);
  for (int j = 0; j < 256; ++j) out[j] = d * static_cast<float>(q[j] - 1);
}

void dequantize_mxfp4(const uint8_t* b, float* out) {
  const float d = e8m0_half(b[0]);
  uint8_t q[32];
  nibbles32(b + 1, q);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(kMxfp4Values[q[j]]);
}

void dequantize_q1_0(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  for (int j = 0; j < 128; ++j) out[j] = (b[2 + j / 8] >> (j % 8)) & 1 ? d : -d;
}

void dequantize_q2_0(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  for (int j = 0; j < 64; ++j) out[j] = static_cast<float>(((b[2 + j / 4] >> (2 * (j % 4))) & 3) - 1) * d;
}

using BlockFn = void (*)(const uint8_t*, float*);
BlockFn block_function(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return [](const uint8_t* b, float* out) { std::memcpy(out, b, 4); };
    case GgufType::kF16:
      return [](const uint8_t* b, float* out) { *out = load_f16(b); };
    case GgufType::kBf16:
      return [](const uint8_t* b, float* out) { *out = bf16_to_f32(load_u16(b)); };
    case GgufType::kQ4_0:
      return dequantize_q4_0;
    case GgufType::kQ4_1:
      return dequantize_q4_1;
    case GgufType::kQ5_0:
      return dequantize_q5_0;
    case GgufType::kQ5_1:
      return dequantize_q5_1;
    case GgufType::kQ8_0:
      return dequantize_q8_0;
    case GgufType::kQ2K:
      return dequantize_q2k;
    case GgufType::kQ3K:
      return dequantize_q3k;
    case GgufType::kQ4K:
      return dequantize_q4k;
    case GgufType::kQ5K:
      return dequantize_q5k;
    case GgufType::kQ6K:
      return dequantize_q6k;
    case GgufType::kIq4Nl:
      return dequantize_iq4_nl;
    case GgufType::kIq4Xs:
      return dequantize_iq4_xs;
    case GgufType::kTq1_0:
      return dequantize_tq1;
    case GgufType::kTq2_0:
      return dequantize_tq2;
    case GgufType::kMxfp4:
      return dequantize_mxfp4;
    case GgufType::kQ1_0:
      return dequantize_q1_0;
    case GgufType::kQ2_0:
      return dequantize_q2_0;
    case GgufType::kI2S:
      break;  // its scale is not in the blocks
  }
  return nullptr;
}

}  // namespace

std::span<const GgufTypeInfo> gguf_types() { return kTypes; }

const GgufTypeInfo* gguf_type_info(uint32_t id) {
  for (const auto& info : kTypes)
    if (static_cast<uint32_t>(info.id) == id) return &info;
  return nullptr;
}

Status gguf_dequantize(GgufType type, const uint8_t* blocks, int64_t count, float* out) {
  const GgufTypeInfo* info = gguf_type_info(static_cast<uint32_t>(type));
  const BlockFn decode = block_function(type);
  if (info == nullptr || decode == nullptr)
    return fail(ErrorCode::kUnsupported,
                "GGUF type " + (info ? std::string(info->name) : std::to_string(static_cast<uint32_t>(type))),
                "no decoder",
                "F32, F16, BF16, Q4_0 .. Q8_0, Q2_K .. Q6_K, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, Q1_0, Q2_0 or MXFP4");
  for (int64_t i = 0; i < count / info->block_elems; ++i)
    decode(blocks + i * info->block_bytes, out + i * info->block_elems);
  return {};
}

}  // namespace lowbit
