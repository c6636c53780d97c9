/* The part of lowbit/lowbit.h that needs no model: products of few bits, integers of few bits, FP8 in blocks. */
#ifndef LOWBIT_LOWBIT_OPERATORS_H
#define LOWBIT_LOWBIT_OPERATORS_H

#include <stddef.h>
#include <stdint.h>

#include "lowbit/lowbit_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Quantized matmul ----
 *
 * output[i, j] = scale * sum_p input[i, p] * value(weight[j, p]) + bias[j]
 *
 * input  [m, k]: row i at input + i * input_stride elements
 * weight [n, k]: row j at weight + j * weight_stride bytes, codes packed least significant bits first:
 *                8 bits: two's complement; 4: two's complement; 2: value = code - 2; 1: value = 2 code - 1
 * bias   [n] or NULL
 * output [m, n]: row i at output + i * output_stride elements
 * bits   1, 2, 4 or 8
 *
 * The device version takes device pointers and only enqueues work on `stream` (a cudaStream_t; NULL is the default
 * stream): it allocates nothing, waits for nothing and may be captured into a graph. On compute capability 9 and higher
 * it may start while the kernel before it in the stream finishes and then reads `weight` early: weights must be
 * complete before that kernel starts. The host version takes host pointers and computes on the CPU.
 * Accuracy: products are exact, sums are f32; |error| <= 1e-6 times the sum of the terms' magnitudes.
 * Errors: LB_INVALID_ARGUMENT; LB_UNSUPPORTED without a GPU or without CUDA in this build; LB_OUT_OF_MEMORY (host
 * version).
 */
lb_status lb_quantized_mm(const float* input, const uint8_t* weight, float scale, const float* bias, float* output,
                          uint32_t m, uint32_t n, uint32_t k, uint32_t bits, uint32_t input_stride,
                          uint32_t weight_stride, uint32_t output_stride, void* stream);
lb_status lb_quantized_mm_host(const float* input, const uint8_t* weight, float scale, const float* bias, float* output,
                               uint32_t m, uint32_t n, uint32_t k, uint32_t bits, uint32_t input_stride,
                               uint32_t weight_stride, uint32_t output_stride);

typedef enum lb_type { LB_F32 = 0, LB_F16 = 1, LB_BF16 = 2 } lb_type;

/* The same with more kinds of scale and type. Set all of it to zero first; fields may be added at the end. */
typedef struct lb_quantized_mm_args {
  size_t struct_size; /* sizeof(lb_quantized_mm_args) */
  const void* input;
  const uint8_t* weight;
  void* output;
  const float* bias;
  int64_t m, n, k;
  int64_t input_stride, weight_stride, output_stride;
  uint32_t bits;
  lb_type input_type, output_type;
  float scale;             /* of everything; multiplies the scales below */
  const float* scales;     /* NULL, [n], [n, ceil(k / group)] with group > 0, or [ranges] with row_ends */
  int64_t group;           /* columns that share a scale */
  const int32_t* row_ends; /* [ranges], ascending, the last is n: rows that share a scale, e.g. of q, k and v */
  int64_t ranges;
} lb_quantized_mm_args;

lb_status lb_quantized_mm_args_run(const lb_quantized_mm_args* args, void* stream);
lb_status lb_quantized_mm_args_run_host(const lb_quantized_mm_args* args);

/* ---- Integers of few bits ----
 *
 * docs/operators.md. Set all of a struct to zero first. Strides count elements, those of bits and of 2-bit codes bytes;
 * 0 is for rows that lie side by side. Calls with a stream: device memory and errors as for FP8 below; row_ends is
 * device memory, too, and not looked at. _host: on the CPU, the same bits. Errors: LB_SHAPE_MISMATCH, too. */

/* Rows of activations as int8: s = 127 / max(max |x|, 1e-5), rounded to its type, and code = round half to even(x * s),
 * to -128..127. So x is about code / s: s divides. A row that holds a NaN or an infinity has s = NaN and codes 0. */
typedef struct lb_int8_quant_args {
  size_t struct_size; /* sizeof(lb_int8_quant_args) */
  const void* input;  /* [m, k] */
  int64_t m, k, input_stride;
  int8_t* codes; /* [m, k] */
  int64_t codes_stride;
  void* scales; /* [m] */
  lb_type input_type;
  lb_type scale_type; /* LB_F32 or LB_BF16 */
} lb_int8_quant_args;
lb_status lb_quantize_activations_int8(const lb_int8_quant_args* args, void* stream);
lb_status lb_quantize_activations_int8_host(const lb_int8_quant_args* args);

typedef enum lb_int2_order {
  LB_INT2_ROWS = 0, /* [n, ceil(k / 4)] bytes, the least significant bits first; value = code - 2 */
  LB_INT2_TILES =
      1 /* the same codes as BitNet's GPU kernel reads them, in blocks of 16 x 32; n % 16 == 0, k % 32 == 0 */
} lb_int2_order;

/* output[i, j] = sum_p x[i, p] * value(weight[j, p]) / x_scales[i] * weight_scales[range of j]. The sum is exact, and
 * each operation behind it is rounded to f32, the last to the output's type. */
typedef struct lb_bitlinear_args {
  size_t struct_size; /* sizeof(lb_bitlinear_args) */
  int64_t m, n, k;    /* k at most 2^22 */
  const int8_t* x;    /* [m, k] */
  int64_t x_stride;
  const void* x_scales; /* [m] */
  const uint8_t* weight;
  int64_t weight_stride;     /* of LB_INT2_ROWS */
  const void* weight_scales; /* [ranges] */
  const int32_t* row_ends;   /* [ranges], ascending, the last is n: rows of q, k and v, say. NULL: one range */
  int64_t ranges;
  void* output; /* [m, n] */
  int64_t output_stride;
  lb_type scale_type; /* of x_scales and weight_scales */
  lb_type output_type;
  lb_int2_order weight_order;
  int32_t x_scales_multiply; /* 1: * x_scales[i] in place of / x_scales[i] */
} lb_bitlinear_args;
lb_status lb_bitlinear_int8xint2(const lb_bitlinear_args* args, void* stream);
lb_status lb_bitlinear_int8xint2_host(const lb_bitlinear_args* args);

/* Codes [n, k] in 2 bits from one order to the other: n * k / 4 bytes of tiles, or rows row_stride bytes apart. */
lb_status lb_int2_to_tiles(const uint8_t* rows, int64_t row_stride, int64_t n, int64_t k, uint8_t* tiles);
lb_status lb_int2_from_tiles(const uint8_t* tiles, int64_t n, int64_t k, uint8_t* rows, int64_t row_stride);

/* Rows of activations as bits and one scale: bit 1 where x >= 0 or NaN, the least significant bit of a byte first;
   scale = mean |x|. */
typedef struct lb_binarize_args {
  size_t struct_size; /* sizeof(lb_binarize_args) */
  const void* input;  /* [m, k] */
  int64_t m, k, input_stride;
  uint8_t* bits; /* [m, ceil(k / 8)] */
  int64_t bits_stride;
  float* scales; /* [m] */
  lb_type input_type;
} lb_binarize_args;
lb_status lb_binarize_activations(const lb_binarize_args* args, void* stream);
lb_status lb_binarize_activations_host(const lb_binarize_args* args);

/* output[i, j] = fma(sum_p x[i, p] * weight[j, p] * weight_scales[j], x_scales[i], bias[j]), where a bit 1 is +1 and a
   bit 0 is -1. The sum is exact. */
typedef struct lb_binary_matmul_args {
  size_t struct_size; /* sizeof(lb_binary_matmul_args) */
  int64_t m, n, k;
  const uint8_t* x; /* [m, ceil(k / 8)]; bits behind a row's end do not count */
  int64_t x_stride;
  const uint8_t* weight; /* [n, ceil(k / 8)] */
  int64_t weight_stride;
  const float* x_scales;      /* [m] or NULL: 1 */
  const float* weight_scales; /* [n] or NULL: 1 */
  const float* bias;          /* [n] or NULL */
  void* output;               /* [m, n] */
  int64_t output_stride;
  lb_type output_type;
} lb_binary_matmul_args;
lb_status lb_binary_matmul(const lb_binary_matmul_args* args, void* stream);
lb_status lb_binary_matmul_host(const lb_binary_matmul_args* args);

/* ---- FP8 in blocks ----
 *
 * E4M3 codes (torch's float8_e4m3fn) with a float32 scale per block of rows x columns: scale = max |x| / 448, code =
 * e4m3(x / scale), real = value * scale. Activations have blocks of 1 x 128, weights of 128 x 128; the last ones may be
 * short. A block whose largest magnitude is below 2^-120 has scale 0, one with an infinity the scale +inf, one with a
 * NaN the scale NaN, all with codes 0. docs/fp8.md shows the whole way, docs/numerics.md#fp8-in-blocks says what is
 * computed.
 *
 * Set all of a struct to zero first. Strides count elements, codes' count bytes; 0 is for rows that lie side by side.
 */

typedef enum lb_scale_order {
  LB_SCALES_BY_ROW = 0, /* [ceil(rows / block_rows), ceil(columns / block_columns)] */
  LB_SCALES_BY_COLUMN =
      1 /* the same transposed; scale_stride 0: rows rounded up to 4 for the GPU's copy engine; those are 0 */
} lb_scale_order;

typedef struct lb_fp8_quant_args {
  size_t struct_size; /* sizeof(lb_fp8_quant_args) */
  const void* input;  /* [rows, columns] */
  int64_t rows, columns, input_stride;
  int64_t block_rows, block_columns; /* 0: 1 x 128 for lb_act_quant_fp8, 128 x 128 for lb_weight_quant_fp8 */
  uint8_t* codes;                    /* [rows, columns] */
  float* scales;
  int64_t codes_stride, scale_stride;
  lb_type input_type;
  lb_scale_order scale_order;
  int32_t power_of_two; /* 1: scales are rounded up to powers of two (UE8M0), kept as floats */
  /* lb_act_quant_fp8 alone, at most one of the two, in f32 before the quantization: */
  float norm_eps;
  const float* norm_weight; /* [columns]: RMS norm, x / sqrt(mean(x^2) + norm_eps) * norm_weight */
  const void* up;           /* [rows, columns] as input: silu(input) * up */
  int64_t up_stride;
} lb_fp8_quant_args;

/* All calls here come in two versions. With a stream (a cudaStream_t; NULL is the default one) pointers are device
 * memory, and work is only enqueued: nothing is allocated, nothing waited for, and it may be captured into a graph.
 * _host: host pointers, on the CPU. Codes and scales have the same bits everywhere; products on tensor cores (compute
 * capability 9.0) are within 1e-3 of the others' norm. Errors: LB_INVALID_ARGUMENT; LB_UNSUPPORTED without a GPU or
 * without CUDA in this build; LB_OUT_OF_MEMORY (host version). */
lb_status lb_act_quant_fp8(const lb_fp8_quant_args* args, void* stream);
lb_status lb_weight_quant_fp8(const lb_fp8_quant_args* args, void* stream);
lb_status lb_act_quant_fp8_host(const lb_fp8_quant_args* args);
lb_status lb_weight_quant_fp8_host(const lb_fp8_quant_args* args);

typedef struct lb_fp8_dequant_args {
  size_t struct_size;   /* sizeof(lb_fp8_dequant_args) */
  const uint8_t* codes; /* [rows, columns] */
  const float* scales;  /* by row */
  int64_t rows, columns, codes_stride, scale_stride;
  int64_t block_rows, block_columns; /* 0: 128 x 128 */
  void* output;                      /* [rows, columns] */
  int64_t output_stride;
  lb_type output_type;
} lb_fp8_dequant_args;

lb_status lb_weight_dequant_fp8(const lb_fp8_dequant_args* args, void* stream);
lb_status lb_weight_dequant_fp8_host(const lb_fp8_dequant_args* args);

/* output[i, j] = sum_p (value(a[i, p]) * a_scale) * (value(b[j, p]) * b_scale): f32 sums over 128 columns, then times
 * the scales. A NaN in a row of a stays in its row of the output. */
typedef struct lb_fp8_gemm_args {
  size_t struct_size; /* sizeof(lb_fp8_gemm_args) */
  int64_t m, n, k;
  const uint8_t* a; /* [m, k] */
  const uint8_t* b; /* [n, k] */
  int64_t a_stride, b_stride;
  const float* a_scales; /* of blocks of 1 x 128 */
  const float* b_scales; /* of blocks of b_block_rows x 128, by row */
  int64_t a_scale_stride, b_scale_stride;
  int64_t b_block_rows; /* 0: 128 */
  void* output;         /* [m, n] */
  int64_t output_stride;
  lb_type output_type;
  lb_scale_order a_scale_order;
} lb_fp8_gemm_args;

lb_status lb_fp8_gemm(const lb_fp8_gemm_args* args, void* stream);
lb_status lb_fp8_gemm_host(const lb_fp8_gemm_args* args);

/* The same for groups of rows that multiply a b of their own: experts of a mixture. Either group_ends: group i has the
 * rows of a from group_ends[i - 1], or 0, to group_ends[i]. Or group_rows: the first group_rows[i] of its
 * rows_of_group. Rows of output of no group stay as they are. With a stream these numbers are device memory and not
 * looked at: rows outside of a are left out. b_block_rows is then a multiple of 64. */
typedef struct lb_fp8_grouped_gemm_args {
  size_t struct_size;                                         /* sizeof(lb_fp8_grouped_gemm_args) */
  int64_t m, n, k, groups;                                    /* m: of all groups */
  const uint8_t *a, *b;                                       /* [m, k], [groups, n, k] */
  const float *a_scales, *b_scales;                           /* b: [groups, ceil(n / b_block_rows), ceil(k / 128)] */
  int64_t a_stride, b_stride, a_scale_stride, b_scale_stride; /* as in lb_fp8_gemm_args, and so on */
  int64_t b_block_rows, output_stride, rows_of_group;
  const int32_t *group_ends, *group_rows; /* [groups], one of the two */
  void* output;                           /* [m, n] */
  lb_type output_type;
  lb_scale_order a_scale_order;
} lb_fp8_grouped_gemm_args;
lb_status lb_fp8_grouped_gemm(const lb_fp8_grouped_gemm_args* args, void* stream);
lb_status lb_fp8_grouped_gemm_host(const lb_fp8_grouped_gemm_args* args);

#ifdef __cplusplus
}
#endif

#endif /* LOWBIT_LOWBIT_OPERATORS_H */
