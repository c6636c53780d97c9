// Weights rounded with error feedback: GPTQ on rows with power-of-two scales.

#include <algorithm>
#include <cmath>

#include "gru/cell.h"

namespace lowbit {
namespace {

using Matrix = std::vector<double>;

/// Lower Cholesky factor of a symmetric positive definite matrix in place (upper part zeroed). False when it is not
/// one.
bool cholesky(Matrix& a, size_t n) {
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = j; i < n; ++i) {
      double sum = a[i * n + j];
      for (size_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      if (i == j) {
        if (!(sum > 0)) return false;
        a[j * n + j] = std::sqrt(sum);
      } else {
        a[i * n + j] = sum / a[j * n + j];
      }
    }
    for (size_t i = 0; i < j; ++i) a[i * n + j] = 0;
  }
  return true;
}

/// Inverse of a lower triangular matrix.
Matrix invert_lower(const Matrix& l, size_t n) {
  Matrix inverse(n * n, 0.0);
  for (size_t j = 0; j < n; ++j) {
    inverse[j * n + j] = 1 / l[j * n + j];
    for (size_t i = j + 1; i < n; ++i) {
      double sum = 0;
      for (size_t k = j; k < i; ++k) sum -= l[i * n + k] * inverse[k * n + j];
      inverse[i * n + j] = sum / l[i * n + i];
    }
  }
  return inverse;
}

/// U with U^T U = hessian^-1, upper triangular: row j says how an error in column j moves the later ones.
Matrix spread_matrix(std::span<const double> hessian, size_t n) {
  double diagonal = 0;
  for (size_t i = 0; i < n; ++i) diagonal += hessian[i * n + i];
  for (double damp = 0.01;; damp *= 10) {
    Matrix a(hessian.begin(), hessian.end());
    for (size_t i = 0; i < n; ++i) a[i * n + i] += damp * diagonal / static_cast<double>(n) + 1e-30;
    // Columns in reverse order: if reversed(hessian) = L L^T then hessian^-1 = U^T U with U = reversed(L^-1).
    std::reverse(a.begin(), a.end());
    if (!cholesky(a, n)) continue;
    Matrix u = invert_lower(a, n);
    std::reverse(u.begin(), u.end());
    return u;
  }
}

class RowRounder {
 public:
  RowRounder(const FeedbackProblem& p, const Matrix& spread)
      : p_(p), spread_(spread), n_(static_cast<size_t>(p.k) + 1), left_(n_), q_(static_cast<size_t>(p.k)) {}

  /// Rounds at one shift; returns the sum of squared errors of the product over the calibration inputs (damped).
  double round(const float* w, float bias, int shift, int32_t zp) {
    for (size_t j = 0; j + 1 < n_; ++j) left_[j] = static_cast<double>(w[j]);
    left_[n_ - 1] = static_cast<double>(bias);
    double error = 0;
    const auto low = static_cast<double>(p_.format.q_min() - zp), high = static_cast<double>(p_.format.q_max() - zp);
    for (size_t j = 0; j + 1 < n_; ++j) {
      const double v = std::clamp(std::nearbyint(std::ldexp(left_[j], shift)), low, high);
      q_[j] = static_cast<int32_t>(v) + zp;
      const double* row = spread_.data() + j * n_;
      const double part = (left_[j] - std::ldexp(v, -shift)) / row[j];
      error += part * part;
      for (size_t i = j + 1; i < n_; ++i) left_[i] -= part * row[i];
    }
    return error;
  }
  const std::vector<int32_t>& q() const { return q_; }
  float bias() const { return static_cast<float>(left_[n_ - 1]); }

 private:
  const FeedbackProblem& p_;
  const Matrix& spread_;
  size_t n_;
  std::vector<double> left_;  // what is still to be rounded, the bias last
  std::vector<int32_t> q_;
};

}  // namespace

void round_with_feedback(const FeedbackProblem& p, std::span<int32_t> shift, std::span<int32_t> q,
                         std::span<float> bias) {
  const auto k = static_cast<size_t>(p.k);
  const Matrix spread = spread_matrix(p.hessian, k + 1);
  RowRounder rounder(p, spread);
  for (size_t c = 0; c < shift.size(); ++c) {
    const float* w = p.w.data() + c * k;
    const float old_bias = bias[c];
    double least = INFINITY;
    for (int s = shift[c], end = std::min(shift[c] + p.extra_shifts, kMaxShift); s <= end; ++s) {
      const double error = rounder.round(w, old_bias, s, p.zp.empty() ? 0 : p.zp[c]);
      if (!(error < least) || std::ldexp(std::fabs(static_cast<double>(rounder.bias())), s + p.input_shift) > 0x1p30)
        if (least < INFINITY) continue;
      least = error;
      shift[c] = s;
      bias[c] = rounder.bias();
      std::copy(rounder.q().begin(), rounder.q().end(), q.begin() + static_cast<std::ptrdiff_t>(c * k));
    }
  }
}

}  // namespace lowbit
