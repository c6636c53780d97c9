#pragma once
// Shared by the examples: an error line and the end of the program, a Result's value or that.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "lowbit/error.h"

[[noreturn]] inline void stop(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::exit(1);
}

template <class T>
T value_or_exit(lowbit::Result<T>&& result) {
  if (!result) stop(result.error().message());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}
