/* FP8 in blocks as a C program sees it: the seed's pipeline, and what is refused. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "capi_check.h"

enum { kM = 5, kN = 200, kK = 300, kBlocks = 3 }; /* of 128 columns; rows of weights are in 2 blocks */

static float x[kM * kK], w[kN * kK], back[kN * kK], y[kM * kN], scales_of_x[kBlocks * 8], scales_of_w[2 * kBlocks];
static uint8_t codes_of_x[kM * kK], codes_of_w[kN * kK];

static lb_fp8_quant_args quant_args(const float* input, int64_t rows, uint8_t* codes, float* scales) {
  lb_fp8_quant_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.input = input;
  args.rows = rows;
  args.columns = kK;
  args.codes = codes;
  args.scales = scales;
  return args;
}

static lb_fp8_gemm_args gemm_args(void) {
  lb_fp8_gemm_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.m = kM;
  args.n = kN;
  args.k = kK;
  args.a = codes_of_x;
  args.a_scales = scales_of_x;
  args.b = codes_of_w;
  args.b_scales = scales_of_w;
  args.output = y;
  return args;
}

static void check_pipeline(lb_scale_order order) {
  lb_fp8_quant_args weights = quant_args(w, kN, codes_of_w, scales_of_w),
                    rows = quant_args(x, kM, codes_of_x, scales_of_x);
  rows.scale_order = order;
  CHECK(lb_weight_quant_fp8_host(&weights) == LB_OK);
  CHECK(lb_act_quant_fp8_host(&rows) == LB_OK);
  lb_fp8_dequant_args dequant;
  memset(&dequant, 0, sizeof dequant);
  dequant.struct_size = sizeof dequant;
  dequant.codes = codes_of_w;
  dequant.scales = scales_of_w;
  dequant.rows = kN;
  dequant.columns = kK;
  dequant.output = back;
  CHECK(lb_weight_dequant_fp8_host(&dequant) == LB_OK);
  for (int i = 0; i < kN * kK; ++i) CHECK(fabsf(back[i] - w[i]) <= 0.07f * fabsf(w[i]) + 1e-5f);
  lb_fp8_gemm_args gemm = gemm_args();
  gemm.a_scale_order = order;
  CHECK(lb_fp8_gemm_host(&gemm) == LB_OK);
  for (int i = 0; i < kM; ++i)
    for (int j = 0; j < kN; ++j) {
      double sum = 0, size = 0;
      for (int p = 0; p < kK; ++p) {
        sum += (double)x[i * kK + p] * w[j * kK + p];
        size += fabs((double)x[i * kK + p] * w[j * kK + p]);
      }
      CHECK(fabs(y[i * kN + j] - sum) <= 0.02 * size); /* both are rounded by up to a sixteenth, at random */
    }
}

/* Two experts of one output: the first has rows 0 and 1, the second none; row 2 belongs to nobody. */
static void check_groups(void) {
  const uint8_t rows[3] = {0x38, 0x40, 0x38}, experts[2] = {0x40, 0x44}; /* 1, 2, 1; 2, 3 */
  const float one[3] = {1, 1, 1}, experts_scales[2] = {1, 2};
  const int32_t ends[2] = {2, 2}, counts[2] = {0, 1}, back[2] = {2, 1};
  float out[4] = {-7, -7, -7, -7};
  lb_fp8_grouped_gemm_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.m = 3;
  args.n = args.k = 1;
  args.groups = 2;
  args.a = rows;
  args.b = experts;
  args.a_scales = one;
  args.b_scales = experts_scales;
  args.group_ends = ends;
  args.output = out;
  CHECK(lb_fp8_grouped_gemm_host(&args) == LB_OK && out[0] == 2 && out[1] == 4 && out[2] == -7);
  args.group_ends = NULL;
  CHECK(lb_fp8_grouped_gemm_host(&args) == LB_INVALID_ARGUMENT && strstr(lb_last_error(), "one of the two") != NULL);
  args.group_rows = counts;
  args.m = 2;
  args.rows_of_group = 1;
  out[0] = -7;
  CHECK(lb_fp8_grouped_gemm_host(&args) == LB_OK && out[0] == -7 && out[1] == 12);
  args.rows_of_group = 2;
  CHECK(lb_fp8_grouped_gemm_host(&args) == LB_INVALID_ARGUMENT &&
        lb_fp8_grouped_gemm(&args, NULL) == LB_INVALID_ARGUMENT);
  args.group_rows = NULL;
  args.group_ends = back;
  CHECK(lb_fp8_grouped_gemm_host(&args) == LB_INVALID_ARGUMENT && strstr(lb_last_error(), "ascending") != NULL);
}

static void check_refusals(void) {
  lb_fp8_quant_args args = quant_args(x, kM, codes_of_x, scales_of_x);
  CHECK(lb_act_quant_fp8_host(NULL) == LB_INVALID_ARGUMENT && lb_act_quant_fp8(NULL, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_weight_quant_fp8(NULL, NULL) == LB_INVALID_ARGUMENT &&
        lb_weight_dequant_fp8(NULL, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_fp8_gemm(NULL, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_fp8_grouped_gemm(NULL, NULL) == LB_INVALID_ARGUMENT &&
        lb_fp8_grouped_gemm_host(NULL) == LB_INVALID_ARGUMENT);
  check_groups();
  args.struct_size = 8;
  CHECK(lb_act_quant_fp8_host(&args) == LB_INVALID_ARGUMENT);
  args = quant_args(x, INT64_MAX, codes_of_x, scales_of_x);
  CHECK(lb_act_quant_fp8_host(&args) == LB_INVALID_ARGUMENT);
  args = quant_args(NULL, kM, codes_of_x, scales_of_x);
  CHECK(lb_act_quant_fp8_host(&args) == LB_INVALID_ARGUMENT && strstr(lb_last_error(), "x") != NULL);
  args = quant_args(x, kM, codes_of_x, scales_of_x);
  args.block_columns = -1;
  CHECK(lb_act_quant_fp8_host(&args) == LB_INVALID_ARGUMENT);
  args = quant_args(x, kM, codes_of_x, scales_of_x);
  const int seven = 7;
  memcpy(&args.input_type, &seven, sizeof seven);
  CHECK(lb_act_quant_fp8_host(&args) == LB_INVALID_ARGUMENT);
  args = quant_args(w, kN, codes_of_w, scales_of_w);
  args.norm_weight = x;
  CHECK(lb_weight_quant_fp8_host(&args) == LB_INVALID_ARGUMENT);
  lb_fp8_gemm_args gemm = gemm_args();
  gemm.k = -1;
  CHECK(lb_fp8_gemm_host(&gemm) == LB_INVALID_ARGUMENT);
  gemm = gemm_args();
  gemm.output_stride = kN - 1;
  CHECK(lb_fp8_gemm_host(&gemm) == LB_INVALID_ARGUMENT);
  gemm = gemm_args();
  gemm.m = 0;
  gemm.a = NULL;
  CHECK(lb_fp8_gemm_host(&gemm) == LB_OK);
}

void check_fp8(void) {
  uint32_t state = 5;
  for (int i = 0; i < kM * kK + kN * kK; ++i) {
    state = state * 1664525u + 1013904223u;
    *(i < kM * kK ? x + i : w + i - kM * kK) = (float)(int32_t)state / 2147483648.0f;
  }
  check_pipeline(LB_SCALES_BY_ROW);
  check_pipeline(LB_SCALES_BY_COLUMN);
  check_refusals();
}
