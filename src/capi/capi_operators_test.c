/* Integers of few bits as a C program sees them: strides, types, and what is refused. */

#include <stdint.h>
#include <string.h>

#include "capi_check.h"

enum { kM = 2, kN = 16, kK = 32, kStride = 40 };

static float x[kM * kStride], s[kM], y[kM * kStride];
static int8_t codes[kM * kStride];
static uint8_t weight[kN * kK / 4], tiles[kN * kK / 4], bits[kM * kK / 8];

static lb_int8_quant_args quant_args(void) {
  lb_int8_quant_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.input = x;
  args.m = kM;
  args.k = kK;
  args.input_stride = args.codes_stride = kStride;
  args.codes = codes;
  args.scales = s;
  return args;
}

static lb_bitlinear_args bitlinear_args(void) {
  static const float kOne = 1;
  lb_bitlinear_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.m = kM;
  args.n = kN;
  args.k = kK;
  args.x = codes;
  args.x_stride = args.output_stride = kStride;
  args.x_scales = s;
  args.weight = weight;
  args.weight_scales = &kOne;
  args.output = y;
  return args;
}

static void check_product(void) {
  lb_int8_quant_args quant = quant_args();
  CHECK(lb_quantize_activations_int8_host(&quant) == LB_OK && s[0] == 127.0f && codes[kK] == 99);
  lb_bitlinear_args args = bitlinear_args();
  CHECK(lb_bitlinear_int8xint2_host(&args) == LB_OK && y[kN] == -7);
  for (int i = 0; i < kM; ++i)
    for (int j = 0; j < kN; ++j) {
      int32_t sum = 0;
      for (int p = 0; p < kK; ++p) sum += codes[i * kStride + p] * ((weight[(j * kK + p) / 4] >> (p % 4 * 2) & 3) - 2);
      CHECK(y[i * kStride + j] == (float)sum / s[i]);
    }
  CHECK(lb_int2_to_tiles(weight, 0, kN, kK, tiles) == LB_OK && memcmp(weight, tiles, sizeof tiles) != 0);
  args.weight = tiles;
  args.weight_order = LB_INT2_TILES;
  args.output_type = LB_BF16;
  uint16_t halves[kM * kStride];
  args.output = halves;
  CHECK(lb_bitlinear_int8xint2_host(&args) == LB_OK);
  for (int j = 0; j < kN; ++j) {
    uint32_t exact = 0;
    memcpy(&exact, y + j, sizeof exact);
    CHECK(halves[j] == (uint16_t)((exact + 0x7fff + (exact >> 16 & 1)) >> 16));
  }
  uint8_t back[sizeof weight];
  CHECK(lb_int2_from_tiles(tiles, kN, kK, back, 0) == LB_OK && memcmp(weight, back, sizeof back) == 0);
}

static void check_bits(void) {
  lb_binarize_args binarize;
  memset(&binarize, 0, sizeof binarize);
  binarize.struct_size = sizeof binarize;
  binarize.input = x;
  binarize.m = kM;
  binarize.k = kK;
  binarize.input_stride = kStride;
  binarize.bits = bits;
  binarize.scales = s;
  CHECK(lb_binarize_activations_host(&binarize) == LB_OK && (bits[0] & 1) == (x[0] >= 0));
  lb_binary_matmul_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.m = args.n = kM;
  args.k = kK;
  args.x = args.weight = bits;
  args.output = y;
  CHECK(lb_binary_matmul_host(&args) == LB_OK && y[0] == kK && y[kM + 1] == kK && y[1] == y[kM]);
  args.weight_stride = kK / 8 - 1;
  CHECK(lb_binary_matmul_host(&args) == LB_INVALID_ARGUMENT);
  args.weight_stride = 0;
  args.k = INT64_MAX;
  CHECK(lb_binary_matmul_host(&args) == LB_INVALID_ARGUMENT);
  binarize.m = -1;
  CHECK(lb_binarize_activations_host(&binarize) == LB_INVALID_ARGUMENT);
  CHECK(lb_binarize_activations_host(NULL) == LB_INVALID_ARGUMENT &&
        lb_binary_matmul_host(NULL) == LB_INVALID_ARGUMENT);
}

static void check_refusals(void) {
  const int seven = 7;
  CHECK(lb_quantize_activations_int8_host(NULL) == LB_INVALID_ARGUMENT &&
        lb_bitlinear_int8xint2_host(NULL) == LB_INVALID_ARGUMENT);
  lb_int8_quant_args quant = quant_args();
  quant.scale_type = LB_F16;
  CHECK(lb_quantize_activations_int8_host(&quant) == LB_INVALID_ARGUMENT);
  quant = quant_args();
  memcpy(&quant.input_type, &seven, sizeof seven);
  CHECK(lb_quantize_activations_int8_host(&quant) == LB_INVALID_ARGUMENT);
  quant = quant_args();
  quant.codes_stride = kK - 1;
  CHECK(lb_quantize_activations_int8_host(&quant) == LB_INVALID_ARGUMENT);
  quant = quant_args();
  quant.m = INT64_MAX;
  CHECK(lb_quantize_activations_int8_host(&quant) == LB_INVALID_ARGUMENT);
  lb_bitlinear_args args = bitlinear_args();
  args.k = ((int64_t)1 << 22) + 4;
  args.x_stride = 0;
  CHECK(lb_bitlinear_int8xint2_host(&args) == LB_INVALID_ARGUMENT);
  args = bitlinear_args();
  args.weight = NULL;
  CHECK(lb_bitlinear_int8xint2_host(&args) == LB_INVALID_ARGUMENT && strstr(lb_last_error(), "weight") != NULL);
  args = bitlinear_args();
  memcpy(&args.weight_order, &seven, sizeof seven);
  CHECK(lb_bitlinear_int8xint2_host(&args) == LB_INVALID_ARGUMENT);
  args = bitlinear_args();
  args.n = 8;
  args.weight_order = LB_INT2_TILES;
  CHECK(lb_bitlinear_int8xint2_host(&args) == LB_SHAPE_MISMATCH);
  const int32_t ends[2] = {8, 15};
  const float scales[2] = {1, 2};
  args = bitlinear_args();
  args.weight_scales = scales;
  args.row_ends = ends;
  args.ranges = 2;
  CHECK(lb_bitlinear_int8xint2_host(&args) == LB_INVALID_ARGUMENT);
  args.ranges = INT64_MAX;
  CHECK(lb_bitlinear_int8xint2_host(&args) == LB_INVALID_ARGUMENT);
  CHECK(lb_int2_to_tiles(weight, 0, kN, -4, tiles) == LB_INVALID_ARGUMENT);
  CHECK(lb_int2_to_tiles(NULL, 0, kN, kK, tiles) == LB_INVALID_ARGUMENT);
  CHECK(lb_int2_from_tiles(NULL, kN, kK, weight, 0) == LB_INVALID_ARGUMENT);
  CHECK(lb_int2_from_tiles(tiles, kN - 1, kK, weight, 0) == LB_SHAPE_MISMATCH);
}

/* With a stream: what is refused, which needs no GPU. The kernels: tests/conformance/cuda/operators_test.cc. */
static void check_device_refusals(void) {
  CHECK(lb_quantize_activations_int8(NULL, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_bitlinear_int8xint2(NULL, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_binarize_activations(NULL, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_binary_matmul(NULL, NULL) == LB_INVALID_ARGUMENT);
  lb_bitlinear_args args = bitlinear_args();
  args.x_scales = NULL;
  CHECK(lb_bitlinear_int8xint2(&args, NULL) == LB_INVALID_ARGUMENT && strstr(lb_last_error(), "scales") != NULL);
  args = bitlinear_args();
  args.n = 8;
  args.weight_order = LB_INT2_TILES;
  CHECK(lb_bitlinear_int8xint2(&args, NULL) == LB_SHAPE_MISMATCH);
  args = bitlinear_args();
  args.x_stride = kK - 1;
  CHECK(lb_bitlinear_int8xint2(&args, NULL) == LB_INVALID_ARGUMENT && strstr(lb_last_error(), "stride") != NULL);
}

void check_operators(void) {
  uint32_t state = 9;
  for (int i = 0; i < kM * kStride; ++i) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(int32_t)state / 2147483648.0f;
    codes[i] = 99;
    y[i] = -7;
  }
  x[3] = 1; /* the largest */
  for (int i = 0; i < kN * kK / 4; ++i) weight[i] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24);
  check_product();
  check_bits();
  check_refusals();
  check_device_refusals();
}
