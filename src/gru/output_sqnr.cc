#include "gru/output_sqnr.h"

#include <cmath>

#include "base/try.h"

namespace lowbit {

Result<double> OutputSqnr::operator()(const GruModel& model) {
  double signal = 0, error = 0;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (wanted_.size() <= i) {
      LOWBIT_TRY_ASSIGN(GruOutput floats, run_gru(network_, inputs_[i]));
      wanted_.push_back(std::move(floats.y));
    }
    LOWBIT_TRY_ASSIGN(const GruOutput out, model.run(inputs_[i]));
    for (size_t j = 0; j < out.y.size(); ++j) {
      const double w = static_cast<double>(wanted_[i][j]), d = static_cast<double>(out.y[j]) - w;
      signal += w * w;
      error += d * d;
    }
  }
  return error == 0 ? 200.0 : 10 * std::log10(signal / error);
}

}  // namespace lowbit
