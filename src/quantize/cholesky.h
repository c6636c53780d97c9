#pragma once
// The lower Cholesky factor of a matrix by all threads, and what it solves. Internal to src/quantize.

#include <Eigen/Core>

#include "base/threads.h"

namespace lowbit {

/// pool->parallel_for(); without a pool the caller's thread does all of it.
void parallel_for(ThreadPool* pool, int64_t n, int64_t grain, RangeFn fn);

/// Replaces the lower triangle of `a`, which alone is read, by L with a = L L^T; false: not positive definite, and `a`
/// is lost. What is above the diagonal stays or is overwritten. Same bits for any thread count; without a pool the
/// caller's thread does all. A NaN or infinity ends as false.
bool cholesky_in_tiles(Eigen::MatrixXd& a, ThreadPool* pool);

/// x [k, kSides] by rows, kSides right sides, becomes (L L^T)^-1 x; of `lower` L [k, k] alone is read.
void solve_by_factor(const Eigen::MatrixXd& lower, double* x);

}  // namespace lowbit
