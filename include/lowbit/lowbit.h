/* lowbit for C and everything that can call C.
 *
 * Sizes are explicit, handles are opaque, nothing is thrown. Every call returns LB_OK or what went wrong; lb_last_error() tells
 * the rest, per thread. Functions may be called from any thread; one lb_model, and one lb_session, from one thread at a time, but for what is
 * said below.
 *
 * Structs begin with their size, as the caller's header has it: set all of a struct to zero, then struct_size. A library that is newer than the
 * caller takes the fields that are missing as 0 or, where a function sets defaults, as those. An older one accepts a longer struct whose unknown
 * fields are zero, and says LB_UNSUPPORTED to others. A size that no version has is LB_INVALID_ARGUMENT.
 */
#ifndef LOWBIT_LOWBIT_H
#define LOWBIT_LOWBIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lb_status {
  LB_OK = 0,
  LB_INVALID_ARGUMENT = 1, /* a value outside its documented range */
  LB_SHAPE_MISMATCH = 2,   /* operands that do not fit each other */
  LB_UNSUPPORTED = 3,      /* well-formed, but this build or machine has nothing for it: no GPU, say */
  LB_NOT_FOUND = 4,
  LB_IO = 5,
  LB_CORRUPT = 6,
  LB_OUT_OF_MEMORY = 7, /* of the host or the device; nothing is lost by it */
  LB_CANCELLED = 8,
  LB_INTERNAL = 9 /* a fault of lowbit */
} lb_status;

const char* lb_version(void); /* "0.1.0" */
/* What the last failed call of this thread said, one line; "" when none failed. Valid until the thread's next call. */
const char* lb_last_error(void);
const char* lb_status_name(lb_status status); /* "out_of_memory" */

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
 * The device version takes device pointers and only enqueues work on `stream` (a cudaStream_t; NULL is the default stream): it
 * allocates nothing, waits for nothing and may be captured into a graph. On compute capability 9 and higher it may start
 * while the kernel before it in the stream finishes and then reads `weight` early: weights must be complete before that
 * kernel starts. The host version takes host pointers and computes on the CPU.
 * Accuracy: products are exact, sums are f32; |error| <= 1e-6 times the sum of the terms' magnitudes.
 * Errors: LB_INVALID_ARGUMENT; LB_UNSUPPORTED without a GPU or without CUDA in this build; LB_OUT_OF_MEMORY (host version).
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
 * On the CPU: docs/operators.md. Set all of a struct to zero first. Strides count elements, those of bits and of 2-bit codes bytes; 0 is for rows
 * that lie side by side. Errors: LB_INVALID_ARGUMENT, LB_SHAPE_MISMATCH, LB_OUT_OF_MEMORY.
 */

/* Rows of activations as int8: s = 127 / max(max |x|, 1e-5), rounded to its type, and code = round half to even(x * s), to -128..127. So x is about
 * code / s: s divides. A row that holds a NaN or an infinity has s = NaN and codes 0. */
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
lb_status lb_quantize_activations_int8_host(const lb_int8_quant_args* args);

typedef enum lb_int2_order {
  LB_INT2_ROWS = 0, /* [n, ceil(k / 4)] bytes, the least significant bits first; value = code - 2 */
  LB_INT2_TILES =
      1 /* the same codes as BitNet's GPU kernel reads them, in blocks of 16 x 32; n % 16 == 0, k % 32 == 0 */
} lb_int2_order;

/* output[i, j] = sum_p x[i, p] * value(weight[j, p]) / x_scales[i] * weight_scales[range of j]. The sum is exact, and each operation behind it is
 * rounded to f32, the last to the output's type. */
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
lb_status lb_bitlinear_int8xint2_host(const lb_bitlinear_args* args);

/* Codes [n, k] in 2 bits from one order to the other: n * k / 4 bytes of tiles, or rows row_stride bytes apart. */
lb_status lb_int2_to_tiles(const uint8_t* rows, int64_t row_stride, int64_t n, int64_t k, uint8_t* tiles);
lb_status lb_int2_from_tiles(const uint8_t* tiles, int64_t n, int64_t k, uint8_t* rows, int64_t row_stride);

/* Rows of activations as bits and one scale: bit 1 where x >= 0 or NaN, the least significant bit of a byte first; scale = mean |x|. */
typedef struct lb_binarize_args {
  size_t struct_size; /* sizeof(lb_binarize_args) */
  const void* input;  /* [m, k] */
  int64_t m, k, input_stride;
  uint8_t* bits; /* [m, ceil(k / 8)] */
  int64_t bits_stride;
  float* scales; /* [m] */
  lb_type input_type;
} lb_binarize_args;
lb_status lb_binarize_activations_host(const lb_binarize_args* args);

/* output[i, j] = fma(sum_p x[i, p] * weight[j, p] * weight_scales[j], x_scales[i], bias[j]), where a bit 1 is +1 and a bit 0 is -1. The sum is exact. */
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
lb_status lb_binary_matmul_host(const lb_binary_matmul_args* args);

/* ---- FP8 in blocks ----
 *
 * E4M3 codes (torch's float8_e4m3fn) with a float32 scale per block of rows x columns: scale = max |x| / 448, code = e4m3(x / scale),
 * real = value * scale. Activations have blocks of 1 x 128, weights of 128 x 128; the last ones may be short. A block whose largest
 * magnitude is below 2^-120 has scale 0, one with an infinity the scale +inf, one with a NaN the scale NaN, all with codes 0.
 * docs/fp8.md shows the whole way, docs/numerics.md#fp8-in-blocks says what is computed.
 *
 * Set all of a struct to zero first. Strides count elements, codes' count bytes; 0 is for rows that lie side by side.
 */

typedef enum lb_scale_order {
  LB_SCALES_BY_ROW = 0, /* [ceil(rows / block_rows), ceil(columns / block_columns)] */
  LB_SCALES_BY_COLUMN =
      1 /* the same transposed; scale_stride 0: rows rounded up to 4, as the GPU's copy engine wants them; those are 0 */
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

/* All calls here come in two versions. With a stream (a cudaStream_t; NULL is the default one) pointers are device memory, and work is only
 * enqueued: nothing is allocated, nothing waited for, and it may be captured into a graph. _host: host pointers, on the CPU. Codes and
 * scales have the same bits everywhere; products on tensor cores (compute capability 9.0) are within 1e-3 of the others' norm.
 * Errors: LB_INVALID_ARGUMENT; LB_UNSUPPORTED without a GPU or without CUDA in this build; LB_OUT_OF_MEMORY (host version). */
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

/* output[i, j] = sum_p (value(a[i, p]) * a_scale) * (value(b[j, p]) * b_scale): f32 sums over 128 columns, then times the scales. A NaN in a row of
 * a stays in its row of the output. */
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

/* ---- Language models ---- */

typedef struct lb_model lb_model;

typedef struct lb_model_options {
  size_t struct_size;     /* sizeof(lb_model_options) */
  const char* activation; /* "auto", "int8", "int8-row", "int8-clip", "int4", "fp8", "f32"; NULL is "auto" */
  const char* device;     /* "auto", "cpu", "cuda", "cuda:<i>"; NULL is "auto" */
  int64_t context;        /* positions; 0: what the model was trained for, at most 4096 */
  int32_t threads;        /* 0: physical cores */
  /* Positions that all sequences of the model have together, in pages of 64; forks share theirs. 0: as many as there is memory for */
  int64_t kv_positions;
  /* How keys and values are kept: "f16", or quantized as "int8", "int4", "int2" or "kXvY" with X and Y of 2, 4 and 8; NULL is "f16" */
  const char* kv;
  int64_t
      kv_residual; /* newest positions that stay f16 beside quantized ones, in whole pages of 64. 0: 128; -1: none */
} lb_model_options;

/* path: a checkpoint directory, a Hugging Face directory, a GGUF file, or "default". options may be NULL. *model is NULL after
 * an error. */
lb_status lb_model_open(const char* path, const lb_model_options* options, lb_model** model);
void lb_model_close(lb_model* model); /* NULL is allowed. Its sessions stay as they are */

/* This one, lb_session_open, lb_model_tokenize, _detokenize and _chat_text may be called in several threads at once, beside any other call with the
 * model but lb_model_close. */
int64_t lb_model_vocab_size(const lb_model* model);
int64_t lb_model_length(const lb_model* model); /* tokens in the sequence */
/* Appends tokens to the sequence. LB_OUT_OF_MEMORY: no page is left (kv_positions), and nothing was appended. */
lb_status lb_model_prefill(lb_model* model, const int32_t* tokens, size_t count);
lb_status lb_model_decode(lb_model* model, int32_t token);
/* Logits [vocab_size] after the last token; valid until the next call with this model. LB_NOT_FOUND before the first token. */
lb_status lb_model_logits(const lb_model* model, const float** logits, size_t* count);
/* Forgets all but the first `length` tokens. The logits are gone until the next token. */
lb_status lb_model_truncate(lb_model* model, int64_t length);

/* Text to token ids and back, by the model's own tokenizer. At most `capacity` of what comes goes to the array, which may be NULL
 * when capacity is 0; *count (*size) is how much there is: more than capacity means that the array was too small. Texts are
 * UTF-8 and need not end in a zero; the one that comes does not.
 * add_special: begin (and end) as the model wants it, for a whole prompt. parse_special: text such as "<|im_end|>" becomes the
 * token; 0 for text from users. lb_model_detokenize leaves special tokens out.
 * Errors: LB_INVALID_ARGUMENT (an id outside the vocabulary). Neither changes the sequence. */
lb_status lb_model_tokenize(const lb_model* model, const char* text, size_t text_size, int32_t add_special,
                            int32_t parse_special, int32_t* tokens, size_t capacity, size_t* count);
lb_status lb_model_detokenize(const lb_model* model, const int32_t* tokens, size_t count, char* text, size_t capacity,
                              size_t* size);

/* A conversation as the model's own template writes it, special tokens included: tokenize it with add_special 0 and parse_special
 * 1. variables: JSON, {"messages": [{"role": "user", "content": "Hi"}]} and what else the template may look at;
 * add_generation_prompt is true unless given. text, capacity and size as above.
 * Errors: LB_UNSUPPORTED (no template), LB_INVALID_ARGUMENT (not JSON; what the template refuses). */
lb_status lb_model_chat_text(const lb_model* model, const char* variables, size_t variables_size, char* text,
                             size_t capacity, size_t* size);

/* How likely the model held a token for, and others in its place: natural logarithms, of the logits before bias, penalties and temperature. */
typedef struct lb_token_logprobs {
  size_t struct_size; /* sizeof(lb_token_logprobs), as the library has it */
  int32_t token;
  float logprob;
  const int32_t* top_tokens; /* [top_count], the likeliest first; valid until on_logprobs returns, as the next one */
  const float* top_logprobs;
  size_t top_count;
} lb_token_logprobs;

/* What `lowbit run` has options for. lb_generate_options_init2() sets all of it to the defaults given here. */
typedef struct lb_generate_options {
  size_t struct_size;   /* sizeof(lb_generate_options) */
  int64_t max_tokens;   /* 128 */
  float temperature;    /* 0.8; 0 takes the likeliest token */
  float top_p, min_p;   /* 0.95, 0.05; 1 and 0: all tokens */
  float repeat_penalty; /* 1; over 1: repeat less */
  int64_t top_k;        /* 40; 0: all tokens */
  uint64_t seed;        /* 0; the same seed gives the same text */
  int32_t ignore_eos;   /* 0; else goes on after the end of the text */
  /* Called for each token: gets the text as it comes, whole UTF-8 characters without a zero at the end (size 0 while a token
   * completes none), and returns 0 to go on. NULL: nobody. It may ask for the model's length and vocabulary and must not call
   * other functions with this model, or this session where it is one's. */
  int32_t (*on_text)(void* user, const char* text, size_t size);
  void* user; /* handed to on_text, and to on_logprobs */
  /* What follows is of the second version: lb_generate_options_init2() sets it, and a shorter struct has these defaults. */
  float frequency_penalty; /* 0; from the logits of recent tokens, for each time that they are there */
  float presence_penalty;  /* 0; the same, once */
  int64_t repeat_window;   /* 64; how many tokens are recent for the three penalties, those of the prompt too */
  /* [bias_count]: ids, and what is added to their logits. Minus infinity forbids a token. */
  const int32_t* bias_tokens;
  const float* bias_values;
  size_t bias_count;
  /* [token_mask_words]: bit i % 32 of word i / 32 says that token i may be chosen. Tokens behind the last word may not. NULL: all may. */
  const uint32_t* token_mask;
  size_t token_mask_words;
  /* [stop_count], at most 64: UTF-8 that ends in a zero. The first one that is complete ends the generation, whatever tokens spell it. Neither it
   * nor what comes behind it is handed to on_text. */
  const char* const* stop_texts;
  size_t stop_count;
  int64_t top_logprobs; /* 0; how many of the likeliest tokens on_logprobs hears of besides the one that was chosen */
  /* Called for each token, before on_text. NULL: nobody. */
  void (*on_logprobs)(void* user, const lb_token_logprobs* token);
} lb_generate_options;

/* size: sizeof(lb_generate_options), which becomes struct_size. Errors: LB_INVALID_ARGUMENT (shorter than the fields up to `user`). */
lb_status lb_generate_options_init2(lb_generate_options* options, size_t size);
/* The same for the fields up to `user`, which were the first version's: struct_size says that there are no others. */
void lb_generate_options_init(lb_generate_options* options);

/* Appends the prompt, then samples and appends tokens until the text ends, on_text stops it, max_tokens came or the context is
 * full. options may be NULL. tokens, capacity and count as above, of the tokens that were sampled. The last of them may not be
 * in the sequence: lb_model_length() tells. The logits are gone until the next token. */
lb_status lb_model_generate(lb_model* model, const int32_t* prompt, size_t prompt_count,
                            const lb_generate_options* options, int32_t* tokens, size_t capacity, size_t* count);

/* ---- Sessions ----
 *
 * More sequences of a model, beside the one that lb_model_prefill() and the like work on. Each is for one thread at a time. Those of one model
 * may run in different threads at once: what they ask for meanwhile is computed together, each with the bits that it would have alone, and the
 * weights are read once for all. A session keeps what it needs of its model alive, also after lb_model_close().
 */

typedef struct lb_session lb_session;

/* An empty sequence. *session is NULL after an error. */
lb_status lb_session_open(const lb_model* model, lb_session** session);
/* The same sequence once more, its logits too. Memory is shared until one of the two goes on otherwise. *fork is NULL after an error. */
lb_status lb_session_fork(const lb_session* session, lb_session** fork);
void lb_session_close(lb_session* session); /* NULL is allowed */

/* How long calls with this session, and with forks made of it later, wait for pages that others hold before they say LB_OUT_OF_MEMORY. 0,
 * as it begins: not at all. */
lb_status lb_session_wait_for_pages(lb_session* session, int64_t milliseconds);

/* As lb_model_length and the others, of this sequence. */
int64_t lb_session_length(const lb_session* session);
lb_status lb_session_prefill(lb_session* session, const int32_t* tokens, size_t count);
lb_status lb_session_decode(lb_session* session, int32_t token);
lb_status lb_session_logits(const lb_session* session, const float** logits, size_t* count);
lb_status lb_session_truncate(lb_session* session, int64_t length);
/* When pages run out in the middle, the error is LB_OUT_OF_MEMORY and the sequence keeps what was appended. */
lb_status lb_session_generate(lb_session* session, const int32_t* prompt, size_t prompt_count,
                              const lb_generate_options* options, int32_t* tokens, size_t capacity, size_t* count);

/* ---- Recurrent networks on integers ----
 *
 * A .lbgru file of `lowbit gru quantize`. Inputs and outputs are floats on the host; everything between is integers, with the
 * same bits on every device. One lb_gru may run from several threads at once; lb_gru_step keeps a state and may not.
 */

typedef struct lb_gru lb_gru;

typedef struct lb_gru_options {
  size_t struct_size; /* sizeof(lb_gru_options) */
  const char* device; /* "cpu", "cuda", "cuda:<i>"; "auto" and NULL are the CPU. Of lb_gru_run; steps are the CPU's */
  const char* isa;    /* "scalar", "avx2", "avxvnni", "avx512", "amx"; NULL: the best */
} lb_gru_options;

/* options may be NULL. *gru is NULL after an error. */
lb_status lb_gru_open(const char* path, const lb_gru_options* options, lb_gru** gru);
void lb_gru_close(lb_gru* gru); /* NULL is allowed */

int64_t lb_gru_input(const lb_gru* gru);      /* C */
int64_t lb_gru_output(const lb_gru* gru);     /* columns of y: H, twice that when the network runs in both directions */
int64_t lb_gru_state_size(const lb_gru* gru); /* sum of H over layers and directions */

/* Set all of it to zero first; fields may be added at the end. */
typedef struct lb_gru_run_args {
  size_t struct_size; /* sizeof(lb_gru_run_args) */
  int64_t steps, batch;
  int32_t batch_first;    /* 0: x is [steps, batch, C] and y [steps, batch, output]; else [batch, steps, .] */
  const float* x;         /* NaN is taken for 0, infinities for the ends of the range */
  const float* h0;        /* per layer and direction [batch, H], or NULL: zeros */
  const int64_t* lengths; /* [batch], 0..steps, or NULL: all of them */
  float* y;               /* 0 behind a sequence's end */
  float* final_state;     /* as h0, or NULL */
} lb_gru_run_args;

lb_status lb_gru_run(const lb_gru* gru, const lb_gru_run_args* args);
/* One time step of `batch` sequences, x [batch, C] to y [batch, output]; the state stays until the next one. Another batch than
 * the last call's starts anew. LB_UNSUPPORTED for networks in both directions. */
lb_status lb_gru_step(lb_gru* gru, const float* x, int64_t batch, float* y);
void lb_gru_reset(lb_gru* gru); /* the state of lb_gru_step to 0 */

#ifdef __cplusplus
}
#endif

#endif
