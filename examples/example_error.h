#pragma once
// What the examples share: a Result's value, or its error line and the end of the program.

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "lowbit/error.h"

template <class T>
T value_or_exit(lowbit::Result<T>&& result) {
  if (!result) {
    std::fprintf(stderr, "error: %s\n", result.error().message().c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}
