#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace lowbit {

/// Sees the input of every linear layer before it runs: x [m, k], dense rows; `name` is that of the layer's weight. For
/// calibration.
using LinearObserver = std::function<void(const std::string& name, const float* x, int64_t m, int64_t k)>;

}  // namespace lowbit
