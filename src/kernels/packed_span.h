#pragma once
// A span with packed pages, as attention's kernels get it.

#include <cstdint>

#include "kernels/packed_kv.h"

namespace lowbit {

/// Packed pages are fetched while those before them are read, so many of them ahead.
inline constexpr int64_t kPagesAhead = 2;

/// Kernels get a span with packed pages as one of these: with what is read behind it.
struct PackedSpan : PackedSpanArgs {
  PackedMatrix next_keys[kPagesAhead];  // of the span behind it, a hint; null for none
};

}  // namespace lowbit
