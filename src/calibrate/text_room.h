#pragma once
// How much of the host's memory a text may take on its way through a model.

#include <cstdint>

#include "model/source.h"

namespace lowbit {

/// Bytes for what grows with a text, its keys and values or its hidden states, where `taken` bytes are gone: one and a
/// half times the source's weights at 16 bits each, less those. The other half is for everything else, so that the peak
/// stays below twice the source: docs/adr/0211-memory-of-a-calibration.md.
int64_t room_for_text(const WeightSource& source, int64_t taken);

}  // namespace lowbit
