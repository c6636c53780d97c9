#pragma once
// The lower Cholesky factor of a matrix by all threads, and what it solves. Internal to src/quantize.

#include <Eigen/Core>

#include <cstdint>

#include "base/threads.h"

namespace lowbit {

/// Replaces the lower triangle of `a`, which alone is read, by L with a = L L^T; false: not positive definite, and `a`
/// is lost. What is above the diagonal stays or is overwritten. Same bits for any thread count; without a pool the
/// caller's thread does all. A NaN or infinity ends as false.
bool cholesky_in_tiles(Eigen::MatrixXd& a, ThreadPool* pool);

/// Each of `count` x [k, kSides], one behind the other and each with a right side a column, becomes (L L^T)^-1 x; of
/// `lower` L [k, k] alone is read, and once for all of them.
void solve_by_factor(const Eigen::MatrixXd& lower, double* x, int64_t count);

}  // namespace lowbit
