#include "quantize/cholesky.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>

namespace lowbit {
namespace {

/// Tiles are cut at the same columns for any number of threads, since the order of Eigen's sums may depend on the cut.
constexpr int64_t kTile = 128;

}  // namespace

void parallel_for(ThreadPool* pool, int64_t n, int64_t grain, RangeFn fn) {
  if (pool != nullptr)
    pool->parallel_for(n, grain, fn);
  else if (n > 0)
    fn(0, n, 0);
}

bool cholesky_in_tiles(Eigen::MatrixXd& a, ThreadPool* pool) {
  const int64_t k = a.rows(), tiles = (k + kTile - 1) / kTile;
  const auto width = [&](int64_t tile) { return std::min(kTile, k - tile * kTile); };
  const auto tile_at = [&](int64_t i, int64_t j) { return a.block(i * kTile, j * kTile, width(i), width(j)); };
  for (int64_t j = 0; j < tiles; ++j) {
    const Eigen::LLT<Eigen::MatrixXd> diagonal(tile_at(j, j));
    if (diagonal.info() != Eigen::Success) return false;
    const Eigen::MatrixXd lower = diagonal.matrixL();
    if (!lower.allFinite()) return false;
    tile_at(j, j) = lower;
    const int64_t below = tiles - j - 1;
    parallel_for(pool, below, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = j + 1 + begin; i < j + 1 + end; ++i) {
        auto tile = tile_at(i, j);
        lower.triangularView<Eigen::Lower>().transpose().solveInPlace<Eigen::OnTheRight>(tile);
      }
    });
    // Tiles below the diagonal, numbered row by row: row r has r + 1 of them.
    parallel_for(pool, below * (below + 1) / 2, 1, [&](int64_t begin, int64_t end, int) {
      auto r = static_cast<int64_t>((std::sqrt(8.0 * static_cast<double>(begin) + 1) - 1) / 2);
      while (r * (r + 1) / 2 > begin) --r;
      while ((r + 1) * (r + 2) / 2 <= begin) ++r;
      for (int64_t c = begin - r * (r + 1) / 2; begin < end; ++begin) {
        tile_at(j + 1 + r, j + 1 + c).noalias() -= tile_at(j + 1 + r, j) * tile_at(j + 1 + c, j).transpose();
        if (++c <= r) continue;
        c = 0;
        ++r;
      }
    });
  }
  return true;
}

}  // namespace lowbit
