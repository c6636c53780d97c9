#pragma once
// The result of a calibration: a range per tensor, or a histogram for the searching methods.

#include "gru/cell.h"
#include "quantize/observer.h"

namespace lowbit {

struct GruCellRanges {
  int64_t input = 0, hidden = 0;
  std::array<Range, kGruTensors> range;
  std::array<Histogram, kGruTensors> histogram;  // mse and sqnr only
};

struct GruRanges::Impl {
  GruMethod method = GruMethod::kMinMax;
  double percentile = 0.9999;
  int64_t steps = 0;
  bool bidirectional = false;
  std::vector<GruCellRanges> cells;
};

/// Formats, shifts and zero points of every cell. Layer l + 1 reads layer l's h; u, r, n have their fixed ranges if the
/// config says so. Errors: kShapeMismatch (ranges of another network), kInvalidArgument (a range beyond any shift).
Result<std::vector<std::array<GruParam, kGruTensors>>> choose_gru_scales(const GruNetwork& network,
                                                                         const GruRanges& ranges,
                                                                         const GruConfig& config);

/// Sums of products of the inputs that each cell saw.
Result<std::vector<GruHessian>> measure_hessians(const GruNetwork& network, std::span<const GruInput> inputs);

}  // namespace lowbit
