#pragma once
// How near an integer network's outputs come to the float network's: what searches go by unless they are given
// something else.

#include <span>
#include <vector>

#include "lowbit/gru.h"

namespace lowbit {

class OutputSqnr {
 public:
  /// Both must outlive this.
  OutputSqnr(const GruNetwork& network, std::span<const GruInput> inputs) : network_(network), inputs_(inputs) {}
  /// 10 log10(sum float^2 / sum difference^2) of all outputs over the inputs; 200 where nothing differs. Errors: as
  /// run.
  Result<double> operator()(const GruModel& model);

 private:
  const GruNetwork& network_;
  std::span<const GruInput> inputs_;
  std::vector<std::vector<float>> wanted_;
};

}  // namespace lowbit
