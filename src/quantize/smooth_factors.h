#pragma once
// Scaling of outliers from activations into weights (SmoothQuant, Xiao et al., 2023): column j of x is divided by a
// factor and column j of every weight that reads x multiplied by it, which changes no product.

#include <vector>

namespace lowbit {

/// factor[j] = inputs[j]^strength / weights[j]^(1 - strength), scaled to a geometric mean of 1 and kept within
/// 1/256..256. inputs[j] and weights[j], of equal length, are the largest magnitudes of column j; where either is 0 or
/// no number, the factor is 1. strength is 0..1: 0 makes the weights' columns equal, 1 those of x.
std::vector<float> smooth_factors(const std::vector<float>& inputs, const std::vector<float>& weights, double strength);

}  // namespace lowbit
