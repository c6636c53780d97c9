#pragma once
// Random recurrent networks for benchmarks.

#include <vector>

#include "lowbit/gru.h"

namespace lowbit {

/// One layer with random weights, x from a normal distribution, and the network in integers.
class RandomGru {
 public:
  /// x: [steps, batch, c]. Errors: as gru_preset and GruModel::quantize.
  static Result<RandomGru> make(int64_t steps, int64_t batch, int64_t c, int64_t h, const std::string& preset,
                                int weight_bits);
  const GruModel& model() const { return model_; }
  const std::vector<float>& x() const { return x_; }
  GruInput input() const;

 private:
  RandomGru(GruModel model, std::vector<float> x, int64_t steps, int64_t batch)
      : model_(std::move(model)), x_(std::move(x)), steps_(steps), batch_(batch) {}
  GruModel model_;
  std::vector<float> x_;
  int64_t steps_, batch_;
};

}  // namespace lowbit
