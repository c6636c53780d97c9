/* Sizes and counts that cannot be. */

#include <stdint.h>
#include <string.h>

#include "capi_check.h"

/* Each of these is one step outside of what is allowed. */
void check_limits(void) {
  float x[32] = {0}, y[16], scales[4] = {1, 1, 1, 1};
  uint8_t w[16] = {0};
  int32_t ends[2] = {1, 2};
  lb_quantized_mm_args good;
  memset(&good, 0, sizeof good);
  good.struct_size = sizeof good;
  good.input = x;
  good.weight = w;
  good.output = y;
  good.m = good.n = good.output_stride = 2;
  good.k = good.input_stride = 9;
  good.weight_stride = 3; /* 9 codes of 2 bits */
  good.bits = 2;
  good.scale = 1;
  good.scales = scales;
  good.row_ends = ends;
  good.ranges = 2;
  CHECK(lb_quantized_mm_args_run_host(&good) == LB_OK);
#define REFUSED(change)                                                 \
  do {                                                                  \
    lb_quantized_mm_args args = good;                                   \
    change;                                                             \
    CHECK(lb_quantized_mm_args_run_host(&args) == LB_INVALID_ARGUMENT); \
  } while (0)
  REFUSED(args.m = -1);
  REFUSED(args.n = -1);
  REFUSED(args.k = ((int64_t)1 << 30) + 1);
  REFUSED(args.input_stride = 8);
  REFUSED(args.output_stride = 1);
  REFUSED(args.weight_stride = 2);
  REFUSED(args.input = NULL);
  REFUSED(args.weight = NULL);
  REFUSED(args.output = NULL);
  REFUSED(args.scales = NULL);
  REFUSED(args.ranges = 0);
  REFUSED(args.group = 5);
  REFUSED(args.group = -1; args.row_ends = NULL);
  REFUSED(args.ranges = 1);
  REFUSED(args.n = INT64_MAX);
  REFUSED(args.k = INT64_MIN);
  REFUSED(args.bits = UINT32_MAX);
  REFUSED(args.input_stride = INT64_MAX);
  REFUSED(args.output_stride = INT64_MAX);
  REFUSED(args.weight_stride = INT64_MAX);
  REFUSED(args.m = 1; args.input_stride = INT64_MIN);
  REFUSED(args.ranges = INT64_MIN);
  for (int32_t last = 0; last <= 3; ++last) {
    ends[1] = last;
    CHECK(lb_quantized_mm_args_run_host(&good) == (last == 2 ? LB_OK : LB_INVALID_ARGUMENT));
  }
#undef REFUSED
  CHECK(lb_quantized_mm_host(x, w, 1, NULL, y, 1, 1, 5, 2, 0, 0, 0) == LB_OK); /* one row needs no stride */
}

/* Counts that no memory holds, negative ones among them once they are told as int64: refused before anything is
   read. */
void check_counts(lb_model* model) {
  static const size_t kCounts[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2 + 1, SIZE_MAX / 4 + 1, (size_t)INT64_MAX + 3};
  static const int32_t kPrompt[2] = {1, 403};
  char text[64];
  size_t count = 0;
  const int64_t length = lb_model_length(model);
  for (size_t i = 0; i < sizeof kCounts / sizeof *kCounts; ++i) {
    CHECK(lb_model_generate(model, kPrompt, kCounts[i], NULL, NULL, 0, &count) == LB_INVALID_ARGUMENT);
    CHECK(lb_model_prefill(model, kPrompt, kCounts[i]) == LB_INVALID_ARGUMENT);
    CHECK(lb_model_detokenize(model, kPrompt, kCounts[i], text, sizeof text, &count) == LB_INVALID_ARGUMENT);
    if (kCounts[i] <= INT64_MAX) continue;
    CHECK(lb_model_tokenize(model, "a", kCounts[i], 0, 0, NULL, 0, &count) == LB_INVALID_ARGUMENT);
    CHECK(lb_model_chat_text(model, "{}", kCounts[i], text, sizeof text, &count) == LB_INVALID_ARGUMENT);
  }
  /* One that memory might hold, but not the context: its tokens are not looked at. */
  CHECK(lb_model_generate(model, kPrompt, (size_t)1 << 40, NULL, NULL, 0, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_prefill(model, kPrompt, (size_t)1 << 40) == LB_INVALID_ARGUMENT);
  /* Capacities may be anything that is not there. */
  int32_t tokens[16];
  CHECK(lb_model_tokenize(model, "a b", 3, 0, 0, tokens, SIZE_MAX, &count) == LB_OK && count > 0 && count < 16);
  CHECK(lb_model_detokenize(model, tokens, count, text, SIZE_MAX, &count) == LB_OK && count < sizeof text);
  CHECK(lb_model_truncate(model, INT64_MIN) != LB_OK && lb_model_truncate(model, INT64_MAX) != LB_OK);
  CHECK(lb_model_length(model) == length);
}
