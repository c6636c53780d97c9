#include "capi/errors.h"

#include <cstdio>
#include <string>

#include "lowbit/compute.h"

namespace lowbit::capi {
namespace {

// A fixed size: telling of an error must not need memory.
thread_local char last_error[1024] = "";

}  // namespace

lb_status report(lb_status status, const char* message) {
  std::snprintf(last_error, sizeof last_error, "%s", message);
  return status;
}

lb_status report(const Error& error) {
  lb_status status = LB_INTERNAL;
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      status = LB_INVALID_ARGUMENT;
      break;
    case ErrorCode::kShapeMismatch:
      status = LB_SHAPE_MISMATCH;
      break;
    case ErrorCode::kUnsupported:
      status = LB_UNSUPPORTED;
      break;
    case ErrorCode::kNotFound:
      status = LB_NOT_FOUND;
      break;
    case ErrorCode::kIo:
      status = LB_IO;
      break;
    case ErrorCode::kCorrupt:
      status = LB_CORRUPT;
      break;
    case ErrorCode::kOutOfMemory:
      status = LB_OUT_OF_MEMORY;
      break;
    case ErrorCode::kCancelled:
      status = LB_CANCELLED;
      break;
  }
  return report(status, error.message().c_str());
}

}  // namespace lowbit::capi

extern "C" {

const char* lb_version(void) { return lowbit::version(); }
const char* lb_last_error(void) { return lowbit::capi::last_error; }

const char* lb_status_name(lb_status status) {
  switch (status) {
    case LB_OK:
      return "ok";
    case LB_INVALID_ARGUMENT:
      return "invalid_argument";
    case LB_SHAPE_MISMATCH:
      return "shape_mismatch";
    case LB_UNSUPPORTED:
      return "unsupported";
    case LB_NOT_FOUND:
      return "not_found";
    case LB_IO:
      return "io";
    case LB_CORRUPT:
      return "corrupt";
    case LB_OUT_OF_MEMORY:
      return "out_of_memory";
    case LB_CANCELLED:
      return "cancelled";
    case LB_INTERNAL:
      return "internal";
  }
  return "unknown";
}

}  // extern "C"
