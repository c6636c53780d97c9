/* The C ABI as a C program sees it: arguments, errors, results. Prints what is wrong; exit 0 when nothing is. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capi_check.h"

int failures = 0;

static uint32_t state = 1;
static uint32_t next(void) { return state = state * 1664525u + 1013904223u; }

static int value_of(const uint8_t* row, uint32_t k, uint32_t bits) {
  const uint32_t at = k * bits, code = (uint32_t)(row[at / 8] >> (at % 8)) & ((1u << bits) - 1u);
  if (bits == 1) return code ? 1 : -1;
  if (bits == 2) return (int)code - 2;
  return code >= 1u << (bits - 1) ? (int)code - (1 << bits) : (int)code;
}

/* The seed's loop in double. */
static void check_product(uint32_t bits, uint32_t m, uint32_t n, uint32_t k) {
  const uint32_t input_stride = k + 3, weight_stride = (k * bits + 7) / 8 + 2, output_stride = n + 1;
  float* input = malloc(sizeof(float) * m * input_stride);
  uint8_t* weight = malloc((size_t)n * weight_stride);
  float* output = malloc(sizeof(float) * m * output_stride);
  float* bias = malloc(sizeof(float) * n);
  for (uint32_t i = 0; i < m * input_stride; ++i) input[i] = (float)(int32_t)next() / 2147483648.0f;
  for (uint32_t i = 0; i < n * weight_stride; ++i) weight[i] = (uint8_t)(next() >> 24);
  for (uint32_t i = 0; i < n; ++i) bias[i] = (float)i;
  for (uint32_t i = 0; i < m * output_stride; ++i) output[i] = 12345.5f;
  CHECK(lb_quantized_mm_host(input, weight, 0.5f, bias, output, m, n, k, bits, input_stride, weight_stride,
                             output_stride) == LB_OK);
  for (uint32_t i = 0; i < m; ++i) {
    for (uint32_t j = 0; j < n; ++j) {
      double sum = bias[j], size = fabs(sum);
      for (uint32_t p = 0; p < k; ++p) {
        const double term = 0.5 * input[i * input_stride + p] * value_of(weight + (size_t)j * weight_stride, p, bits);
        sum += term;
        size += fabs(term);
      }
      CHECK(fabs(output[i * output_stride + j] - sum) <= 1e-6 * size);
    }
    CHECK(output[i * output_stride + n] == 12345.5f);
  }
  free(input);
  free(weight);
  free(output);
  free(bias);
}

static void check_scales(void) {
  const float input[4] = {1, 1, 1, 1}, ranges[2] = {10, 100}, groups[6] = {1, 2, 3, 4, 5, 6};
  const uint8_t weight[3] = {0xff, 0xff, 0xff}; /* 2 bits: four values 1 in each row */
  const int32_t ends[2] = {2, 3};
  float output[3] = {0};
  lb_quantized_mm_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.input = input;
  args.weight = weight;
  args.output = output;
  args.m = 1;
  args.n = 3;
  args.k = args.input_stride = 4;
  args.weight_stride = 1;
  args.output_stride = 3;
  args.bits = 2;
  args.scale = 0.5f;
  args.scales = ranges;
  args.row_ends = ends;
  args.ranges = 2;
  CHECK(lb_quantized_mm_args_run_host(&args) == LB_OK);
  CHECK(output[0] == 20 && output[1] == 20 && output[2] == 200);
  args.row_ends = NULL;
  args.ranges = 0;
  args.scales = groups;
  args.group = 2;
  CHECK(lb_quantized_mm_args_run_host(&args) == LB_OK);
  CHECK(output[0] == 3 && output[1] == 7 && output[2] == 11);
  args.struct_size = 8;
  CHECK(lb_quantized_mm_args_run_host(&args) == LB_INVALID_ARGUMENT);
}

/* Inputs and outputs of 16 bits, beside rows that are not to be touched: small numbers, so every result is exact. */
static void check_types(void) {
  static const uint8_t kWeight[2][2] = {{0x21, 0xf3}, {0x78, 0x10}}; /* 4 bits: 1 2 3 -1; -8 7 0 1 */
  static const float kBias[2] = {0.25f, -1};
  static const float kInput[2][5] = {{1, 2, -1, 0.5f, 99}, {0.5f, 0.5f, 2, 1, 99}},
                     kOutput[2][2] = {{3.25f, 12}, {13.25f, 0}};
  static const uint16_t kHalfIn[2][2][5] = {{{0x3c00, 0x4000, 0xbc00, 0x3800, 0}, {0x3800, 0x3800, 0x4000, 0x3c00, 0}},
                                            {{0x3f80, 0x4000, 0xbf80, 0x3f00, 0}, {0x3f00, 0x3f00, 0x4000, 0x3f80, 0}}};
  static const uint16_t kHalfOut[2][2][2] = {{{0x4280, 0x4a00}, {0x4aa0, 0}}, {{0x4050, 0x4140}, {0x4154, 0}}};
  for (int in = LB_F32; in <= LB_BF16; ++in) {
    for (int out = LB_F32; out <= LB_BF16; ++out) {
      float floats[2][3] = {{7, 7, 7}, {7, 7, 7}};
      uint16_t halves[2][3] = {{7, 7, 7}, {7, 7, 7}};
      lb_quantized_mm_args args;
      memset(&args, 0, sizeof args);
      args.struct_size = sizeof args;
      args.input = in == LB_F32 ? (const void*)kInput : kHalfIn[in - 1];
      args.output = out == LB_F32 ? (void*)floats : halves;
      args.input_type = (lb_type)in;
      args.output_type = (lb_type)out;
      args.weight = kWeight[0];
      args.bias = kBias;
      args.m = args.n = args.weight_stride = 2;
      args.k = args.bits = 4;
      args.input_stride = 5;
      args.output_stride = 3;
      args.scale = 2;
      CHECK(lb_quantized_mm_args_run_host(&args) == LB_OK);
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j)
          CHECK(out == LB_F32 ? floats[i][j] == kOutput[i][j] : halves[i][j] == kHalfOut[out - 1][i][j]);
        CHECK(floats[i][2] == 7 && halves[i][2] == 7);
      }
    }
  }
}

/* Large enough for several threads. */
static void check_large(void) {
  const uint32_t m = 64, n = 2048, k = 1024;
  float* x = malloc(sizeof(float) * m * k);
  float* y = malloc(sizeof(float) * m * n);
  uint8_t* w = malloc((size_t)n * k / 4);
  for (uint32_t i = 0; i < m * k; ++i) x[i] = (float)(int32_t)(next() >> 28) - 8;
  for (uint32_t i = 0; i < n * k / 4; ++i) w[i] = (uint8_t)(next() >> 24);
  CHECK(lb_quantized_mm_host(x, w, 1, NULL, y, m, n, k, 2, k, k / 4, n) == LB_OK);
  for (uint32_t at = 0; at < m * n; at += 997) {
    double sum = 0;
    for (uint32_t p = 0; p < k; ++p) sum += x[at / n * k + p] * value_of(w + (size_t)(at % n) * (k / 4), p, 2);
    CHECK(y[at] == sum); /* whole numbers: exact */
  }
  free(x);
  free(y);
  free(w);
}

static void check_errors(void) {
  float x = 0;
  uint8_t w = 0;
  CHECK(lb_quantized_mm_host(&x, &w, 1, NULL, &x, 1, 1, 1, 3, 1, 1, 1) == LB_INVALID_ARGUMENT);
  CHECK(strstr(lb_last_error(), "bits") != NULL);
  CHECK(lb_quantized_mm_host(NULL, &w, 1, NULL, &x, 1, 1, 1, 2, 1, 1, 1) == LB_INVALID_ARGUMENT);
  CHECK(lb_quantized_mm_host(&x, &w, 1, NULL, &x, 2, 1, 9, 2, 1, 1, 1) == LB_INVALID_ARGUMENT);
  CHECK(lb_quantized_mm_host(NULL, NULL, 1, NULL, NULL, 0, 0, 0, 2, 0, 0, 0) == LB_OK);
  CHECK(lb_quantized_mm(NULL, NULL, 1, NULL, NULL, 1, 1, 1, 2, 1, 1, 1, NULL) != LB_OK);
  lb_quantized_mm_args args;
  memset(&args, 0, sizeof args);
  CHECK(lb_quantized_mm_args_run(NULL, NULL) != LB_OK);
  CHECK(lb_quantized_mm_args_run(&args, NULL) != LB_OK); /* no struct_size */
  CHECK(lb_quantized_mm_args_run_host(&args) == LB_INVALID_ARGUMENT);
  args.struct_size = sizeof args;
  args.input_type = (lb_type)9;
  CHECK(lb_quantized_mm_args_run_host(&args) == LB_INVALID_ARGUMENT && strstr(lb_last_error(), "9") != NULL);
  static const char* const kNames[] = {"ok", "invalid_argument", "shape_mismatch", "unsupported", "not_found",
                                       "io", "corrupt",          "out_of_memory",  "cancelled",   "internal"};
  for (int status = LB_OK; status <= LB_INTERNAL; ++status)
    CHECK(strcmp(lb_status_name((lb_status)status), kNames[status]) == 0);
  CHECK(strcmp(lb_status_name((lb_status)12), "unknown") == 0);
  lb_gru* gru = (lb_gru*)&x;
  CHECK(lb_gru_open("/nonexistent/net.lbgru", NULL, &gru) == LB_NOT_FOUND && gru == NULL);
  CHECK(lb_gru_open(NULL, NULL, &gru) == LB_INVALID_ARGUMENT);
  lb_gru_close(NULL);
  lb_model* model = (lb_model*)&x;
  CHECK(lb_model_open("/nonexistent/model", NULL, &model) != LB_OK);
  CHECK(model == NULL);
  CHECK(lb_last_error()[0] != '\0');
  CHECK(lb_model_open(NULL, NULL, &model) == LB_INVALID_ARGUMENT);
  lb_model_close(NULL);
}

/* What an open network says to impossible sizes and options. */
static void check_gru(const char* path) {
  lb_gru* gru = NULL;
  lb_gru_options options = {sizeof options, "no device", NULL};
  CHECK(lb_gru_open(path, &options, &gru) == LB_INVALID_ARGUMENT && gru == NULL);
  options.device = NULL;
  options.isa = "no isa";
  CHECK(lb_gru_open(path, &options, &gru) == LB_INVALID_ARGUMENT && gru == NULL);
  options.isa = "scalar";
  options.struct_size = 8;
  CHECK(lb_gru_open(path, &options, &gru) == LB_INVALID_ARGUMENT && gru == NULL);
  options.struct_size = sizeof options;
  CHECK(lb_gru_open(path, &options, &gru) == LB_OK);
  static float x[4096], y[4096];
  lb_gru_run_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.x = x;
  args.y = y;
  static const int64_t kSizes[][2] = {{-1, 1},        {1, -1},
                                      {INT64_MAX, 1}, {1, INT64_MAX},
                                      {0, INT64_MAX}, {(int64_t)1 << 31, (int64_t)1 << 31},
                                      {INT64_MIN, 1}, {(int64_t)1 << 32, (int64_t)1 << 32}};
  for (size_t i = 0; i < sizeof kSizes / sizeof *kSizes; ++i) {
    args.steps = kSizes[i][0];
    args.batch = kSizes[i][1];
    CHECK(lb_gru_run(gru, &args) == LB_INVALID_ARGUMENT);
  }
  args.steps = args.batch = 1;
  CHECK(lb_gru_run(gru, &args) == LB_OK);
  CHECK(lb_gru_run(NULL, &args) == LB_INVALID_ARGUMENT && lb_gru_run(gru, NULL) == LB_INVALID_ARGUMENT);
  args.x = NULL;
  CHECK(lb_gru_run(gru, &args) == LB_INVALID_ARGUMENT);
  args.x = x;
  args.y = NULL;
  CHECK(lb_gru_run(gru, &args) == LB_INVALID_ARGUMENT);
  CHECK(lb_gru_step(NULL, x, 1, y) == LB_INVALID_ARGUMENT);
  CHECK(lb_gru_step(gru, NULL, 1, y) == LB_INVALID_ARGUMENT);
  CHECK(lb_gru_step(gru, x, 1, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_gru_step(gru, x, 0, y) != LB_OK);
  CHECK(lb_gru_step(gru, x, INT64_MAX, y) != LB_OK);
  lb_gru_close(gru);
}

static void check_tokens(const lb_model* model) {
  static const char kText[] = "Once upon a time <s>";
  int32_t tokens[64];
  char text[64];
  size_t count = 0, with_special = 0, size = 0;
  CHECK(lb_model_tokenize(model, kText, sizeof kText - 1, 0, 0, NULL, 0, &count) == LB_OK && count > 4 && count < 64);
  CHECK(lb_model_tokenize(model, kText, sizeof kText - 1, 1, 0, tokens, 64, &with_special) == LB_OK);
  CHECK(with_special == count + 1 && tokens[0] == 1); /* BOS */
  CHECK(lb_model_tokenize(model, kText, sizeof kText - 1, 0, 1, tokens, 64, &with_special) == LB_OK);
  CHECK(with_special < count && tokens[with_special - 1] == 1); /* "<s>" is one token */
  tokens[2] = -7;
  CHECK(lb_model_tokenize(model, kText, sizeof kText - 1, 0, 0, tokens, 2, &with_special) == LB_OK);
  CHECK(with_special == count && tokens[2] == -7); /* no more than there is room for */
  CHECK(lb_model_tokenize(model, kText, sizeof kText - 1, 1, 0, tokens, 64, &count) == LB_OK);
  CHECK(lb_model_detokenize(model, tokens, count, NULL, 0, &size) == LB_OK && size == sizeof kText - 1);
  text[4] = '#';
  CHECK(lb_model_detokenize(model, tokens, count, text, 4, &size) == LB_OK);
  CHECK(size == sizeof kText - 1 && memcmp(text, "Once#", 5) == 0);
  CHECK(lb_model_detokenize(model, tokens, count, text, sizeof text, &size) == LB_OK);
  CHECK(size == sizeof kText - 1 && memcmp(text, kText, size) == 0);
  tokens[0] = -1;
  CHECK(lb_model_detokenize(model, tokens, 1, text, sizeof text, &size) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_tokenize(model, NULL, 0, 0, 0, NULL, 0, &count) == LB_OK && count == 0);
  CHECK(lb_model_tokenize(model, NULL, 1, 0, 0, NULL, 0, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_tokenize(model, kText, 4, 0, 0, NULL, 1, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_tokenize(NULL, kText, 4, 0, 0, NULL, 0, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_detokenize(model, NULL, 1, NULL, 0, &size) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_detokenize(model, tokens, 0, NULL, 1, &size) == LB_INVALID_ARGUMENT);
  /* This model has no template; tests/e2e/runtime_test.py asks one that has. */
  CHECK(lb_model_chat_text(model, "{}", 2, text, sizeof text, &size) == LB_UNSUPPORTED);
  CHECK(lb_model_chat_text(model, "", 0, text, sizeof text, &size) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_chat_text(model, NULL, 2, text, sizeof text, &size) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_length(model) == 0);
}

typedef struct heard {
  char text[512];
  size_t size;
  int calls, stop_after;
} heard;

static int32_t listen(void* user, const char* text, size_t size) {
  heard* h = user;
  if (h->size + size < sizeof h->text) memcpy(h->text + h->size, text, size);
  h->size += size;
  return ++h->calls == h->stop_after;
}

/* What is heard is what the tokens spell; the likeliest tokens are those that the logits name. */
static void check_generation(lb_model* model) {
  static const int32_t kPrompt[2] = {1, 403};
  int32_t tokens[8] = {0};
  char text[512];
  size_t count = 0, size = 0;
  heard h = {{0}, 0, 0, 0};
  lb_generate_options options;
  lb_generate_options_init(&options);
  CHECK(options.struct_size == offsetof(lb_generate_options, user) + sizeof(void*) && options.max_tokens == 128 &&
        options.temperature == 0.8f);
  CHECK(options.top_k == 40 && options.top_p == 0.95f && options.min_p == 0.05f && options.repeat_penalty == 1);
  options.temperature = 0;
  options.max_tokens = 8;
  options.on_text = listen;
  options.user = &h;
  CHECK(lb_model_generate(model, kPrompt, 2, &options, tokens, 8, &count) == LB_OK && count == 8);
  CHECK(lb_model_detokenize(model, tokens, count, text, sizeof text, &size) == LB_OK);
  CHECK(h.calls > 1 && size > 0 && h.size == size && memcmp(text, h.text, size) == 0);
  CHECK(lb_model_length(model) == 9);
  const float* logits = NULL;
  CHECK(lb_model_logits(model, &logits, &count) == LB_NOT_FOUND);
  CHECK(lb_model_truncate(model, 0) == LB_OK && lb_model_prefill(model, kPrompt, 2) == LB_OK);
  for (int i = 0; i < 8; ++i) {
    CHECK(lb_model_logits(model, &logits, &count) == LB_OK);
    int32_t best = 0;
    for (size_t j = 1; j < count; ++j)
      if (logits[j] > logits[best]) best = (int32_t)j;
    CHECK(best == tokens[i]);
    CHECK(lb_model_decode(model, best) == LB_OK);
  }
  CHECK(lb_model_truncate(model, 0) == LB_OK);
  CHECK(lb_model_logits(model, &logits, &count) == LB_NOT_FOUND); /* those of tokens that are forgotten */
  h.calls = 0;
  h.stop_after = 2;
  CHECK(lb_model_generate(model, kPrompt, 2, &options, NULL, 0, &count) == LB_OK && h.calls == 2 && count < 8);
  CHECK(lb_model_truncate(model, 0) == LB_OK);
  CHECK(lb_model_generate(model, kPrompt, 2, NULL, NULL, 0, NULL) == LB_OK); /* 62 of 64 positions are left */
  CHECK(lb_model_length(model) <= 64);
  const int64_t length = lb_model_length(model);
  options.max_tokens = -1;
  CHECK(lb_model_generate(model, kPrompt, 1, &options, NULL, 0, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_length(model) == length); /* what is refused changes nothing */
  options.max_tokens = 1;
  options.temperature = -1;
  CHECK(lb_model_generate(model, kPrompt, 1, &options, NULL, 0, &count) == LB_INVALID_ARGUMENT);
  options.struct_size = 1;
  CHECK(lb_model_generate(model, kPrompt, 1, &options, NULL, 0, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_generate(model, NULL, 1, NULL, NULL, 0, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_generate(NULL, kPrompt, 1, NULL, NULL, 0, &count) == LB_INVALID_ARGUMENT);
  lb_generate_options_init(NULL);
}

/* Token by token and in one call give the same logits. 0 when there is no such model. */
static int check_model(const char* path) {
  lb_model *one = NULL, *two = NULL;
  lb_model_options options = {sizeof options, "f32", "cpu", -1, 1, 0, NULL, 0};
  CHECK(lb_model_open(path, &options, &one) != LB_OK && one == NULL);
  options.context = 64;
  const lb_status status = lb_model_open(path, &options, &one);
  CHECK(status == LB_OK || status == LB_NOT_FOUND);
  if (status != LB_OK) return 0;
  CHECK(lb_model_open(path, &options, &two) == LB_OK);
  const int32_t tokens[3] = {1, 2, 3};
  const float *a = NULL, *b = NULL;
  size_t count_a = 0, count_b = 0;
  CHECK(lb_model_logits(one, &a, &count_a) == LB_NOT_FOUND);
  CHECK(lb_model_prefill(one, tokens, 3) == LB_OK);
  for (int i = 0; i < 3; ++i) CHECK(lb_model_decode(two, tokens[i]) == LB_OK);
  CHECK(lb_model_logits(one, &a, &count_a) == LB_OK);
  CHECK(lb_model_logits(two, &b, &count_b) == LB_OK);
  CHECK(count_a == count_b && (int64_t)count_a == lb_model_vocab_size(one));
  CHECK(count_a > 0 && memcmp(a, b, count_a * sizeof *a) == 0);
  CHECK(lb_model_length(one) == 3);
  CHECK(lb_model_decode(one, -1) == LB_INVALID_ARGUMENT);
  CHECK(lb_model_truncate(one, 0) == LB_OK);
  CHECK(lb_model_length(one) == 0);
  CHECK(lb_model_logits(one, &a, &count_a) == LB_NOT_FOUND);
  check_tokens(one);
  check_counts(one);
  check_generation(one);
  lb_model_close(one);
  lb_model_close(two);
  check_sessions(path);
  return 1;
}

static void check_without_files(void) {
  CHECK(strcmp(lb_version(), "") != 0);
  for (uint32_t bits = 1; bits <= 8; bits *= 2) {
    check_product(bits, 1, 5, 37);
    check_product(bits, 4, 40, 256);
  }
  check_scales();
  check_types();
  check_limits();
  check_large();
  check_errors();
  check_fp8();
  check_operators();
}

/* capi_test | capi_test model DIR | capi_test gru FILE. Exit 77: the model is not there. */
int main(int argc, char** argv) {
  int found = 1;
  if (argc == 1)
    check_without_files();
  else if (argc == 3 && strcmp(argv[1], "model") == 0)
    found = check_model(argv[2]);
  else if (argc == 3 && strcmp(argv[1], "gru") == 0)
    check_gru(argv[2]);
  else
    return 2;
  if (!found) {
    printf("no model in %s: set LOWBIT_DATA to the folder that holds lm/stories260K\n", argv[2]);
    if (failures == 0) return 77;
  }
  printf(failures == 0 ? "C ABI: all right\n" : "C ABI: %d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
