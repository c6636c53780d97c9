#pragma once
// The presets of `quantize --preset`: a size, and the formats that the search may choose from.

#include "lowbit/quantize.h"

namespace lowbit {

/// Fills in what options.preset says; nothing without one. What the caller set of calibration, embedding, head, seed
/// and recipe stays. Errors: kInvalidArgument (another name; a target_bpw beside it).
Status apply_preset(QuantizeOptions& options);

}  // namespace lowbit
