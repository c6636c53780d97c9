#pragma once
// The best codes of whole rows on a trellis. Internal to src/quantize.

#include <cstdint>
#include <vector>

#include "format/registry.h"

namespace lowbit {

/// Rows that are searched side by side; none depends on the others.
inline constexpr int64_t kTrellisLanes = 16;

/// A search for the codes of up to kTrellisLanes rows with the least sum over columns i of
/// h[i] * (x[r][i] - scales[r][i / group] * table[code])^2, which f32 must hold.
struct TrellisRows {
  const TrellisInfo* trellis = nullptr;
  const float* table = nullptr;  // [16], by code
  int64_t rows = 0, k = 0, group = 1;
  const float* h = nullptr;  // [k], or null for all ones
  const float* x[kTrellisLanes] = {};
  const float* scales[kTrellisLanes] = {};
  uint8_t* codes[kTrellisLanes] = {};  // [k] each, written
};

/// The optimum, by dynamic programming over the trellis's states (Viterbi 1967). Of equal paths the one from lower
/// codes. `scratch` is kept from call to call. Same bits whatever vectors the machine has.
void search_trellis(const TrellisRows& job, std::vector<uint8_t>& scratch);

}  // namespace lowbit
