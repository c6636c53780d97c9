#pragma once
// Codes on a trellis where the error of a column moves the targets of those behind it. Internal to src/quantize.

#include <cstdint>
#include <span>
#include <vector>

#include "quantize/column_strips.h"
#include "quantize/feedback_factor.h"
#include "quantize/row_codes.h"

namespace lowbit {

inline constexpr int kTrellisStates = 64;
inline constexpr int64_t kTrellisBlock = 8;  // columns whose errors reach those behind them together

/// Some neighbouring columns of a row, at most kStripWidth, whose codes minimize
/// sum over columns j of (gain[j] * (target[j] - q[j]))^2,  target[j] = base[j] + added[j] + sum over i < j of (base[i]
/// - q[i]) * carry[i][j].
struct TrellisStrip {
  const TrellisInfo* trellis = nullptr;
  const float* table = nullptr;  // [16], by code
  int64_t columns = 0;
  const float* base = nullptr;
  const float* added = nullptr;   // or null for zeros
  const float* scales = nullptr;  // of each column
  const float* gain = nullptr;
  const float* carry = nullptr;  // [columns, kStripWidth]
  unsigned start = 0;            // state before the first column
  int end = -1;                  // state wanted behind the last; -1: any
  uint8_t* codes = nullptr;      // [columns], written
};

/// Scratch of one thread, all of it by state.
struct alignas(64) TrellisStripScratch {
  float future[kStripWidth][kTrellisStates];    // what errors so far add to each column's target
  float errors[kTrellisBlock][kTrellisStates];  // of a block's columns
  uint8_t oldest[kStripWidth][kTrellisStates];
};

struct TrellisPath {
  unsigned end;  // state behind the last column
  float loss;    // the sum
};
/// Every state keeps the one path to it that is best so far, with targets of its own (per-survivor processing, Raheli
/// et al. 1995).
TrellisPath search_strip(const TrellisStrip& strip, TrellisStripScratch& scratch);

/// Chooses all codes of some rows in their order, each target moved by the errors before it. `factor`: in natural
/// order.
void round_trellis_with_feedback(const FeedbackFactor& factor, std::span<RowCodes> rows);

/// H of some neighbouring columns, factored, and its inverse.
struct TrellisBlock {
  int64_t begin = 0, columns = 0;
  std::vector<float> gain, carry;  // as TrellisStrip has them
  std::vector<float> inverse;      // [columns, columns]
};
/// Blocks of kStripWidth columns that begin at `offset`, a shorter one before it if that is not 0. `h`: positive
/// definite.
std::vector<TrellisBlock> trellis_blocks(const ColumnStrips& h, int64_t offset);

}  // namespace lowbit
