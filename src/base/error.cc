#include "lowbit/error.h"

#include <utility>

namespace lowbit {
namespace {

// Control characters in a hostile file name or tensor name must not reach a terminal or break the
// one-line promise.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

}  // namespace

std::string Error::message() const {
  std::string out = where;
  if (!got.empty()) out += ": got " + got;
  if (!wanted.empty()) out += (got.empty() ? ": wanted " : ", wanted ") + wanted;
  if (!hint.empty()) out += ". hint: " + hint;
  return one_line(std::move(out));
}

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kShapeMismatch:
      return "shape_mismatch";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

tl::unexpected<Error> fail(ErrorCode code, std::string where, std::string got, std::string wanted, std::string hint) {
  return tl::unexpected<Error>(Error{code, std::move(where), std::move(got), std::move(wanted), std::move(hint)});
}

}  // namespace lowbit
