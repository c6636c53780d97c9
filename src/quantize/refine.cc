#include "quantize/refine.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>

#include "quantize/vector_loops.h"

namespace lowbit {
namespace {

constexpr int kSweeps = 3;

}  // namespace

RowRefiner::RowRefiner(const SecondMoments& moments, float damping) : moments_(&moments), damping_(damping) {
  gradient_.resize(static_cast<size_t>(moments.k));
}

void RowRefiner::start(const RowCodes& row) {
  const int64_t k = moments_->k;
  std::fill(gradient_.begin(), gradient_.end(), 0.0f);
  for (int64_t i = 0; i < k; ++i) {
    const float error = row.weights()[i] - row.real(i);
    add_scaled(error, h(i), k, gradient_.data());
    gradient_[static_cast<size_t>(i)] += damping_ * error;
  }
}

double RowRefiner::output_energy(const float* e) {
  const int64_t k = moments_->k;
  double sum = 0;
  for (int64_t i = 0; i < k; ++i)
    if (e[i] != 0) sum += static_cast<double>(e[i]) * dot_product(h(i), e, k);
  return sum;
}

void RowRefiner::descend(RowCodes& row) {
  const int64_t k = moments_->k;
  start(row);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    bool changed = false;
    for (int64_t i = 0; i < k; ++i) {
      const float curvature = h(i)[i] + damping_, before = row.real(i);
      if (curvature <= 0) continue;
      const float after = row.choose(i, before + gradient_[static_cast<size_t>(i)] / curvature);
      if (after == before) continue;
      changed = true;
      add_scaled(before - after, h(i), k, gradient_.data());
      gradient_[static_cast<size_t>(i)] += damping_ * (before - after);
    }
    if (!changed) return;
  }
}

void RowRefiner::refit_scales(RowCodes& row, ScaleKind kind) {
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
    b(g) = dot_product(t, row.weights(), k);
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
  if (!(loss_of(s) < loss_of(old))) return;
  for (int64_t g = 0; g < groups; ++g) row.set_scale(g, static_cast<float>(s(g)));
}

}  // namespace lowbit
