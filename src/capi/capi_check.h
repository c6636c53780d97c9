#ifndef LOWBIT_CAPI_CHECK_H
#define LOWBIT_CAPI_CHECK_H
/* What the files of capi_test share. */

#include <stdio.h>

#include "lowbit/lowbit.h"

extern int failures;

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, lb_last_error()); \
      ++failures;                                                                 \
    }                                                                             \
  } while (0)

/* capi_counts_test.c */
void check_limits(void);
void check_counts(lb_model* model);
/* capi_fp8_test.c */
void check_fp8(void);
/* capi_operators_test.c */
void check_operators(void);
/* capi_session_test.c */
void check_sessions(const char* path);

#endif
