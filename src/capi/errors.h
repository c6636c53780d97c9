#pragma once
// Errors and exceptions at the C boundary.

#include <cxxabi.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#include "lowbit/error.h"
#include "lowbit/lowbit.h"

namespace lowbit::capi {

/// Keeps the message for lb_last_error() of this thread.
lb_status report(const Error& error);
lb_status report(lb_status status, const char* message);

/// A count of elements of `bytes` each that can be in memory: what wraps or is negative when it is told as int64 is
/// refused before anything is read.
inline Status check_count(const char* where, size_t count, size_t bytes) {
  if (count <= static_cast<size_t>(PTRDIFF_MAX) / bytes) return {};
  return fail(ErrorCode::kInvalidArgument, where, std::to_string(count),
              "at most " + std::to_string(static_cast<size_t>(PTRDIFF_MAX) / bytes));
}

/// Runs `work`, which returns a Status; nothing is thrown out of it, but for the end of a thread (pthread_exit in a
/// callback), which would end the process if it were held up.
template <class Work>
lb_status guarded(Work work) {
  try {
    const Status status = work();
    return status ? LB_OK : report(status.error());
  } catch (const std::bad_alloc&) {
    return report(LB_OUT_OF_MEMORY, "out of memory");
  } catch (const std::length_error&) {  // more elements than a vector can count
    return report(LB_OUT_OF_MEMORY, "out of memory");
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    return report(LB_INTERNAL, "an exception in lowbit: please report it");
  }
}

}  // namespace lowbit::capi
