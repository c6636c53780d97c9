#pragma once
// Which format to choose.

#include "lowbit/format_id.h"

namespace lowbit {

/// When to choose a format, in a line; "" where nobody does: layouts that kernels derive, and formats that are read
/// from files but lose more than another one of their size.
const char* format_advice(FormatId id);

}  // namespace lowbit
