#include "quantize/refine.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>
#include <memory>

#include "quantize/vector_loops.h"

namespace lowbit {
namespace {

constexpr int kSweeps = 3;
constexpr float kLeastGain = 0.99999f;  // less is no gain but rounding

}  // namespace

RowRefiner::RowRefiner(const ColumnStrips& h, float damping, std::span<RowCodes> rows)
    : h_(&h), damping_(damping), codes_(rows), rows_(rows.size()), vectors_(rows.size()) {
  for (size_t r = 0; r < rows_.size(); ++r) {
    rows_[r].hw.resize(static_cast<size_t>(h.padded()));
    vectors_[r].clear();
    for (int64_t i = 0; i < h.k(); ++i)
      if (const float w = rows[r].weights()[i]; w != 0) vectors_[r].push(w, i);
  }
  add_products(h, vectors_, 0, h.strips(), -1, starts(&Row::hw));
}

std::vector<float*> RowRefiner::starts(Target target, int64_t offset) {
  std::vector<float*> all;
  for (Row& row : rows_) all.push_back((row.*target).data() + offset);
  return all;
}

void RowRefiner::set_gradients() {
  for (size_t r = 0; r < rows_.size(); ++r) {
    rows_[r].gradient = rows_[r].hw;
    vectors_[r].clear();
    for (int64_t i = 0; i < h_->k(); ++i)
      if (const float q = codes_[r].real(i); q != 0) vectors_[r].push(-q, i);
  }
  add_products(*h_, vectors_, 0, h_->strips(), -1, starts(&Row::gradient));
}

double RowRefiner::output_error(size_t r) const {
  double sum = 0;
  for (int64_t i = 0; i < h_->k(); ++i) {
    const double error = static_cast<double>(codes_[r].weights()[i]) - codes_[r].real(i);
    sum += error * (static_cast<double>(rows_[r].gradient[static_cast<size_t>(i)]) - damping_ * error);
  }
  return sum;
}

double RowRefiner::output_energy(size_t r) const {
  double sum = 0;
  for (int64_t i = 0; i < h_->k(); ++i) {
    const double w = codes_[r].weights()[i];
    sum += w * (static_cast<double>(rows_[r].hw[static_cast<size_t>(i)]) - damping_ * w);
  }
  return sum;
}

/// The columns of one strip, row after row; changes reach the other strips' gradients together at the end.
void RowRefiner::sweep_block(int64_t block) {
  const int64_t begin = block * kStripWidth, end = std::min(begin + kStripWidth, h_->k());
  bool any = false;
  for (size_t r = 0; r < rows_.size(); ++r) {
    SparseVector& moved = vectors_[r];
    moved.clear();
    if (!rows_[r].changed) continue;  // the last sweep left it as it was
    float* gradient = rows_[r].gradient.data();
    for (int64_t i = begin; i < end; ++i) {
      const float curvature = h_->at(i, i), before = codes_[r].real(i);
      if (curvature <= 0) continue;
      const float after = codes_[r].choose(i, before + gradient[i] / curvature);
      if (after == before) continue;
      moved.push(before - after, i);
      add_scaled_row(before - after, h_->row(block, i), gradient + begin);
      any = true;
    }
  }
  if (any) add_products(*h_, vectors_, 0, h_->strips(), block, starts(&Row::gradient));
}

void RowRefiner::descend() {
  for (Row& row : rows_) row.changed = true;
  std::vector<char> moved(rows_.size());
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    std::fill(moved.begin(), moved.end(), char{0});
    for (int64_t block = 0; block < h_->strips(); ++block) {
      sweep_block(block);
      for (size_t r = 0; r < rows_.size(); ++r)
        if (!vectors_[r].index.empty()) moved[r] = 1;
    }
    bool any = false;
    for (size_t r = 0; r < rows_.size(); ++r) any |= rows_[r].changed = moved[r] != 0;
    if (!any) return;
  }
}

/// The codes of a block that minimize the row's loss; vectors_[r] is what they change.
void RowRefiner::search_block(size_t r, const TrellisBlock& block, TrellisStripScratch& scratch) {
  RowCodes& row = codes_[r];
  Row& own = rows_[r];
  const FitPlan& plan = row.plan();
  const int64_t n = block.columns, behind = block.begin + n;
  const float* const gradient = own.gradient.data() + block.begin;
  float targets[kStripWidth], scales[kStripWidth];
  uint8_t codes[kStripWidth];
  float loss = 0;  // of the codes that it has, above that of the best real numbers
  for (int64_t j = 0; j < n; ++j) {
    const float step = dot_product(block.inverse.data() + j * n, gradient, n);
    loss += step * gradient[j];
    targets[j] = row.real(block.begin + j) + step;
    scales[j] = row.scale_at(block.begin + j);
  }
  const TrellisStrip job{plan.trellis,
                         plan.options.codebook.data(),
                         n,
                         targets,
                         nullptr,
                         scales,
                         block.gain.data(),
                         block.carry.data(),
                         own.states[static_cast<size_t>(block.begin)],
                         behind < row.k() ? own.states[static_cast<size_t>(behind)] : -1,
                         codes};
  if (!(search_strip(job, scratch).loss < loss * kLeastGain)) return;
  for (int64_t j = 0; j < n; ++j) {
    const int64_t c = block.begin + j;
    const float before = row.real(c);
    row.set(c, codes[j]);
    own.states[static_cast<size_t>(c + 1)] = plan.trellis->next(own.states[static_cast<size_t>(c)], codes[j]);
    if (row.real(c) != before) vectors_[r].push(before - row.real(c), c);
  }
}

void RowRefiner::descend_blocks(std::span<const TrellisBlock> blocks) {
  const auto scratch = std::make_unique<TrellisStripScratch>();
  for (size_t r = 0; r < rows_.size(); ++r) {
    const RowCodes& row = codes_[r];
    std::vector<uint8_t>& states = rows_[r].states;
    states.assign(static_cast<size_t>(row.k() + 1), 0);
    for (int64_t c = 0; c < row.k(); ++c)
      states[static_cast<size_t>(c + 1)] = row.plan().trellis->next(states[static_cast<size_t>(c)], row.code(c));
  }
  for (const TrellisBlock& block : blocks) {
    for (size_t r = 0; r < rows_.size(); ++r) {
      vectors_[r].clear();
      search_block(r, block, *scratch);
    }
    add_products(*h_, vectors_, 0, h_->strips(), -1, starts(&Row::gradient));
  }
}

/// by_group of every row: behind the first time only what values have changed by is multiplied.
void RowRefiner::multiply_groups() {
  const int64_t k = h_->k(), groups = codes_[0].groups(), width = codes_[0].group();
  for (Row& row : rows_) {
    row.by_group.resize(static_cast<size_t>(groups * h_->padded()));
    row.values.resize(static_cast<size_t>(k));
  }
  for (int64_t g = 0; g < groups; ++g) {
    for (size_t r = 0; r < rows_.size(); ++r) {
      vectors_[r].clear();
      for (int64_t i = g * width; i < std::min((g + 1) * width, k); ++i) {
        float& old = rows_[r].values[static_cast<size_t>(i)];
        const float v = codes_[r].value(i);
        if (v != old) vectors_[r].push(v - old, i);
        old = v;
      }
    }
    add_products(*h_, vectors_, 0, h_->strips(), -1, starts(&Row::by_group, g * h_->padded()));
  }
}

/// q = sum over groups of s_g v_g, so the loss is s^T A s - 2 b^T s + c with A_gf = v_g H v_f^T and b_g = v_g H w^T.
void RowRefiner::solve_scales(size_t r, ScaleKind kind) {
  RowCodes& row = codes_[r];
  const int64_t k = h_->k(), groups = row.groups(), width = row.group();
  Eigen::MatrixXd a(groups, groups);
  Eigen::VectorXd b(groups), s(groups), old(groups);
  const std::vector<float>& values = rows_[r].values;
  for (int64_t g = 0; g < groups; ++g) {
    const float* t = rows_[r].by_group.data() + g * h_->padded();  // v_g H
    const int64_t at = g * width;
    b(g) = dot_product(rows_[r].hw.data() + at, values.data() + at, std::min(width, k - at));
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
  std::vector<float> stored(static_cast<size_t>(groups)),
      supers(static_cast<size_t>((groups + kSuperGroup - 1) / kSuperGroup));
  for (int64_t g = 0; g < groups; ++g) {
    const auto wanted = static_cast<float>(s(g));
    const bool usable = std::isfinite(wanted) && wanted != 0 && old(g) != 0;
    stored[static_cast<size_t>(g)] = usable ? round_scale(wanted, kind) : row.scale(g);
  }
  if (kind == ScaleKind::kDouble) double_quantize(stored.data(), groups, supers.data());
  for (int64_t g = 0; g < groups; ++g) s(g) = stored[static_cast<size_t>(g)];
  const auto loss_of = [&](const Eigen::VectorXd& x) { return x.dot(a * x) - 2 * b.dot(x); };
  if (loss_of(s) < loss_of(old)) row.set_scales(stored.data(), kind == ScaleKind::kDouble ? supers.data() : nullptr);
}

void RowRefiner::refit_scales(ScaleKind kind) {
  multiply_groups();
  for (size_t r = 0; r < rows_.size(); ++r) {
    Row& row = rows_[r];
    solve_scales(r, kind);
    row.gradient = row.hw;
    for (int64_t g = 0; g < codes_[r].groups(); ++g)
      add_scaled(-codes_[r].scale(g), row.by_group.data() + g * h_->padded(), h_->padded(), row.gradient.data());
  }
}

}  // namespace lowbit
