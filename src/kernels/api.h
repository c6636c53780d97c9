#pragma once
// The contract between ops/ (checks, plans) and the kernels of each instruction set. Plain structs
// and function pointers: no code lives here, so this header may be included by every ISA's
// translation units.
//
// Kernel names follow one grammar:  <op>_<weight format>_<activation>_<scaling>__<isa>_<tile>
// e.g. matmul_int2_a8_g64__avx2_8x4.

#include <cstdint>

#include "lowbit/format.h"

namespace lowbit {

enum class Activation : uint8_t {
  kF32,   // "af32": exact path
  kInt8,  // "a8": one scale per token, values -127..127
  kFp8,   // "afp8": E4M3 with one scale per row and group of columns
};

/// In messages.
constexpr const char* activation_name(Activation a) {
  return a == Activation::kInt8 ? "int8" : a == Activation::kFp8 ? "fp8" : "f32";
}
/// In kernels' names.
constexpr const char* activation_tag(Activation a) {
  return a == Activation::kInt8 ? "a8" : a == Activation::kFp8 ? "afp8" : "af32";
}

/// Groups of a row that share a factor of their scales where these are double-quantized (kSuperGroup of
/// format/qtensor.h).
inline constexpr int64_t kSuperGroups = 16;

/// The shape of a panel: its bytes depend on this and on the kernel.
struct PanelShape {
  int64_t k = 0;              // columns
  int64_t group = 0;          // columns per scale, k for one scale per row; the last group may be short
  int64_t groups = 1;         // ceil(k / group)
  bool offsets = false;       // one f32 or f16 offset beside each scale
  bool half_scales = false;   // scales are stored as f16, which is exact for every scale of this weight
  bool half_offsets = false;  // likewise
  bool double_scales =
      false;  // scales are stored as int8, times an f16 for each kSuperGroups of them; no half_scales then
  /// int8 and fp8 activations: columns whose products are summed before scales come in. `group`, or with scales of x
  /// per group of columns (MatmulArgs::x_group_scale) the columns that share one; `group` is a multiple of it, or the
  /// row.
  int64_t x_group = 0;
  int64_t x_groups = 1;  // ceil(k / x_group)
  /// Columns of a stored row that belong together, where panels and codes of x are wider: run j lies at column j *
  /// x_group, and zeros of x behind it. 0: rows are stored as above. Set when `x_group` had to be rounded up to a
  /// kernel's group_multiple.
  int64_t run = 0;
};

/// Arguments of a matmul kernel. All pointers are to host memory of the ISA's own layout (see MatmulKernel).
///
/// Numerics (normative; kernels/ref/matmul.cc is the definition, every kernel gives the same bits, NaN payloads aside):
///   a8, integer values:  acc = 0; for each group g ascending: acc = fma(float(sum_k value * xq), scale[g], acc), then,
///                  when there are offsets, acc = fma(x_sums[g], offset[g], acc);  y = fma(acc, x_scale, bias or +0).
///                  The sums are exact: ops/ admits groups of x up to kMaxIntegerGroup only, so int32 holds them.
///   With x_group_scale, the sum of a group is put together from its groups of x j ascending: t = 0;
///                  t = fma(float(sum_k value * xq over j), x_group_scale[j], t); acc = fma(t, scale[g], acc), offsets
///                    as
///                  above; y = acc + (bias or +0).
///   a8, float values (fp8, codebooks, dense): as above, but the sum over a group of x is s = 0; for k ascending:
///                  s = fma(value, float(xq), s). Kernels with `int8_table` sum integers where none of these is
///                  rounded.
///   f32:           acc = 0; for each group g ascending: s = 0; for k ascending: s = fma(value, x, s); acc = fma(s,
///                  scale[g], acc); with offsets acc = fma(x_sums[g], offset[g], acc); y = acc + (bias or +0).
///   fp8:           x holds the values of x's codes; the sum over a group of x is s = 0; for k ascending:
///                  s = fma(value, x, s), and x_group_scale goes in as above. With groups of 128 columns
///                  these are the bits of Fp8GemmArgs.
///   x_sums[m, g] is what an offset is multiplied by: f32 activations: T = 0; T = T + x, k ascending. int8: float(sum_k
///     xq);
///   with x_group_scale T = 0; T = fma(float(sum_k xq over j), x_group_scale[j], T) over the groups of x j ascending.
///   Dense weights have the scale 1. xq is -127..127.
struct MatmulArgs {
  // Weights, in the order the kernel's relayout() wrote them.
  const uint8_t* w =
      nullptr;  // panels of `panel_rows` rows, panel_bytes(shape) apart; the last padded with zero scales
  const float* table = nullptr;  // kTable formats: the codebook, 16 entries (zeros behind the format's own)
  const int8_t* table_int8 =
      nullptr;  // kernels with `int8_table`: the codebook as int8, 16 entries (its own again behind the format's)
  PanelShape shape;
  int64_t n = 0;
  const float* bias = nullptr;  // [n] or null
  // Activations: row m at x + m * ldx or xq + m * ldxq.
  // kF32, kFp8; kernels with `pairs`: row m is ceil(k / 2) words of 32 bits, column 2 i in the upper half of word i.
  const float* x = nullptr;
  // kInt8, each row zero-padded to ldxq, a multiple of 64; with shape.run spread as it says. Memory goes on up to a
  // multiple of kActivationRowMultiple rows, whatever it holds there.
  const int8_t* xq = nullptr;
  const float* x_scale = nullptr;  // kInt8 [m]; null with x_group_scale
  const float* x_group_scale =
      nullptr;  // kFp8 [m, x_groups]; kInt8 the same or null: one scale per row and group instead of per row
  const float* x_sums = nullptr;       // [m, groups], see above; null when there are no offsets
  const int32_t* code_sums = nullptr;  // kInt8 [m, x_groups]: kernel.code_offset * sum xq; null when that is 0
  int64_t m = 0, ldx = 0, ldxq = 0;
  // Output columns [n0, n1) of every row m: y[m * ldy + n].
  float* y = nullptr;
  int64_t ldy = 0;
  int64_t n0 = 0, n1 = 0;      // n0 is a multiple of panel_rows, n1 too or n
  uint8_t* scratch = nullptr;  // scratch_bytes of this worker, 64-byte aligned
};

/// Rows of x that tiles read at once: those behind the last are read and not used.
inline constexpr int64_t kActivationRowMultiple = 32;

/// 128 * 127 * 131072 < 2^31, and 127 * 131072 < 2^24: sums of a group are exact in int32, those of xq also in f32.
inline constexpr int64_t kMaxIntegerGroup = 131072;

/// Canonical weights as relayout() sees them: rows of packed codes, and scales already expanded to f32 per (row,
/// group).
struct CanonicalRows {
  const uint8_t* codes = nullptr;  // row r at codes + r * row_stride_bytes
  int64_t row_stride_bytes = 0;
  const float* scales = nullptr;   // [rows, groups]; null for dense formats
  const float* offsets = nullptr;  // [rows, groups] or null
  int64_t rows = 0, columns = 0;
  // PanelShape::double_scales: scales as they are stored, [rows, groups] and [rows, ceil(groups / kSuperGroups)].
  const int8_t* scale_codes = nullptr;
  const uint16_t* super_scales = nullptr;
  FormatId format = FormatId::kF32;  // of the codes: the kernel's, or one that is expanded to it
};

struct MatmulKernel {
  const char* name;  // the grammar above without the scaling, e.g. "matmul_int2_a8__avx2_16x6"
  const char* doc;   // page under docs/ that explains it
  FormatId format;
  Activation activation;
  int code_offset;  // what MatmulArgs::code_sums are multiplied by; 0: not read
  int panel_rows;
  int64_t group_multiple;  // group and x_group (unless they are the whole row) must be multiples of this
  /// Bytes of the device layout of a panel of `panel_rows` rows, scales included; a multiple of 64.
  int64_t (*panel_bytes)(const PanelShape& shape);
  /// Writes one zeroed panel (rows.rows <= panel_rows; missing rows keep zero scales). `scratch`: scratch_bytes(0,
  /// shape).
  void (*relayout)(const CanonicalRows& rows, const PanelShape& shape, uint8_t* panel, uint8_t* scratch);
  int64_t (*scratch_bytes)(int64_t m, const PanelShape& shape);  // of one worker
  void (*run)(const MatmulArgs& args);
  /// kTable formats: reads MatmulArgs::table_int8, so only where sums of floats are sums of integers (why_float_sums(),
  /// ops/matmul.h).
  bool int8_table = false;
  /// kFp8: MatmulArgs::x holds pairs of columns as bf16, and the CPU needs AVX-512 BF16 (has_bf16_pairs(), base/cpu.h).
  bool pairs = false;
};

/// The longest block of VectorOps::hadamard in a model: so that every device has one in its nearest memory.
inline constexpr int64_t kLargestHadamard = 4096;

/// Positions of a page of the KV cache, and pages of a span: attention takes spans one after the other
/// (docs/numerics.md).
inline constexpr int64_t kKvPage = 64, kSpanPages = 4, kAttentionSpan = kKvPage * kSpanPages;

/// Queries of heads that share one kv head, against one span of positions of one sequence. t counts from the span's
/// first position, which is a multiple of kAttentionSpan. Query j sees t in [begin[j], end[j]); no other position takes
/// part in anything.
///
/// Numerics (normative; kernels/ref/vector_ops.cc is the definition, every kernel gives the same bits, the sign of m =
/// 0 aside):
///   c = 0; c = fma(q[i], k[t][i], c), i ascending;  s[t] = scale * c;  m = max s, NaN passed over (-inf when all are
///     NaN)
///   e[t] = exp(s[t] - (m == -inf ? 0 : m));  l = sum e in 16 partial sums, t to sum t % 16, reduced as VectorOps'
///     others
///   o[i] = 0;  o[i] = fma(e[t], v[t][i], o[i]), t ascending
struct SpanArgs {
  const uint16_t* keys[kSpanPages] = {};    // f16 [d, kKvPage] each; null: packed, and this is a PackedSpanArgs
  const uint16_t* values[kSpanPages] = {};  // f16 [kKvPage, d] each; read from the first to the last page that is seen
  const uint16_t* next = nullptr;           // keys of the span behind it, fetched ahead; a hint, null for none
  int64_t d = 0;                            // of a head
  float scale = 0;
  int64_t queries = 0;
  const float* q = nullptr;  // [queries, d], query j at q + j * ldq
  int64_t ldq = 0;
  const int32_t *begin = nullptr, *end = nullptr;  // [queries]; of a query that sees nothing no result is written
  float *m = nullptr, *l = nullptr;                // [queries]
  float* o = nullptr;                              // [queries, d], query j at o + j * ldo
  int64_t ldo = 0;                                 // a multiple of 16; what lies behind d may be overwritten
  float* scratch = nullptr;                        // queries * kAttentionSpan + kKvPage * ldo floats, 64-byte aligned
};

/// y[i] = act(gate[i]) * up[i]; y may be gate.
using GluFunction = void (*)(const float* gate, const float* up, int64_t n, float* y);

/// Tokens whose weights one call sums: the upper 20 bits of so many add up to less than 2^31.
inline constexpr int64_t kMostTokenWeights = 1024;

/// Vector operations of transformer layers. Reductions use 16 partial sums (element i goes to sum i
/// % 16) with fma, reduced as 16 -> 8 -> 4 -> 2 -> 1 (s[i] + s[i + width]), norms 128 (docs/numerics.md); exp is the
/// polynomial of kernels/vector_math.h. So every ISA gives the same bits.
struct VectorOps {
  /// y[i] = x[i] * (1 / sqrt(mean(x^2) + eps)) * weight[i]. x and y may be the same.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* y);
  /// 1 / sqrt(mean(x^2) + eps), the factor of rms_norm.
  float (*rms_factor)(const float* x, int64_t n, float eps);
  /// Rotates pairs (x[i], x[i + half]) by cos[i], sin[i], i < half: the half-split order of Hugging
  /// Face files.
  void (*rope)(float* x, const float* cos, const float* sin, int64_t half);
  GluFunction silu_mul;
  /// act(x) = r * r, r = x < 0 ? 0 : x, so that a NaN stays one. Nothing overflows f32 that a model's f32 weights give;
  /// f16 would.
  GluFunction squared_relu_mul;
  void (*add)(const float* x, int64_t n, float* y);  // y += x
  float (*dot_f32)(const float* a, const float* b, int64_t n);
  void (*scale)(float* x, float a, int64_t n);
  /// The Hadamard transform of each `block` elements of x [n], in place: for width = 1, 2, .. block / 2 pairs (a, b)
  /// that lie `width` apart become (a + b, a - b); then all are multiplied by f32(1 / sqrt(block)). block: a power of
  /// two that divides n.
  void (*hadamard)(float* x, int64_t n, int64_t block);
  /// Attention of some queries to one span of positions.
  void (*attend_span)(const SpanArgs& args);
  /// Merges the next span into a query's result so far, (m, l, o [d]). running[0] = M, running[1] = L, y [d] =
  /// O: M' = max(M, m); a = exp(M - M'); b = exp(m - M'); L = fma(l, b, L * a); O = fma(o, b, O * a); M = M'. Where M'
  /// is -inf, 0 stands in its place in both exponents.
  void (*merge_span)(float m, float l, const float* o, int64_t d, float* running, float* y);
  void (*f32_to_f16)(const float* x, int64_t n, uint16_t* y);
  /// The sum of token_weight(logits[i], largest, temperature) (kernels/token_weight.h). n <= kMostTokenWeights; no
  /// logit is NaN or above `largest`, which is finite.
  uint64_t (*sum_token_weights)(const float* logits, int64_t n, float largest, float temperature);
  /// A row of the integer path, k >= 1 elements in groups of `group` (the last may be short), each on its own. Elements
  /// are v[i] = x[i], or with a weight v[i] = (x[i] * factor) * weight[i]: rms_norm and quantization in one pass. Per
  /// group: scale = absmax / 127 (0 when all are zero), xq = round-half-even(v * (127 / absmax)), NaN -> the whole
  /// group's scale is NaN; sum = sum xq. Writes zeros from k up to `padded`. Source: seed 002 section 4.5.1.
  /// exact_scales: the scale is that, rounded up to six significant bits, and xq = round-half-even(v * (1 / scale)).
  void (*quantize_groups_int8)(const float* x, const float* weight, float factor, int64_t k, int64_t group,
                               int64_t padded, bool exact_scales, int8_t* xq, float* scales, int32_t* sums);
};

/// The kernels of one instruction set; found through kernels/registry.h.
struct KernelTable {
  const char* isa;  // "ref", "avx2", "avxvnni", "avx512", "amx"
  const MatmulKernel* matmul;
  int matmul_count;
  const VectorOps* vector;  // null: use the next weaker table's
};

}  // namespace lowbit
