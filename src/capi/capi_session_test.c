/* Sessions of one model, and structs of older and newer headers. */

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "capi_check.h"

enum { kThreads = 4, kNew = 24 };

static const int32_t kPrompt[6] = {1, 403, 407, 261, 378, 5};

static lb_model* open_model(const char* path, int64_t context, int64_t kv_positions) {
  lb_model* model = NULL;
  const lb_model_options options = {sizeof options, "f32", "cpu", context, 2, kv_positions, NULL, 0};
  CHECK(lb_model_open(path, &options, &model) == LB_OK);
  return model;
}

/* Whether the logits of a session are those of a model that reads the same tokens. */
static int same_logits(lb_model* model, const lb_session* session, const int32_t* tokens, size_t count) {
  const float *a = NULL, *b = NULL;
  size_t count_a = 0, count_b = 0;
  CHECK(lb_model_truncate(model, 0) == LB_OK && lb_model_prefill(model, tokens, count) == LB_OK);
  CHECK(lb_model_logits(model, &a, &count_a) == LB_OK);
  CHECK(lb_session_logits(session, &b, &count_b) == LB_OK);
  return count_a == count_b && count_a > 0 && memcmp(a, b, count_a * sizeof *a) == 0;
}

static void check_forks(lb_model* model) {
  lb_session *one = NULL, *two = NULL;
  const float* logits = NULL;
  size_t count = 0;
  CHECK(lb_model_truncate(model, 0) == LB_OK && lb_model_prefill(model, kPrompt, 2) == LB_OK);
  CHECK(lb_session_open(model, &one) == LB_OK && lb_session_length(one) == 0);
  CHECK(lb_session_logits(one, &logits, &count) == LB_NOT_FOUND);
  CHECK(lb_session_prefill(one, kPrompt, 3) == LB_OK && lb_session_length(one) == 3);
  CHECK(lb_model_length(model) == 2); /* the model's own sequence is another one */
  CHECK(lb_session_fork(one, &two) == LB_OK && lb_session_length(two) == 3);
  CHECK(same_logits(model, two, kPrompt, 3)); /* a fork can be sampled from at once */
  CHECK(lb_session_decode(one, 9) == LB_OK && lb_session_decode(two, 10) == LB_OK);
  const int32_t first[4] = {kPrompt[0], kPrompt[1], kPrompt[2], 9};
  const int32_t second[4] = {kPrompt[0], kPrompt[1], kPrompt[2], 10};
  CHECK(same_logits(model, one, first, 4) && same_logits(model, two, second, 4));
  CHECK(lb_session_truncate(one, 5) == LB_INVALID_ARGUMENT && lb_session_truncate(one, -1) == LB_INVALID_ARGUMENT);
  CHECK(same_logits(model, one, first, 4)); /* what is refused changes nothing */
  CHECK(lb_session_truncate(one, 2) == LB_OK && lb_session_length(one) == 2);
  CHECK(lb_session_logits(one, &logits, &count) == LB_NOT_FOUND);
  CHECK(lb_session_prefill(one, kPrompt + 2, 4) == LB_OK && same_logits(model, one, kPrompt, 6));
  CHECK(lb_session_decode(one, -1) == LB_INVALID_ARGUMENT && lb_session_length(one) == 6);
  lb_session_close(one);
  CHECK(lb_session_decode(two, 9) == LB_OK); /* on its own */
  lb_session_close(two);
}

static void check_together(lb_model* model, lb_model* other) {
  lb_session *one = NULL, *two = NULL, *third = NULL;
  CHECK(lb_session_open(model, &one) == LB_OK && lb_session_open(model, &two) == LB_OK &&
        lb_session_open(other, &third) == LB_OK);
  CHECK(lb_session_prefill(one, kPrompt, 2) == LB_OK);
  lb_session* both[2] = {one, two};
  const int32_t* tokens[2] = {kPrompt + 2, kPrompt};
  const size_t counts[2] = {1, 5};
  CHECK(lb_session_prefill_together(both, tokens, counts, 2) == LB_OK);
  CHECK(lb_session_length(one) == 3 && lb_session_length(two) == 5);
  CHECK(same_logits(model, one, kPrompt, 3) && same_logits(model, two, kPrompt, 5));
  int32_t kept[8];
  size_t kept_count = 0;
  CHECK(lb_session_tokens(two, kept, 8, &kept_count) == LB_OK && kept_count == 5 &&
        memcmp(kept, kPrompt, sizeof kPrompt[0] * 5) == 0);
  /* What is refused changes no sequence. */
  const float* logits = NULL;
  size_t count = 0;
  lb_session* twice[2] = {one, one};
  CHECK(lb_session_prefill_together(twice, tokens, counts, 2) == LB_INVALID_ARGUMENT);
  lb_session* foreign[2] = {one, third};
  CHECK(lb_session_prefill_together(foreign, tokens, counts, 2) == LB_INVALID_ARGUMENT);
  CHECK(strstr(lb_last_error(), "another model") != NULL);
  lb_session* none[2] = {one, NULL};
  CHECK(lb_session_prefill_together(none, tokens, counts, 2) == LB_INVALID_ARGUMENT);
  const int32_t bad[1] = {-1};
  const int32_t* one_bad[2] = {kPrompt, bad};
  const size_t ones[2] = {1, 1};
  CHECK(lb_session_prefill_together(both, one_bad, ones, 2) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_prefill_together(both, tokens, NULL, 2) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_prefill_together(both, tokens, counts, SIZE_MAX) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_prefill_together(NULL, NULL, NULL, 0) == LB_OK);
  CHECK(lb_session_length(one) == 3 && lb_session_length(two) == 5);
  CHECK(lb_session_logits(two, &logits, &count) == LB_NOT_FOUND);
  CHECK(lb_session_decode(two, kPrompt[5]) == LB_OK && same_logits(model, two, kPrompt, 6));
  lb_session_close(one);
  lb_session_close(two);
  lb_session_close(third);
}

/* A model's own sequence is none of its sessions, and those do not need it. */
static void check_lifetimes(const char* path, lb_model* other) {
  lb_model* model = open_model(path, 64, 0);
  lb_session *one = NULL, *two = NULL;
  CHECK(lb_session_open(model, &one) == LB_OK && lb_session_prefill(one, kPrompt, 3) == LB_OK);
  lb_model_close(model);
  CHECK(lb_session_fork(one, &two) == LB_OK);
  lb_session_close(one);
  CHECK(lb_session_prefill(two, kPrompt + 3, 3) == LB_OK && same_logits(other, two, kPrompt, 6));
  lb_session_close(two);
}

/* A file of a session goes on where it was; what cannot be loaded changes nothing. */
static void check_files(lb_model* model) {
  const char* const folder = getenv("TMPDIR");
  char path[512];
  snprintf(path, sizeof path, "%s/lowbit-capi-session-%ld", folder != NULL ? folder : "/tmp", (long)getpid());
  lb_session *one = NULL, *two = NULL;
  int32_t tokens[8] = {0};
  size_t count = 0;
  CHECK(lb_session_open(model, &one) == LB_OK && lb_session_prefill(one, kPrompt, 5) == LB_OK);
  CHECK(lb_session_save(one, path) == LB_OK);
  CHECK(lb_session_open(model, &two) == LB_OK && lb_session_prefill(two, kPrompt, 1) == LB_OK);
  CHECK(lb_session_load(two, path) == LB_OK && lb_session_length(two) == 5 && same_logits(model, two, kPrompt, 5));
  CHECK(lb_session_tokens(two, tokens, 8, &count) == LB_OK && count == 5 && memcmp(tokens, kPrompt, 20) == 0);
  CHECK(lb_session_tokens(two, tokens, 0, &count) == LB_OK && count == 5);
  CHECK(lb_session_prefill(two, kPrompt + 5, 1) == LB_OK && same_logits(model, two, kPrompt, 6));
  CHECK(remove(path) == 0 && lb_session_load(two, path) == LB_NOT_FOUND && lb_session_length(two) == 6);
  CHECK(lb_session_save(NULL, path) == LB_INVALID_ARGUMENT && lb_session_save(one, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_load(NULL, path) == LB_INVALID_ARGUMENT && lb_session_load(one, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_tokens(one, NULL, 1, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_tokens(one, tokens, 8, NULL) == LB_INVALID_ARGUMENT);
  lb_session_close(one);
  lb_session_close(two);
}

typedef struct job {
  lb_session* session;
  size_t prompt, count;
  uint64_t seed;
  int32_t tokens[kNew];
  lb_status status;
} job;

static void* run(void* argument) {
  job* j = argument;
  lb_generate_options options;
  lb_generate_options_init2(&options, sizeof options);
  options.max_tokens = kNew;
  options.seed = j->seed;
  options.ignore_eos = 1;
  j->status = lb_session_generate(j->session, kPrompt, j->prompt, &options, j->tokens, kNew, &j->count);
  return NULL;
}

/* Threads that generate at once write what each writes alone. */
static void check_threads(lb_model* model) {
  job alone[kThreads], together[kThreads];
  pthread_t threads[kThreads];
  lb_session* prefix = NULL;
  memset(alone, 0, sizeof alone);
  CHECK(lb_session_open(model, &prefix) == LB_OK && lb_session_prefill(prefix, kPrompt, 6) == LB_OK);
  for (int i = 0; i < kThreads; ++i) {
    alone[i].prompt = (size_t)i + 2;
    alone[i].seed = (uint64_t)i;
    together[i] = alone[i];
    for (job* j = &alone[i]; j != NULL; j = j == &alone[i] ? &together[i] : NULL)
      CHECK((i % 2 ? lb_session_fork(prefix, &j->session) : lb_session_open(model, &j->session)) == LB_OK);
    run(&alone[i]);
    CHECK(alone[i].status == LB_OK && alone[i].count == kNew);
  }
  for (int i = 0; i < kThreads; ++i) CHECK(pthread_create(&threads[i], NULL, run, &together[i]) == 0);
  for (int i = 0; i < kThreads; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < kThreads; ++i) {
    CHECK(together[i].status == LB_OK && together[i].count == kNew);
    CHECK(memcmp(together[i].tokens, alone[i].tokens, sizeof alone[i].tokens) == 0);
    for (int k = 0; k < i; ++k) CHECK(memcmp(alone[i].tokens, alone[k].tokens, sizeof alone[i].tokens) != 0);
    lb_session_close(alone[i].session);
    lb_session_close(together[i].session);
  }
  lb_session_close(prefix);
}

static void* close_soon(void* session) {
  const struct timespec some = {0, 50 * 1000 * 1000};
  nanosleep(&some, NULL);
  lb_session_close(session);
  return NULL;
}

/* Two pages of 64 positions, three sessions. */
static void check_pages(const char* path) {
  lb_model* model = open_model(path, 64, 128);
  lb_session *one = NULL, *two = NULL, *three = NULL, *fork = NULL;
  pthread_t closer;
  CHECK(lb_session_open(model, &one) == LB_OK && lb_session_open(model, &two) == LB_OK);
  CHECK(lb_session_open(model, &three) == LB_OK);
  CHECK(lb_session_prefill(one, kPrompt, 3) == LB_OK && lb_session_prefill(two, kPrompt, 3) == LB_OK);
  CHECK(lb_session_prefill(three, kPrompt, 3) == LB_OUT_OF_MEMORY && lb_last_error()[0] != '\0');
  CHECK(lb_session_length(three) == 0);
  CHECK(lb_model_prefill(model, kPrompt, 3) == LB_OUT_OF_MEMORY);
  job j = {three, 3, 0, 0, {0}, LB_OK};
  run(&j);
  CHECK(j.status == LB_OUT_OF_MEMORY);
  CHECK(lb_session_decode(one, 5) == LB_OK && lb_session_decode(two, 5) == LB_OK); /* the others go on */
  CHECK(lb_session_wait_for_pages(three, 20) == LB_OK);
  CHECK(lb_session_prefill(three, kPrompt, 3) == LB_OUT_OF_MEMORY); /* nobody gave any back */
  CHECK(lb_session_wait_for_pages(three, INT64_MAX) == LB_OK);
  CHECK(pthread_create(&closer, NULL, close_soon, two) == 0);
  CHECK(lb_session_prefill(three, kPrompt, 3) == LB_OK && lb_session_length(three) == 3);
  CHECK(pthread_join(closer, NULL) == 0);
  /* A fork that goes on needs a page of its own, until it is the only one who has the page. */
  CHECK(lb_session_fork(one, &fork) == LB_OK && lb_session_decode(fork, 5) == LB_OUT_OF_MEMORY);
  CHECK(lb_session_length(fork) == 4 && lb_session_wait_for_pages(fork, 30000) == LB_OK);
  const time_t began = time(NULL);
  CHECK(pthread_create(&closer, NULL, close_soon, one) == 0);
  CHECK(lb_session_decode(fork, 5) == LB_OK && time(NULL) - began < 20);
  CHECK(pthread_join(closer, NULL) == 0);
  lb_session_close(fork);
  lb_session_close(three);
  lb_model_close(model);
}

static void check_nulls(lb_model* model) {
  lb_session* session = NULL;
  const float* logits = NULL;
  size_t count = 0;
  CHECK(lb_session_open(model, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_open(model, &session) == LB_OK);
  lb_session* none = session;
  CHECK(lb_session_open(NULL, &none) == LB_INVALID_ARGUMENT && none == NULL);
  none = session;
  CHECK(lb_session_fork(NULL, &none) == LB_INVALID_ARGUMENT && none == NULL);
  CHECK(lb_session_fork(session, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_prefill(NULL, kPrompt, 1) == LB_INVALID_ARGUMENT);
  CHECK(strstr(lb_last_error(), "lb_session_prefill") != NULL);
  CHECK(lb_session_prefill(session, NULL, 1) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_prefill(session, kPrompt, SIZE_MAX / 4 + 1) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_prefill(session, kPrompt, 0) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_decode(NULL, 1) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_logits(NULL, &logits, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_decode(session, 1) == LB_OK);
  CHECK(lb_session_logits(session, NULL, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_logits(session, &logits, NULL) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_truncate(NULL, 0) == LB_INVALID_ARGUMENT && lb_session_length(NULL) == 0);
  CHECK(lb_session_wait_for_pages(NULL, 0) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_wait_for_pages(session, -1) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_generate(NULL, kPrompt, 1, NULL, NULL, 0, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_generate(session, NULL, 1, NULL, NULL, 0, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_generate(session, kPrompt, 1, NULL, NULL, 1, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_generate(session, kPrompt, SIZE_MAX, NULL, NULL, 0, &count) == LB_INVALID_ARGUMENT);
  CHECK(lb_session_length(session) == 1);
  lb_session_close(session);
  lb_session_close(NULL);
}

/* Memory of exactly `size` bytes, so that a sanitizer sees who reads or writes beyond. A struct's first version is
 * shorter than its type, of which compilers that see the size warn. */
static void* exact(const void* from, size_t size) {
  void* volatile bytes = malloc(size);
  memcpy(bytes, from, size);
  return bytes;
}

typedef struct chosen {
  int32_t tokens[8];
  float logprobs[8];
  int calls, wrong;
} chosen;

static void hear_logprobs(void* user, const lb_token_logprobs* token) {
  chosen* c = user;
  c->wrong +=
      token->struct_size != sizeof *token || token->top_count != 3 || token->top_logprobs[0] < token->top_logprobs[2];
  c->wrong += token->top_tokens[0] != token->token || token->top_logprobs[0] != token->logprob; /* at temperature 0 */
  c->tokens[c->calls] = token->token;
  c->logprobs[c->calls++] = token->logprob;
}

static int never_heard(void* user, const char* text, size_t size) {
  (void)user, (void)text;
  return size > 0;
}

static void check_sampling_options(lb_model* model) {
  int32_t plain[8], got[8];
  size_t count = 0;
  chosen c = {{0}, {0}, 0, 0};
  lb_generate_options o;
  CHECK(lb_generate_options_init2(&o, sizeof o) == LB_OK && o.repeat_window == 64 && o.stop_count == 0);
  o.max_tokens = 8;
  o.temperature = 0;
  o.ignore_eos = 1;
  o.top_logprobs = 3;
  o.on_logprobs = hear_logprobs;
  o.user = &c;
  CHECK(lb_model_truncate(model, 0) == LB_OK);
  CHECK(lb_model_generate(model, kPrompt, 2, &o, plain, 8, &count) == LB_OK && count == 8);
  CHECK(c.calls == 8 && c.wrong == 0 && memcmp(c.tokens, plain, sizeof plain) == 0 && c.logprobs[0] < 0);
  o.on_logprobs = NULL;

  const int32_t first = plain[0];
  const float never = -INFINITY;
  o.bias_tokens = &first;
  o.bias_values = &never;
  o.bias_count = 1;
  CHECK(lb_model_truncate(model, 0) == LB_OK);
  CHECK(lb_model_generate(model, kPrompt, 2, &o, got, 8, &count) == LB_OK && count == 8);
  for (int i = 0; i < 8; ++i) CHECK(got[i] != first);
  o.bias_count = 0;

  uint32_t mask[16] = {0}; /* of 512 tokens */
  CHECK(first < 512);
  mask[first / 32 % 16] = 1u << first % 32;
  o.token_mask = mask;
  o.token_mask_words = 16;
  CHECK(lb_model_truncate(model, 0) == LB_OK);
  CHECK(lb_model_generate(model, kPrompt, 2, &o, got, 8, &count) == LB_OK && count == 8);
  for (int i = 0; i < 8; ++i) CHECK(got[i] == first);
  o.token_mask_words = 0;

  char text[64] = {0};
  size_t size = 0;
  CHECK(lb_model_detokenize(model, plain, 3, text, sizeof text - 1, &size) == LB_OK && size > 0);
  const char* stops[2] = {"\n\n\n\n", text};
  o.stop_texts = stops;
  o.stop_count = 2;
  o.on_text = never_heard; /* all that comes may begin the text that ends it */
  CHECK(lb_model_truncate(model, 0) == LB_OK);
  CHECK(lb_model_generate(model, kPrompt, 2, &o, got, 8, &count) == LB_OK && count == 3);
  CHECK(memcmp(got, plain, 3 * sizeof *got) == 0);
  stops[0] = "";
  CHECK(lb_model_generate(model, kPrompt, 2, &o, got, 8, &count) == LB_INVALID_ARGUMENT);
  stops[0] = NULL;
  CHECK(lb_model_generate(model, kPrompt, 2, &o, got, 8, &count) == LB_INVALID_ARGUMENT);
  o.stop_texts = NULL;
  CHECK(lb_model_generate(model, kPrompt, 2, &o, got, 8, &count) == LB_INVALID_ARGUMENT);
  o.stop_count = 0;
  o.bias_tokens = NULL;
  o.bias_count = SIZE_MAX;
  CHECK(lb_model_generate(model, kPrompt, 2, &o, got, 8, &count) == LB_INVALID_ARGUMENT);
  o.bias_tokens = &first;
  CHECK(lb_model_generate(model, kPrompt, 2, &o, got, 8, &count) == LB_INVALID_ARGUMENT);
  o.bias_count = 0;
  o.presence_penalty = NAN;
  CHECK(lb_model_generate(model, kPrompt, 2, &o, got, 8, &count) == LB_INVALID_ARGUMENT);
  o.presence_penalty = 0;
  o.top_logprobs = -1;
  CHECK(lb_model_generate(model, kPrompt, 2, &o, got, 8, &count) == LB_INVALID_ARGUMENT);
}

static void check_generate_options_size(lb_model* model) {
  enum { kFirst = offsetof(lb_generate_options, user) + sizeof(void*) };
  struct {
    lb_generate_options known;
    int64_t later[2];
  } newer, zeros;
  size_t count = 0;
  memset(&newer, 0x5a, sizeof newer);
  lb_generate_options_init(&newer.known); /* of a program with a newer header */
  CHECK(newer.known.struct_size == kFirst && newer.known.max_tokens == 128);
  for (size_t i = kFirst; i < sizeof newer; ++i) CHECK(((const unsigned char*)&newer)[i] == 0x5a);
  memset(&zeros, 0x5a, sizeof zeros);
  CHECK(lb_generate_options_init2(&zeros.known, sizeof zeros) == LB_OK && zeros.known.struct_size == sizeof zeros);
  CHECK(zeros.later[0] == 0 && zeros.later[1] == 0 && zeros.known.top_k == 40);
  CHECK(lb_generate_options_init2(NULL, sizeof zeros) == LB_INVALID_ARGUMENT);
  CHECK(lb_generate_options_init2(&zeros.known, kFirst - 1) == LB_INVALID_ARGUMENT);
  CHECK(lb_generate_options_init2(&zeros.known, SIZE_MAX) == LB_INVALID_ARGUMENT);

  lb_generate_options* first = exact(&newer.known, kFirst);
  first->max_tokens = zeros.known.max_tokens = 3;
  int32_t a[3] = {0}, b[3] = {0};
  CHECK(lb_model_truncate(model, 0) == LB_OK);
  CHECK(lb_model_generate(model, kPrompt, 2, first, a, 3, &count) == LB_OK && count == 3);
  CHECK(lb_model_truncate(model, 0) == LB_OK);
  CHECK(lb_model_generate(model, kPrompt, 2, &zeros.known, b, 3, &count) == LB_OK && count == 3);
  CHECK(memcmp(a, b, sizeof a) == 0);
  zeros.later[1] = 1;
  CHECK(lb_model_generate(model, kPrompt, 2, &zeros.known, b, 3, &count) == LB_UNSUPPORTED);
  CHECK(strstr(lb_last_error(), "got 88 bytes") != NULL || sizeof zeros != 88);
  first->struct_size = kFirst - 4;
  CHECK(lb_model_generate(model, kPrompt, 2, first, a, 3, &count) == LB_INVALID_ARGUMENT);
  free(first);
}

static void check_model_options_size(const char* path) {
  enum { kFirst = offsetof(lb_model_options, kv_positions) };
  struct {
    lb_model_options known;
    unsigned char later;
  } newer;
  lb_model* model = NULL;
  memset(&newer, 0, sizeof newer);
  newer.known.device = "cpu";
  newer.known.context = 32;
  newer.known.threads = 1;
  newer.known.struct_size = kFirst;
  lb_model_options* first = exact(&newer.known, kFirst);
  CHECK(lb_model_open(path, first, &model) == LB_OK);
  lb_model_close(model);
  free(first);
  const struct {
    size_t size;
    unsigned char later;
    int64_t kv_positions;
    lb_status wanted;
  } cases[] = {{sizeof newer, 0, 0, LB_OK},
               {sizeof newer, 1, 0, LB_UNSUPPORTED},
               {sizeof newer.known, 1, 0, LB_OK}, /* the byte is not the struct's */
               {sizeof newer.known, 0, -1, LB_INVALID_ARGUMENT},
               {sizeof newer.known, 0, INT64_MAX, LB_INVALID_ARGUMENT},
               {kFirst, 0, -1, LB_OK}, /* nor is kv_positions */
               {kFirst - 1, 0, 0, LB_INVALID_ARGUMENT},
               {kFirst + 1, 0, 0, LB_INVALID_ARGUMENT},
               {0, 0, 0, LB_INVALID_ARGUMENT},
               {SIZE_MAX, 0, 0, LB_INVALID_ARGUMENT}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    newer.known.struct_size = cases[i].size;
    newer.known.kv_positions = cases[i].kv_positions;
    newer.later = cases[i].later;
    const lb_status got = lb_model_open(path, &newer.known, &model);
    if (got != cases[i].wanted) printf("struct_size %zu: %s\n", cases[i].size, lb_status_name(got));
    CHECK(got == cases[i].wanted && (got == LB_OK) == (model != NULL));
    lb_model_close(model);
  }
}

static void check_kv_formats(const char* path) {
  const struct {
    const char* kv;
    int64_t residual;
    lb_status wanted;
    const char* says;
  } cases[] = {{NULL, 0, LB_OK, ""},
               {"f16", 0, LB_OK, ""},
               {"f16", 64, LB_OK, ""},
               {"f16", -1, LB_OK, ""},
               {"f16", -2, LB_INVALID_ARGUMENT, "kv_residual"},
               {"int5", 0, LB_INVALID_ARGUMENT, "'int5'"},
               {"", INT64_MAX, LB_INVALID_ARGUMENT, "residual"},
               {"int4", -1, LB_UNSUPPORTED, "int4 of heads of 8"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const lb_model_options options = {sizeof options, "f32", "cpu", 64, 1, 0, cases[i].kv, cases[i].residual};
    lb_model* model = NULL;
    const lb_status got = lb_model_open(path, &options, &model);
    if (got != cases[i].wanted) printf("kv %zu: %s\n", i, lb_last_error());
    CHECK(got == cases[i].wanted && (got == LB_OK || strstr(lb_last_error(), cases[i].says) != NULL));
    lb_model_close(model);
  }
  for (int demotes = 0; demotes < 2; ++demotes) {
    lb_model_options options = {sizeof options, "f32", "cpu", 64, 1, 0, "f16", 0};
    options.kv_refresh = demotes ? 0 : 256;
    options.kv_demote = demotes ? "512:int2" : NULL;
    lb_model* model = NULL;
    CHECK(lb_model_open(path, &options, &model) == LB_INVALID_ARGUMENT && model == NULL);
    CHECK(strstr(lb_last_error(), demotes ? "--kv-demote" : "--kv-refresh") != NULL);
  }
  /* A program that was compiled before there was a choice. */
  lb_model_options old = {offsetof(lb_model_options, kv), "f32", "cpu", 64, 1, 0, (const char*)1, -5};
  lb_model_options* exactly = exact(&old, offsetof(lb_model_options, kv));
  lb_model* model = NULL;
  CHECK(lb_model_open(path, exactly, &model) == LB_OK);
  lb_model_close(model);
  free(exactly);
}

void check_sessions(const char* path) {
  lb_model* model = open_model(path, 64, 0);
  check_files(model);
  check_forks(model);
  lb_model* other = open_model(path, 64, 0);
  check_together(model, other);
  lb_model_close(other);
  check_lifetimes(path, model);
  check_threads(model);
  check_nulls(model);
  check_generate_options_size(model);
  check_sampling_options(model);
  lb_model_close(model);
  check_pages(path);
  check_model_options_size(path);
  check_kv_formats(path);
}
