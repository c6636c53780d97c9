#include "quantize/cholesky.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>
#include <vector>

#include "quantize/parallel.h"
#include "quantize/tile_products.h"

namespace lowbit {
namespace {

/// Tiles of a matrix, which is cut at the same columns for any number of threads.
class Tiles {
 public:
  explicit Tiles(int64_t k) : k_(k) {}
  int64_t count() const { return (k_ + kTile - 1) / kTile; }
  int64_t begin(int64_t tile) const { return tile * kTile; }
  int64_t width(int64_t tile) const { return std::min(kTile, k_ - begin(tile)); }

 private:
  int64_t k_;
};

/// Minus a tile of L as the loops of tile_products.h read it: [p][i] holds -L(row + i, column + p), or of the
/// transposed tile -L(row + p, column + i).
class FactorTile {
 public:
  void load(const Eigen::MatrixXd& lower, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    for (int64_t p = 0; p < columns; ++p)
      for (int64_t i = 0; i < rows; ++i) data_[size_t(p * kTile + i)] = -lower(row + i, column + p);
  }
  void load_transposed(const Eigen::MatrixXd& lower, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    constexpr int64_t kAtOnce = 8;  // so that both sides are used by the cache line
    for (int64_t first = 0; first < columns; first += kAtOnce)
      for (int64_t p = 0; p < rows; ++p)
        for (int64_t i = first; i < std::min(columns, first + kAtOnce); ++i)
          data_[size_t(p * kTile + i)] = -lower(row + p, column + i);
  }
  void load_diagonal(const Eigen::MatrixXd& lower, int64_t at, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) diagonal_[i] = lower(at + i, at + i);
  }
  const double* data() const { return data_.data(); }
  const double* diagonal() const { return diagonal_; }

 private:
  std::vector<double> data_ = std::vector<double>(size_t(kTile * kTile));
  double diagonal_[kTile] = {};
};

/// Rows [row, row + rows) of some columns, at most kSides of them, as right sides one behind the other.
class Sides {
 public:
  Sides(Eigen::MatrixXd& a, int64_t row, int64_t rows, int64_t column, int64_t columns)
      : a_(&a), row_(row), rows_(rows), column_(column), columns_(columns) {
    for (int64_t c = 0; c < columns; ++c) std::copy_n(&a(row, column + c), rows, data_ + c * kSides);
  }
  void store() const {
    for (int64_t c = 0; c < columns_; ++c) std::copy_n(data_ + c * kSides, rows_, &(*a_)(row_, column_ + c));
  }
  double* data() { return data_; }

 private:
  Eigen::MatrixXd* a_;
  int64_t row_, rows_, column_, columns_;
  double data_[kTile * kSides] = {};
};

/// call(row, rows) for pieces of a tile's rows.
template <class Call>
void for_sides(int64_t begin, int64_t width, const Call& call) {
  for (int64_t row = begin; row < begin + width; row += kSides) call(row, std::min(kSides, begin + width - row));
}

}  // namespace

bool cholesky_in_tiles(Eigen::MatrixXd& a, ThreadPool* pool) {
  const Tiles tiles(a.rows());
  FactorTile diagonal;
  for (int64_t j = 0; j < tiles.count(); ++j) {
    const int64_t column = tiles.begin(j), columns = tiles.width(j), below = tiles.count() - j - 1;
    const Eigen::LLT<Eigen::MatrixXd> factored(a.block(column, column, columns, columns));
    if (factored.info() != Eigen::Success) return false;
    const Eigen::MatrixXd lower = factored.matrixL();
    if (!lower.allFinite()) return false;
    a.block(column, column, columns, columns) = lower;
    diagonal.load(a, column, columns, column, columns);
    diagonal.load_diagonal(a, column, columns);
    parallel_for(pool, below, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = j + 1 + begin; i < j + 1 + end; ++i)
        for_sides(tiles.begin(i), tiles.width(i), [&](int64_t row, int64_t rows) {
          Sides x(a, row, rows, column, columns);
          solve_tile(diagonal.data(), diagonal.diagonal(), columns, false, x.data(), kSides);
          x.store();
        });
    });
    // Tiles below the diagonal, numbered row by row: row r has r + 1 of them.
    parallel_for(pool, below * (below + 1) / 2, 1, [&](int64_t begin, int64_t end, int) {
      auto r = static_cast<int64_t>((std::sqrt(8.0 * static_cast<double>(begin) + 1) - 1) / 2);
      while (r * (r + 1) / 2 > begin) --r;
      while ((r + 1) * (r + 2) / 2 <= begin) ++r;
      FactorTile left;
      for (int64_t c = begin - r * (r + 1) / 2; begin < end; ++begin) {
        const int64_t to = tiles.begin(j + 1 + c), width = tiles.width(j + 1 + c);
        left.load(a, to, width, column, columns);
        for_sides(tiles.begin(j + 1 + r), tiles.width(j + 1 + r), [&](int64_t row, int64_t rows) {
          Sides y(a, row, rows, column, columns), x(a, row, rows, to, width);
          add_tile_product(left.data(), width, columns, y.data(), kSides, x.data(), kSides);
          x.store();
        });
        if (++c <= r) continue;
        c = 0;
        ++r;
      }
    });
  }
  return true;
}

void solve_by_factor(const Eigen::MatrixXd& lower, double* x, int64_t count) {
  const Tiles tiles(lower.rows());
  const int64_t apart = lower.rows() * kSides;
  FactorTile l;
  for (const bool upwards : {false, true}) {
    /// The tile of row tile `to` and column tile `from`, of L or, upwards, of its transpose.
    const auto load = [&](int64_t to, int64_t from) {
      if (upwards)
        l.load_transposed(lower, tiles.begin(from), tiles.width(from), tiles.begin(to), tiles.width(to));
      else
        l.load(lower, tiles.begin(to), tiles.width(to), tiles.begin(from), tiles.width(from));
    };
    for (int64_t n = 0; n < tiles.count(); ++n) {
      const int64_t t = upwards ? tiles.count() - 1 - n : n, rows = tiles.width(t);
      double* const to = x + tiles.begin(t) * kSides;
      for (int64_t m = 0; m < n; ++m) {  // the tiles that are solved, in their order
        const int64_t from = upwards ? tiles.count() - 1 - m : m;
        load(t, from);
        for (int64_t i = 0; i < count; ++i)
          add_tile_product(l.data(), rows, tiles.width(from), x + i * apart + tiles.begin(from) * kSides, kSides,
                           to + i * apart, kSides);
      }
      load(t, t);
      l.load_diagonal(lower, tiles.begin(t), rows);
      for (int64_t i = 0; i < count; ++i) solve_tile(l.data(), l.diagonal(), rows, upwards, to + i * apart, kSides);
    }
  }
}

}  // namespace lowbit
