/* lowbit for C and everything that can call C.
 *
 * Sizes are explicit, handles are opaque, nothing is thrown. Every call returns LB_OK or what went wrong;
 * lb_last_error() tells the rest, per thread. Functions may be called from any thread; one lb_model, and one
 * lb_session, from one thread at a time, but for what is said below.
 *
 * Structs begin with their size, as the caller's header has it: set all of a struct to zero, then struct_size. A
 * library that is newer than the caller takes the fields that are missing as 0 or, where a function sets defaults, as
 * those. An older one accepts a longer struct whose unknown fields are zero, and says LB_UNSUPPORTED to others. A size
 * that no version has is LB_INVALID_ARGUMENT.
 */
#ifndef LOWBIT_LOWBIT_H
#define LOWBIT_LOWBIT_H

#include <stddef.h>
#include <stdint.h>

#include "lowbit/lowbit_operators.h"
#include "lowbit/lowbit_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Language models ---- */

typedef struct lb_model lb_model;

typedef struct lb_model_options {
  size_t struct_size;     /* sizeof(lb_model_options) */
  const char* activation; /* "auto" (NULL), "int8", "int8-row", "int8-clip", "int4", "fp8", "f16", "bf16", "f32" */
  const char* device;     /* "auto", "cpu", "cuda", "cuda:<i>"; NULL is "auto" */
  int64_t context;        /* positions; 0: what the model was trained for, at most 4096 */
  int32_t threads;        /* 0: physical cores */
  /* Positions that all sequences of the model have together, in pages of 64; forks share theirs. 0: as many as there is
     memory for */
  int64_t kv_positions;
  /* How keys and values are kept: "f16", or quantized as "fp8", "int8", "int4", "int3", "int2" or "kXvY" with X and Y
   * of 2, 3, 4 and 8; NULL is "f16" */
  const char* kv;
  int64_t
      kv_residual; /* newest positions that stay f16 beside quantized ones, in whole pages of 64. 0: 128; -1: none */
  /* Layers that stay f16: "first", "last" and numbers from 0 on, with commas between them. NULL: none */
  const char* kv_keep;
  /* Quantized keys and values of so many new positions are computed once more when there are as many again, in whole
     pages of 64. 0: never */
  int64_t kv_refresh;
  /* "LENGTH:FORMAT": what lies LENGTH positions or more behind is kept with fewer bits, as "4096:int2". NULL: nothing
     is */
  const char* kv_demote;
  int32_t exact; /* not 0: a GPU's attention and 16-bit x have the CPU's bits, and take longer */
} lb_model_options;

/* path: a checkpoint directory, a Hugging Face directory, a GGUF file, or "default". options may be NULL. *model is
 * NULL after an error. */
lb_status lb_model_open(const char* path, const lb_model_options* options, lb_model** model);
void lb_model_close(lb_model* model); /* NULL is allowed. Its sessions stay as they are */

/* This one, lb_session_open, lb_model_tokenize, _detokenize and _chat_text may be called in several threads at once,
 * beside any other call with the model but lb_model_close. */
int64_t lb_model_vocab_size(const lb_model* model);
int64_t lb_model_length(const lb_model* model); /* tokens in the sequence */
/* Appends tokens to the sequence. LB_OUT_OF_MEMORY: no page is left (kv_positions), and nothing was appended. */
lb_status lb_model_prefill(lb_model* model, const int32_t* tokens, size_t count);
lb_status lb_model_decode(lb_model* model, int32_t token);
/* Logits [vocab_size] after the last token; valid until the next call with this model. LB_NOT_FOUND before the first
   token. */
lb_status lb_model_logits(const lb_model* model, const float** logits, size_t* count);
/* Forgets all but the first `length` tokens. The logits are gone until the next token. */
lb_status lb_model_truncate(lb_model* model, int64_t length);

/* Text to token ids and back, by the model's own tokenizer. At most `capacity` of what comes goes to the array, which
 * may be NULL when capacity is 0; *count (*size) is how much there is: more than capacity means that the array was too
 * small. Texts are UTF-8 and need not end in a zero; the one that comes does not.
 * add_special: begin (and end) as the model wants it, for a whole prompt. parse_special: text such as "<|im_end|>"
 * becomes the token; 0 for text from users. lb_model_detokenize leaves special tokens out.
 * Errors: LB_INVALID_ARGUMENT (an id outside the vocabulary). Neither changes the sequence. */
lb_status lb_model_tokenize(const lb_model* model, const char* text, size_t text_size, int32_t add_special,
                            int32_t parse_special, int32_t* tokens, size_t capacity, size_t* count);
lb_status lb_model_detokenize(const lb_model* model, const int32_t* tokens, size_t count, char* text, size_t capacity,
                              size_t* size);

/* A conversation as the model's own template writes it, special tokens included: tokenize it with add_special 0 and
 * parse_special 1. variables: JSON, {"messages": [{"role": "user", "content": "Hi"}]} and what else the template may
 * look at; add_generation_prompt is true unless given. text, capacity and size as above.
 * Errors: LB_UNSUPPORTED (no template), LB_INVALID_ARGUMENT (not JSON; what the template refuses). */
lb_status lb_model_chat_text(const lb_model* model, const char* variables, size_t variables_size, char* text,
                             size_t capacity, size_t* size);

/* How likely the model held a token for, and others in its place: natural logarithms, of the logits before bias,
   penalties and temperature. */
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
  /* Called for each token: gets the text as it comes, whole UTF-8 characters without a zero at the end (size 0 while a
   * token completes none), and returns 0 to go on. NULL: nobody. It may ask for the model's length and vocabulary and
   * must not call other functions with this model, or this session where it is one's. */
  int32_t (*on_text)(void* user, const char* text, size_t size);
  void* user; /* handed to on_text, and to on_logprobs */
  /* What follows is of the second version: lb_generate_options_init2() sets it, and a shorter struct has these
     defaults. */
  float frequency_penalty; /* 0; from the logits of recent tokens, for each time that they are there */
  float presence_penalty;  /* 0; the same, once */
  int64_t repeat_window;   /* 64; how many tokens are recent for the three penalties, those of the prompt too */
  /* [bias_count]: ids, and what is added to their logits. Minus infinity forbids a token. */
  const int32_t* bias_tokens;
  const float* bias_values;
  size_t bias_count;
  /* [token_mask_words]: bit i % 32 of word i / 32 says that token i may be chosen. Behind the last word: no. A word of
     no token: 0. NULL: all may. */
  const uint32_t* token_mask;
  size_t token_mask_words;
  /* [stop_count], at most 64: UTF-8 that ends in a zero. The first one that is complete ends the generation, whatever
   * tokens spell it. Neither it nor what comes behind it is handed to on_text. */
  const char* const* stop_texts;
  size_t stop_count;
  int64_t top_logprobs; /* 0; how many of the likeliest tokens on_logprobs hears of besides the one that was chosen */
  /* Called for each token, before on_text. NULL: nobody. */
  void (*on_logprobs)(void* user, const lb_token_logprobs* token);
} lb_generate_options;

/* size: sizeof(lb_generate_options), which becomes struct_size. Errors: LB_INVALID_ARGUMENT (shorter than the fields up
   to `user`). */
lb_status lb_generate_options_init2(lb_generate_options* options, size_t size);
/* The same for the fields up to `user`, which were the first version's: struct_size says that there are no others. */
void lb_generate_options_init(lb_generate_options* options);

/* Appends the prompt, then samples and appends tokens until the text ends, on_text stops it, max_tokens came or the
 * context is full. options may be NULL. tokens, capacity and count as above, of the tokens that were sampled. The last
 * of them may not be in the sequence: lb_model_length() tells. The logits are gone until the next token. */
lb_status lb_model_generate(lb_model* model, const int32_t* prompt, size_t prompt_count,
                            const lb_generate_options* options, int32_t* tokens, size_t capacity, size_t* count);

/* ---- Sessions ----
 *
 * More sequences of a model, beside the one that lb_model_prefill() and the like work on. Each is for one thread at a
 * time. Those of one model may run in different threads at once: what they ask for meanwhile is computed together, each
 * with the bits that it would have alone, and the weights are read once for all. A session keeps what it needs of its
 * model alive, also after lb_model_close().
 */

typedef struct lb_session lb_session;

/* An empty sequence. *session is NULL after an error. */
lb_status lb_session_open(const lb_model* model, lb_session** session);
/* The same sequence once more, its logits too. Memory is shared until one of the two goes on otherwise. *fork is NULL
   after an error. */
lb_status lb_session_fork(const lb_session* session, lb_session** fork);
void lb_session_close(lb_session* session); /* NULL is allowed */

/* How long calls with this session, and with forks made of it later, wait for pages that others hold before they say
 * LB_OUT_OF_MEMORY. 0, as it begins: not at all. */
lb_status lb_session_wait_for_pages(lb_session* session, int64_t milliseconds);

/* To a file and back: tokens, logits, keys and values. A sequence that was loaded goes on with the bits of one that
 * never was saved. The file appears whole or not at all. Loading replaces what the session holds; LB_NOT_FOUND,
 * LB_CORRUPT (no session, or not all of one), LB_UNSUPPORTED (of another version) and LB_INVALID_ARGUMENT (of another
 * model, activation or KV format, or longer than the context) leave it as it was. */
lb_status lb_session_save(const lb_session* session, const char* path);
lb_status lb_session_load(lb_session* session, const char* path);
/* The sequence's tokens: *count is how many there are, of which tokens [capacity] gets the first. */
lb_status lb_session_tokens(const lb_session* session, int32_t* tokens, size_t capacity, size_t* count);

/* As lb_model_length and the others, of this sequence. */
int64_t lb_session_length(const lb_session* session);
lb_status lb_session_prefill(lb_session* session, const int32_t* tokens, size_t count);
lb_status lb_session_decode(lb_session* session, int32_t token);
/* lb_session_prefill() of `sessions` sessions of one model, each another one, in one call: session[i] appends
 * tokens[i][0 .. counts[i]). They read the weights together, and each has the logits that it would have alone. After an
 * error all are as they were, but have no logits. */
lb_status lb_session_prefill_together(lb_session* const* session, const int32_t* const* tokens, const size_t* counts,
                                      size_t sessions);
lb_status lb_session_logits(const lb_session* session, const float** logits, size_t* count);
lb_status lb_session_truncate(lb_session* session, int64_t length);
/* When pages run out in the middle, the error is LB_OUT_OF_MEMORY and the sequence keeps what was appended. */
lb_status lb_session_generate(lb_session* session, const int32_t* prompt, size_t prompt_count,
                              const lb_generate_options* options, int32_t* tokens, size_t capacity, size_t* count);

/* ---- Recurrent networks on integers ----
 *
 * A .lbgru file of `lowbit gru quantize`. Inputs and outputs are floats on the host; everything between is integers,
 * with the same bits on every device. One lb_gru may run from several threads at once; lb_gru_step keeps a state and
 * may not.
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
/* One time step of `batch` sequences, x [batch, C] to y [batch, output]; the state stays until the next one. Another
 * batch than the last call's starts anew. LB_UNSUPPORTED for networks in both directions. */
lb_status lb_gru_step(lb_gru* gru, const float* x, int64_t batch, float* y);
void lb_gru_reset(lb_gru* gru); /* the state of lb_gru_step to 0 */

#ifdef __cplusplus
}
#endif

#endif
