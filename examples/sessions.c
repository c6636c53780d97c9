/* Several continuations of one prompt, written at once: a session reads the prompt, and its forks go on from there in
 * threads of their own.
 *
 *   example_sessions MODEL [SESSIONS] [TOKENS] [PROMPT]
 *
 * Prints each text behind its number, which is its seed, and on stderr how many tokens a second came from all of them
 * together. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lowbit/lowbit.h"

enum { kMostSessions = 256, kMostPrompt = 4096 };

typedef struct writer {
  lb_session* session;
  lb_generate_options options;
  int32_t last;    /* of the prompt */
  int32_t* tokens; /* [options.max_tokens] */
  size_t count;
  lb_status status;
  char error[256];
} writer;

static void* write_text(void* argument) {
  writer* w = argument;
  w->status =
      lb_session_generate(w->session, &w->last, 1, &w->options, w->tokens, (size_t)w->options.max_tokens, &w->count);
  if (w->status != LB_OK) snprintf(w->error, sizeof w->error, "%s", lb_last_error()); /* the text is this thread's */
  return NULL;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fail(const char* message) {
  fprintf(stderr, "%s\n", message);
  return 1;
}

static int print_text(const lb_model* model, const writer* w, int number) {
  size_t size = 0;
  if (lb_model_detokenize(model, w->tokens, w->count, NULL, 0, &size) != LB_OK) return fail(lb_last_error());
  char* text = malloc(size + 1);
  if (text == NULL || lb_model_detokenize(model, w->tokens, w->count, text, size, &size) != LB_OK)
    return free(text), fail(lb_last_error());
  printf("%d: ", number);
  fwrite(text, 1, size, stdout);
  puts("");
  free(text);
  return 0;
}

/* The forks of `prefix`, each with a seed of its own, in threads. */
static int write_texts(const lb_model* model, const lb_session* prefix, int32_t last, int sessions, int64_t tokens) {
  static writer writers[kMostSessions];
  static pthread_t threads[kMostSessions];
  for (int i = 0; i < sessions; ++i) {
    writer* w = &writers[i];
    lb_generate_options_init2(&w->options, sizeof w->options);
    w->options.max_tokens = tokens;
    w->options.seed = (uint64_t)i;
    w->options.ignore_eos = 1;
    w->last = last;
    w->tokens = malloc((size_t)tokens * sizeof *w->tokens);
    if (w->tokens == NULL) return fail("out of memory");
    if (lb_session_fork(prefix, &w->session) != LB_OK) return fail(lb_last_error());
  }
  const double began = now();
  for (int i = 0; i < sessions; ++i)
    if (pthread_create(&threads[i], NULL, write_text, &writers[i]) != 0) return fail("no more threads");
  for (int i = 0; i < sessions; ++i) pthread_join(threads[i], NULL);
  const double seconds = now() - began;
  size_t all = 0;
  for (int i = 0; i < sessions; ++i) {
    if (writers[i].status != LB_OK) return fail(writers[i].error);
    if (print_text(model, &writers[i], i) != 0) return 1;
    all += writers[i].count;
    lb_session_close(writers[i].session);
    free(writers[i].tokens);
  }
  fprintf(stderr, "%d sessions: %.1f tokens/s together\n", sessions, (double)all / seconds);
  return 0;
}

int main(int argc, char** argv) {
  const int sessions = argc > 2 ? atoi(argv[2]) : 4;
  const int64_t tokens = argc > 3 ? atoll(argv[3]) : 32;
  const char* prompt = argc > 4 ? argv[4] : "Once upon a time";
  if (argc < 2 || sessions < 1 || sessions > kMostSessions || tokens < 1 || tokens > 1 << 20)
    return fail("usage: example_sessions MODEL [SESSIONS] [TOKENS] [PROMPT]"), 2;
  static int32_t ids[kMostPrompt];
  size_t count = 0;
  lb_model* model = NULL;
  lb_session* prefix = NULL;
  if (lb_model_open(argv[1], NULL, &model) != LB_OK || lb_session_open(model, &prefix) != LB_OK ||
      lb_model_tokenize(model, prompt, strlen(prompt), 1, 0, ids, kMostPrompt, &count) != LB_OK)
    return fail(lb_last_error());
  if (count == 0 || count > kMostPrompt) return fail("a prompt of 1 to 4096 tokens is wanted");
  /* All but the last token: the forks begin with that one. */
  if (count > 1 && lb_session_prefill(prefix, ids, count - 1) != LB_OK) return fail(lb_last_error());
  const int status = write_texts(model, prefix, ids[count - 1], sessions, tokens);
  lb_session_close(prefix);
  lb_model_close(model);
  return status;
}
