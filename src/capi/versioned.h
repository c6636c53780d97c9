#pragma once
// Structs of callers that were compiled with an older or a newer header.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <string>

#include "lowbit/error.h"
#include "lowbit/version.h"

namespace lowbit::capi {

/// Beyond it a struct_size is no version's, but something that nobody has set.
constexpr size_t kLongestStruct = 4096;

/// Copies to `to`, which holds the defaults, what the caller's version of the struct has. `older`: the sizes of
/// released versions before this one, ascending. Fields of a newer version are unknown here and must be zero. Errors:
/// kInvalidArgument (no version's size), kUnsupported (a newer version's field is set).
template <class T>
Status read_versioned(const char* name, const T* from, std::initializer_list<size_t> older, T& to) {
  const size_t size = from->struct_size;
  const bool known = size == sizeof(T) || std::find(older.begin(), older.end(), size) != older.end();
  if ((!known && size < sizeof(T)) || size > kLongestStruct) {
    std::string wanted;
    for (const size_t each : older) wanted += std::to_string(each) + " or ";
    return fail(ErrorCode::kInvalidArgument, std::string(name) + " struct_size", std::to_string(size),
                wanted + std::to_string(sizeof(T)));
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof(T); i < size; ++i)
    if (bytes[i] != 0)
      return fail(ErrorCode::kUnsupported, std::string(name) + " struct_size",
                  std::to_string(size) + " bytes with a field set at " + std::to_string(i),
                  std::to_string(sizeof(T)) + " bytes, or zeros behind them",
                  std::string("the program was compiled for a newer lowbit than ") + version());
  std::memcpy(static_cast<void*>(&to), from, std::min(size, sizeof(T)));
  to.struct_size = sizeof(T);
  return {};
}

}  // namespace lowbit::capi
