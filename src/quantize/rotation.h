#pragma once
// Orthogonal rotations that can be fused into weights: they spread outliers over all channels and change no output.

#include <cstdint>
#include <vector>

namespace lowbit {

/// T = (Q x H) D on vectors of n elements: D random signs, H the Hadamard matrix of the largest power of two p that
/// divides n, Q a random orthogonal matrix of n / p (from the QR factorization of a random one; 1 where n = p).
/// Orthogonal, so (T a) . (T b) = a . b. Costs n (log2 p + n / p) operations per vector. Same bits everywhere for a
/// seed.
class Rotation {
 public:
  Rotation(int64_t n, uint64_t seed);

  int64_t size() const { return n_; }
  /// rows [m, n], row stride ld: each row becomes T row.
  void rotate_rows(float* rows, int64_t m, int64_t ld) const;
  /// w [n, k]: becomes T w, so that T y = (T w) x.
  void rotate_outputs(float* w, int64_t k) const;

 private:
  void rotate(float* x, std::vector<float>& scratch) const;

  int64_t n_, hadamard_, outer_;  // n = outer * hadamard
  std::vector<float> signs_;      // [n]
  std::vector<float> matrix_;     // [outer, outer]
};

}  // namespace lowbit
