#include "quantize/rotation.h"

#include <cmath>

#include "base/rng.h"

namespace lowbit {
namespace {

/// Random orthogonal [n, n]: Gram-Schmidt on normal numbers, twice over, in double. Rows are orthonormal.
std::vector<float> random_orthogonal(int64_t n, uint64_t seed) {
  const auto size = static_cast<size_t>(n);
  Rng rng(seed, 1);
  std::vector<double> q(size * size);
  for (double& v : q) v = rng.normal();
  for (size_t i = 0; i < size; ++i) {
    double* row = q.data() + i * size;
    for (int pass = 0; pass < 2; ++pass)
      for (size_t j = 0; j < i; ++j) {
        const double* other = q.data() + j * size;
        double dot = 0;
        for (size_t e = 0; e < size; ++e) dot += row[e] * other[e];
        for (size_t e = 0; e < size; ++e) row[e] -= dot * other[e];
      }
    double norm = 0;
    for (size_t e = 0; e < size; ++e) norm += row[e] * row[e];
    for (size_t e = 0; e < size; ++e) row[e] /= std::sqrt(norm);
  }
  return {q.begin(), q.end()};
}

}  // namespace

Rotation::Rotation(int64_t n, uint64_t seed) : n_(n), hadamard_(n & -n), outer_(n / hadamard_) {
  Rng rng(seed, 0);
  for (int64_t i = 0; i < n; ++i) signs_.push_back(rng.next() >> 63 ? 1.0f : -1.0f);
  matrix_ = outer_ > 1 ? random_orthogonal(outer_, seed) : std::vector<float>{1.0f};
}

void Rotation::rotate(float* x, std::vector<float>& scratch) const {
  for (int64_t i = 0; i < n_; ++i) x[i] *= signs_[static_cast<size_t>(i)];
  for (int64_t width = 1; width < hadamard_; width *= 2)  // n is a multiple of 2 width, so all blocks go at once
    for (int64_t begin = 0; begin < n_; begin += 2 * width)
      for (int64_t i = begin; i < begin + width; ++i) {
        const float a = x[i], b = x[i + width];
        x[i] = a + b;
        x[i + width] = a - b;
      }
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(hadamard_)));
  for (int64_t i = 0; i < n_; ++i) x[i] *= scale;
  if (outer_ == 1) return;
  scratch.assign(static_cast<size_t>(n_), 0.0f);
  for (int64_t i = 0; i < outer_; ++i)
    for (int64_t j = 0; j < outer_; ++j) {
      const float q = matrix_[static_cast<size_t>(i * outer_ + j)];
      for (int64_t e = 0; e < hadamard_; ++e)
        scratch[static_cast<size_t>(i * hadamard_ + e)] += q * x[j * hadamard_ + e];
    }
  for (int64_t i = 0; i < n_; ++i) x[i] = scratch[static_cast<size_t>(i)];
}

void Rotation::rotate_rows(float* rows, int64_t m, int64_t ld) const {
  std::vector<float> scratch;
  for (int64_t r = 0; r < m; ++r) rotate(rows + r * ld, scratch);
}

void Rotation::rotate_outputs(float* w, int64_t k) const {
  std::vector<float> column(static_cast<size_t>(n_)), scratch;
  for (int64_t c = 0; c < k; ++c) {
    for (int64_t i = 0; i < n_; ++i) column[static_cast<size_t>(i)] = w[i * k + c];
    rotate(column.data(), scratch);
    for (int64_t i = 0; i < n_; ++i) w[i * k + c] = column[static_cast<size_t>(i)];
  }
}

}  // namespace lowbit
