#include "quantize/column_strips.h"

#include "quantize/parallel.h"
#include "quantize/vector_clones.h"

namespace lowbit {
namespace {

using Vec16 = float __attribute__((vector_size(16)));
using Vec32 = float __attribute__((vector_size(32)));
using Vec64 = float __attribute__((vector_size(64)));

/// Elements of a vector that meet the same rows of the matrix.
struct Piece {
  const float* a;
  const int32_t* index;
  int64_t count;
};

struct Products {
  const ColumnStrips& m;
  std::vector<Piece> pieces;  // those of all vectors for some rows of m, then those for the next rows
  int64_t first, last, skipped;
  std::span<float* const> y;
};

/// Sums of kStrips strips, each `apart` floats behind the one before, stay in registers for a whole piece.
template <class Vec, int kStrips>
[[gnu::always_inline]] inline void add_piece(const Piece& piece, const float* rows, int64_t apart, float* y) {
  constexpr int kFloats = sizeof(Vec) / sizeof(float), kVecs = kStripWidth / kFloats;
  Vec sum[kStrips * kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kStrips * kVecs; ++i) __builtin_memcpy(&sum[i], y + i * kFloats, sizeof(Vec));
  for (int64_t t = 0; t < piece.count; ++t) {
    const float* const row = rows + int64_t{piece.index[t]} * kStripWidth;
    const Vec scale = piece.a[t] - Vec{};
#pragma GCC unroll 16
    for (int i = 0; i < kStrips * kVecs; ++i) {
      Vec x;
      __builtin_memcpy(&x, row + (i / kVecs) * apart + (i % kVecs) * kFloats, sizeof x);
      sum[i] = fused(scale, x, sum[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kStrips * kVecs; ++i) __builtin_memcpy(y + i * kFloats, &sum[i], sizeof(Vec));
}

template <class Vec, int kStrips>
[[gnu::always_inline]] inline void add_pieces(const Products& job, int64_t strip) {
  const size_t vectors = job.y.size();
  for (size_t i = 0; i < job.pieces.size(); ++i)
    if (job.pieces[i].count > 0)
      add_piece<Vec, kStrips>(job.pieces[i], job.m.row(strip, 0), job.m.k() * kStripWidth,
                              job.y[i % vectors] + strip * kStripWidth);
}

/// Two strips at a time where there are registers for the sums of both: one that waits for the sum before it leaves
/// half of the multipliers idle.
template <class Vec, bool kPairs>
[[gnu::always_inline]] inline void add_all(const Products& job) {
  for (int64_t strip = job.first; strip < job.last; ++strip) {
    if (strip == job.skipped) continue;
    if (kPairs && strip + 1 < job.last && strip + 1 != job.skipped)
      add_pieces<Vec, 2>(job, strip++);
    else
      add_pieces<Vec, 1>(job, strip);
  }
}

LOWBIT_FUSED_VERSION("default")
void run(const Products& job) { add_all<Vec16, false>(job); }
LOWBIT_FUSED_VERSION("default")
void add_row(const Piece& piece, const float* row, float* y) { add_piece<Vec16, 1>(piece, row, 0, y); }

#ifdef LOWBIT_HAS_FUSED_VERSIONS
LOWBIT_FUSED_VERSION("avx2,fma")
void run(const Products& job) { add_all<Vec32, false>(job); }
LOWBIT_FUSED_VERSION("avx2,fma")
void add_row(const Piece& piece, const float* row, float* y) { add_piece<Vec32, 1>(piece, row, 0, y); }

LOWBIT_FUSED_VERSION("avx512f")
void run(const Products& job) { add_all<Vec64, true>(job); }
LOWBIT_FUSED_VERSION("avx512f")
void add_row(const Piece& piece, const float* row, float* y) { add_piece<Vec64, 1>(piece, row, 0, y); }
#endif

/// Rows of the matrix that stay in the first-level cache, those of two strips: 16 KiB, or twice that where vectors have
/// few of them and a piece of fewer would cost more than its sums.
int64_t rows_at_once(std::span<const SparseVector> v, int64_t span) {
  constexpr int64_t kDense = 32, kSparse = 64;
  size_t elements = 0;
  for (const SparseVector& x : v) elements += x.index.size();
  return 2 * static_cast<int64_t>(elements) > span * static_cast<int64_t>(v.size()) ? kDense : kSparse;
}

}  // namespace

ColumnStrips::ColumnStrips(int64_t k, ThreadPool* pool)
    : k_(k),
      strips_((k + kStripWidth - 1) / kStripWidth),
      data_(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(strips_ * kStripWidth * k))) {
  parallel_for(pool, strips_, 1, [&](int64_t begin, int64_t end, int) {
    std::fill_n(row(begin, 0), (end - begin) * kStripWidth * k, 0.0f);
  });
}

void add_products(const ColumnStrips& m, std::span<const SparseVector> v, int64_t first, int64_t last, int64_t skipped,
                  std::span<float* const> y) {
  int64_t low = m.k(), high = 0;
  for (const SparseVector& x : v)
    if (!x.index.empty()) {
      low = std::min<int64_t>(low, x.index.front());
      high = std::max<int64_t>(high, x.index.back() + 1);
    }
  if (low >= high) return;
  Products job{m, {}, first, last, skipped, y};
  const int64_t rows = rows_at_once(v, high - low);
  std::vector<size_t> done(v.size());
  for (int64_t end = low / rows * rows + rows; end < high + rows; end += rows)
    for (size_t r = 0; r < v.size(); ++r) {
      const std::vector<int32_t>& index = v[r].index;
      const size_t begin = done[r];
      while (done[r] < index.size() && index[done[r]] < end) ++done[r];
      job.pieces.push_back({v[r].a.data() + begin, index.data() + begin, static_cast<int64_t>(done[r] - begin)});
    }
  run(job);
}

void add_scaled_row(float a, const float* row, float* y) {
  constexpr int32_t kFirst = 0;
  add_row({&a, &kFirst, 1}, row, y);
}

}  // namespace lowbit
