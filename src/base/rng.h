#pragma once
// Counter-based random numbers: value i of stream s depends on nothing else, so results do not
// depend on thread count.

#include <cmath>
#include <cstdint>

namespace lowbit {

class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0) : state_(mix(seed ^ mix(stream + 0x9e3779b97f4a7c15u))) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    return mix(state_);
  }
  /// Uniform in [0, n), n > 0.
  uint64_t below(uint64_t n) { return uint64_t((static_cast<__uint128_t>(next()) * n) >> 64); }
  /// Uniform in [0, 1), 53 bits.
  double uniform() { return double(next() >> 11) * 0x1p-53; }
  /// Standard normal (Box-Muller, one of the pair).
  double normal() {
    const double u = 1.0 - uniform(), v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }

 private:
  static uint64_t mix(uint64_t z) {  // splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

}  // namespace lowbit
