#pragma once
// Many vectors times one square matrix, with the matrix read from memory once for all of them. Internal to
// src/quantize.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/threads.h"

namespace lowbit {

inline constexpr int64_t kStripWidth = 64;

/// A matrix [k, k] cut into strips of kStripWidth columns, each contiguous by rows: some rows of two
/// strips stay in the first-level cache while one vector after another is multiplied by them. The last strip is filled
/// up with zeros.
class ColumnStrips {
 public:
  /// Zeros, which the pool's threads write where there is one: the system gives memory when it is written.
  explicit ColumnStrips(int64_t k, ThreadPool* pool = nullptr);

  int64_t k() const { return k_; }
  int64_t strips() const { return strips_; }
  int64_t padded() const { return strips_ * kStripWidth; }  // columns with the filling
  float* row(int64_t strip, int64_t i) { return data_.get() + (strip * k_ + i) * kStripWidth; }
  const float* row(int64_t strip, int64_t i) const { return data_.get() + (strip * k_ + i) * kStripWidth; }
  float& at(int64_t i, int64_t j) { return row(j / kStripWidth, i)[j % kStripWidth]; }
  float at(int64_t i, int64_t j) const { return row(j / kStripWidth, i)[j % kStripWidth]; }

 private:
  int64_t k_, strips_;
  std::unique_ptr<float[]> data_;
};

/// A vector without its zeros: a[t] at index[t], ascending.
struct SparseVector {
  std::vector<float> a;
  std::vector<int32_t> index;

  void clear() {
    a.clear();
    index.clear();
  }
  void push(float value, int64_t i) {
    a.push_back(value);
    index.push_back(static_cast<int32_t>(i));
  }
};

/// y[0..kStripWidth) += a * row[0..kStripWidth), by fused multiply-adds.
void add_scaled_row(float a, const float* row, float* y);

/// y[r] [m.padded()] += v[r] m for strips [first, last), without strip `skipped`. Every element of y sums in ascending
/// order of the vector's indices by fused multiply-adds, whatever the other vectors are.
void add_products(const ColumnStrips& m, std::span<const SparseVector> v, int64_t first, int64_t last, int64_t skipped,
                  std::span<float* const> y);

}  // namespace lowbit
