#include "quantize/refine.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>

#include "quantize/vector_loops.h"

namespace lowbit {
namespace {

constexpr int kSweeps = 3;

}  // namespace

RowRefiner::RowRefiner(const SecondMoments& moments, float damping, RowCodes& row)
    : moments_(&moments), damping_(damping), row_(&row) {
  const int64_t k = moments.k;
  hw_.resize(static_cast<size_t>(k));
  gradient_.resize(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) {
    const float w = row.weights()[i];
    add_scaled(w, h(i), k, hw_.data());
    hw_[static_cast<size_t>(i)] += damping * w;
  }
}

void RowRefiner::set_gradient_from_reals() {
  const int64_t k = moments_->k;
  gradient_ = hw_;
  for (int64_t i = 0; i < k; ++i) {
    const float q = row_->real(i);
    if (q == 0) continue;
    add_scaled(-q, h(i), k, gradient_.data());
    gradient_[static_cast<size_t>(i)] -= damping_ * q;
  }
  gradient_valid_ = true;
}

void RowRefiner::set_gradient_from_groups() {
  gradient_ = hw_;
  for (int64_t g = 0; g < row_->groups(); ++g)
    add_scaled(-row_->scale(g), by_group_.data() + g * moments_->k, moments_->k, gradient_.data());
  gradient_valid_ = true;
}

double RowRefiner::output_error() {
  if (!gradient_valid_) set_gradient_from_reals();
  double sum = 0;
  for (int64_t i = 0; i < moments_->k; ++i) {
    const double error = static_cast<double>(row_->weights()[i]) - row_->real(i);
    sum += error * (static_cast<double>(gradient_[static_cast<size_t>(i)]) - damping_ * error);
  }
  return sum;
}

double RowRefiner::output_energy() const {
  double sum = 0;
  for (int64_t i = 0; i < moments_->k; ++i) {
    const double w = row_->weights()[i];
    sum += w * (static_cast<double>(hw_[static_cast<size_t>(i)]) - damping_ * w);
  }
  return sum;
}

void RowRefiner::descend() {
  const int64_t k = moments_->k;
  if (!gradient_valid_) set_gradient_from_reals();
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    bool changed = false;
    for (int64_t i = 0; i < k; ++i) {
      const float curvature = h(i)[i] + damping_, before = row_->real(i);
      if (curvature <= 0) continue;
      const float after = row_->choose(i, before + gradient_[static_cast<size_t>(i)] / curvature);
      if (after == before) continue;
      changed = true;
      add_scaled(before - after, h(i), k, gradient_.data());
      gradient_[static_cast<size_t>(i)] += damping_ * (before - after);
    }
    if (!changed) return;
  }
}

void RowRefiner::refit_scales(ScaleKind kind) {
  RowCodes& row = *row_;
  gradient_valid_ = false;
  // q = sum over groups of s_g v_g, so the loss is s^T A s - 2 b^T s + c with A_gf = v_g H v_f^T and b_g = v_g H w^T.
  const int64_t k = moments_->k, groups = row.groups(), width = row.group();
  by_group_.assign(static_cast<size_t>(groups * k), 0.0f);
  Eigen::MatrixXd a(groups, groups);
  Eigen::VectorXd b(groups), s(groups), old(groups);
  std::vector<float> values(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) values[static_cast<size_t>(i)] = row.value(i);
  for (int64_t g = 0; g < groups; ++g) {
    float* t = by_group_.data() + g * k;  // v_g H
    for (int64_t i = g * width; i < std::min((g + 1) * width, k); ++i) {
      const float v = values[static_cast<size_t>(i)];
      if (v == 0) continue;
      add_scaled(v, h(i), k, t);
      t[i] += damping_ * v;
    }
    const int64_t at = g * width;
    b(g) = dot_product(hw_.data() + at, values.data() + at, std::min(width, k - at));
    old(g) = row.scale(g);
    for (int64_t f = 0; f < groups; ++f) {
      const int64_t begin = f * width;
      a(g, f) = dot_product(t + begin, values.data() + begin, std::min(width, k - begin));
    }
  }
  a = (0.5 * (a + a.transpose())).eval();
  Eigen::MatrixXd ridged = a;
  ridged.diagonal().array() += 1e-9 * a.diagonal().maxCoeff() + 1e-30;
  const Eigen::LDLT<Eigen::MatrixXd> solver(ridged);
  if (solver.info() != Eigen::Success) return;
  s = solver.solve(b);
  for (int64_t g = 0; g < groups; ++g) {
    const auto wanted = static_cast<float>(s(g));
    s(g) = std::isfinite(wanted) && wanted != 0 && old(g) != 0 ? round_scale(wanted, kind) : old(g);
  }
  const auto loss_of = [&](const Eigen::VectorXd& x) { return x.dot(a * x) - 2 * b.dot(x); };
  if (loss_of(s) < loss_of(old))
    for (int64_t g = 0; g < groups; ++g) row.set_scale(g, static_cast<float>(s(g)));
  set_gradient_from_groups();
}

}  // namespace lowbit
