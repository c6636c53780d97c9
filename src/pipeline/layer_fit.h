#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/threads.h"
#include "format/qtensor.h"
#include "lowbit/quantize.h"
#include "quantize/feedback.h"

namespace lowbit {

struct LayerFit {
  double rel_error = 0;
  std::optional<double> output_error;  // with moments
};

/// One weight in the format a spec asks for. `moments` of its inputs, or null. Errors: those of the fitters, with the tensor's
/// name; kInvalidArgument for a fit that needs moments where there are none.
Result<QTensor> fit_layer(const std::string& name, const QTensor& source, const QuantizeSpec& spec, uint64_t seed,
                          const SecondMoments* moments, ThreadPool& pool, LayerFit& fit);

}  // namespace lowbit
