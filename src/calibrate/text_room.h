#pragma once
// How much of the host's memory a text may take on its way through a model.

#include <cstdint>

#include "model/source.h"

namespace lowbit {

/// Of the source's weights at 16 bits each, whatever its file takes for them.
int64_t bytes_at_16_bits(const WeightSource& source);

/// Bytes for what grows with a text, its keys and values or its hidden states, where `taken` bytes are gone: six
/// fifths of bytes_at_16_bits(), less those. What is left of twice the source is for all that does not grow:
/// docs/adr/0211-memory-of-a-calibration.md.
int64_t room_for_text(const WeightSource& source, int64_t taken);

}  // namespace lowbit
