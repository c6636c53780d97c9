#pragma once
// Result<T> and Status: the return types of every call of lowbit that may fail. The library never prints, throws or
// aborts on what a user gives it.

#include <string>
#include <tl/expected.hpp>

namespace lowbit {

enum class ErrorCode {
  kInvalidArgument,  // a value outside its documented range
  kShapeMismatch,    // operands that do not fit each other
  kUnsupported,      // well-formed, but lowbit has no code for it
  kNotFound,         // a file, tensor or key that should exist
  kIo,               // the operating system refused (disk full, permission, ...)
  kCorrupt,          // a file that breaks its own format's rules
  kOutOfMemory,
  kCancelled,  // the caller's progress callback said stop
};

/// An error says where it happened, what was there, what was expected and what to do about it.
/// `got`, `wanted` and `hint` may be empty; `where` never is: a file, a tensor, an operation or an
/// option.
struct Error {
  ErrorCode code;
  std::string where;
  std::string got;
  std::string wanted;
  std::string hint;

  /// One line: "<where>: got <got>, wanted <wanted>. hint: <hint>".
  std::string message() const;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

const char* error_code_name(ErrorCode code);

/// Shorthand for `return fail(ErrorCode::kShapeMismatch, "matmul w.k", "2560", "2048")`.
tl::unexpected<Error> fail(ErrorCode code, std::string where, std::string got, std::string wanted = {},
                           std::string hint = {});

}  // namespace lowbit
