#pragma once
// Early return for Result and Status: LOWBIT_TRY(check(x));  LOWBIT_TRY_ASSIGN(auto file,
// open(path));

#include <utility>

#include "lowbit/error.h"

#define LOWBIT_CONCAT_(a, b) a##b
#define LOWBIT_CONCAT(a, b) LOWBIT_CONCAT_(a, b)

#define LOWBIT_TRY(expr)                                                        \
  do {                                                                          \
    if (auto lowbit_status = (expr); !lowbit_status)                            \
      return tl::unexpected<::lowbit::Error>(std::move(lowbit_status.error())); \
  } while (0)

#define LOWBIT_TRY_ASSIGN_(tmp, lhs, expr)                                  \
  auto tmp = (expr);                                                        \
  if (!tmp) return tl::unexpected<::lowbit::Error>(std::move(tmp.error())); \
  lhs = std::move(*tmp)
#define LOWBIT_TRY_ASSIGN(lhs, expr) LOWBIT_TRY_ASSIGN_(LOWBIT_CONCAT(lowbit_result_, __LINE__), lhs, expr)
