/* What every call of lowbit/lowbit.h returns, and what the last one said. */
#ifndef LOWBIT_LOWBIT_STATUS_H
#define LOWBIT_LOWBIT_STATUS_H

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

#ifdef __cplusplus
}
#endif

#endif /* LOWBIT_LOWBIT_STATUS_H */
