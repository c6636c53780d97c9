#pragma once
// Traces of runs: what is in one, and where two part. Session::start_trace() writes them; the file is described in
// docs/trace.md.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lowbit/error.h"
#include "lowbit/tokenizer.h"

namespace lowbit {

/// The run that a trace was written by.
struct TraceInfo {
  std::string path, version;  // of the file, of the lowbit that wrote it
  std::string model, family, activation, isa, device;
};

/// A value of a tap: "blocks.3.attn_norm", position in the sequence, column of the row.
struct TracePlace {
  std::string tap;
  int64_t position = 0, column = 0;
};

/// Statistics of all values of a tap. `min`, `max` and `rms` leave out NaN and infinity; 0 without any other.
struct TapSummary {
  std::string tap;
  int64_t rows = 0, width = 0;
  double min = 0, max = 0, rms = 0;
  int64_t nans = 0, infinities = 0;
};

struct TraceSummary {
  TraceInfo info;
  int64_t passes = 0, tokens = 0;
  std::vector<TapSummary> taps;          // in run order
  std::optional<TracePlace> not_finite;  // the first NaN or infinity of the run
};

/// Errors: kNotFound, kIo, kCorrupt (no trace, or cut short), kUnsupported (a newer version).
Result<TraceSummary> summarize_trace(const std::string& path);

/// Values of two traces at the same place.
struct TraceDifference {
  TracePlace place;
  float got = 0, wanted = 0;
};

/// `got` against `wanted` at a tap. A NaN equals any other; between a NaN or an infinity and something else
/// the difference is infinite.
struct TapComparison {
  std::string tap;
  int64_t rows = 0;                      // that both traces have
  double largest = 0;                    // |got - wanted|
  double relative_rms = 0;               // sqrt(sum (got - wanted)^2 / sum wanted^2)
  std::optional<TraceDifference> first;  // none: the bits are equal
};

/// Where the sequences of tokens part, counted in tokens of the trace. A trace that has ended has no token there.
struct TokenDifference {
  int64_t position = 0;
  std::optional<TokenId> got, wanted;
};

struct TraceComparison {
  TraceInfo got, wanted;
  int64_t tokens = 0;                     // compared: those before the sequences part
  std::optional<TokenDifference> parted;  // none: the same tokens at the same positions
  std::vector<TapComparison> taps;        // in run order
  std::optional<TraceDifference> first;   // in run order: the first pass, then the first tap
};

/// Compares tap by tap, row by row, whatever passes the rows were computed in. Memory does not depend on the files.
/// Errors: those of summarize_trace; kShapeMismatch (models of other taps or widths), kInvalidArgument (the first
/// tokens differ).
Result<TraceComparison> compare_traces(const std::string& got, const std::string& wanted);

}  // namespace lowbit
