#pragma once
// Errors and exceptions at the C boundary.

#include <new>

#include "lowbit/error.h"
#include "lowbit/lowbit.h"

namespace lowbit::capi {

/// Keeps the message for lb_last_error() of this thread.
lb_status report(const Error& error);
lb_status report(lb_status status, const char* message);

/// Runs `work`, which returns a Status; nothing is thrown out of it.
template <class Work>
lb_status guarded(Work work) {
  try {
    const Status status = work();
    return status ? LB_OK : report(status.error());
  } catch (const std::bad_alloc&) {
    return report(LB_OUT_OF_MEMORY, "out of memory");
  } catch (...) {
    return report(LB_INTERNAL, "an exception in lowbit: please report it");
  }
}

}  // namespace lowbit::capi
