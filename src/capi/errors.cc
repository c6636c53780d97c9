#include "capi/errors.h"

#include <cstdio>
#include <string>

#include "lowbit/compute.h"

namespace lowbit::capi {
namespace {

// A fixed size: telling of an error must not need memory.
thread_local char last_error[1024] = "";

/// The codes of both enumerations follow each other in one order; 0 is LB_OK.
constexpr lb_status status_of(ErrorCode code) { return static_cast<lb_status>(static_cast<int>(code) + 1); }
static_assert(status_of(ErrorCode::kInvalidArgument) == LB_INVALID_ARGUMENT &&
              status_of(ErrorCode::kShapeMismatch) == LB_SHAPE_MISMATCH &&
              status_of(ErrorCode::kUnsupported) == LB_UNSUPPORTED && status_of(ErrorCode::kNotFound) == LB_NOT_FOUND &&
              status_of(ErrorCode::kIo) == LB_IO && status_of(ErrorCode::kCorrupt) == LB_CORRUPT &&
              status_of(ErrorCode::kOutOfMemory) == LB_OUT_OF_MEMORY &&
              status_of(ErrorCode::kCancelled) == LB_CANCELLED);

}  // namespace

lb_status report(lb_status status, const char* message) {
  std::snprintf(last_error, sizeof last_error, "%s", message);
  return status;
}

lb_status report(const Error& error) { return report(status_of(error.code), error.message().c_str()); }

}  // namespace lowbit::capi

extern "C" {

const char* lb_version(void) { return lowbit::version(); }
const char* lb_last_error(void) { return lowbit::capi::last_error; }

const char* lb_status_name(lb_status status) {
  if (status == LB_OK) return "ok";
  if (status == LB_INTERNAL) return "internal";
  return lowbit::error_code_name(static_cast<lowbit::ErrorCode>(static_cast<int>(status) - 1));
}

}  // extern "C"
