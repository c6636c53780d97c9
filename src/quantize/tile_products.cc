#include "quantize/tile_products.h"

#include "quantize/vector_clones.h"

namespace lowbit {
namespace {

using Vec16 = double __attribute__((vector_size(16)));
using Vec32 = double __attribute__((vector_size(32)));
using Vec64 = double __attribute__((vector_size(64)));

/// One factor of each step for every vector of right sides.
struct Product {
  const double* l;
  int64_t depth;
  const double* y;
  int64_t y_stride;
};

/// kRows rows of x, in registers.
template <class Vec, int kRows, int kVecs>
[[gnu::always_inline]] inline void add_block(const Product& of, double* x, int64_t x_stride) {
  constexpr int kLanes = sizeof(Vec) / sizeof(double);
  Vec sum[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) __builtin_memcpy(&sum[i][v], x + i * x_stride + v * kLanes, sizeof(Vec));
  for (int64_t p = 0; p < of.depth; ++p) {
    Vec y[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) __builtin_memcpy(&y[v], of.y + p * of.y_stride + v * kLanes, sizeof(Vec));
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec factor = of.l[p * kTile + i] - Vec{};
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) sum[i][v] = fused(factor, y[v], sum[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) __builtin_memcpy(x + i * x_stride + v * kLanes, &sum[i][v], sizeof(Vec));
}

template <class Vec, int kVecs>
[[gnu::always_inline]] inline void add_rows(const Product& of, int64_t rows, double* x, int64_t x_stride) {
  constexpr int kRows = 4, kLanes = sizeof(Vec) / sizeof(double);
  for (int64_t s = 0; s < kSides; s += kVecs * kLanes) {
    int64_t i = 0;
    for (; i + kRows <= rows; i += kRows)
      add_block<Vec, kRows, kVecs>({of.l + i, of.depth, of.y + s, of.y_stride}, x + i * x_stride + s, x_stride);
    for (; i < rows; ++i)
      add_block<Vec, 1, kVecs>({of.l + i, of.depth, of.y + s, of.y_stride}, x + i * x_stride + s, x_stride);
  }
}

LOWBIT_FUSED_VERSION("default")
void add_product(const Product& of, int64_t rows, double* x, int64_t x_stride) {
  add_rows<Vec16, 2>(of, rows, x, x_stride);
}
#ifdef LOWBIT_HAS_FUSED_VERSIONS
LOWBIT_FUSED_VERSION("avx2,fma")
void add_product(const Product& of, int64_t rows, double* x, int64_t x_stride) {
  add_rows<Vec32, 2>(of, rows, x, x_stride);
}
LOWBIT_FUSED_VERSION("avx512f")
void add_product(const Product& of, int64_t rows, double* x, int64_t x_stride) {
  add_rows<Vec64, 4>(of, rows, x, x_stride);
}
#endif

}  // namespace

void add_tile_product(const double* l, int64_t rows, int64_t depth, const double* y, int64_t y_stride, double* x,
                      int64_t x_stride) {
  add_product({l, depth, y, y_stride}, rows, x, x_stride);
}

void solve_tile(const double* l, const double* diagonal, int64_t rows, bool upwards, double* x, int64_t stride) {
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t i = upwards ? rows - 1 - n : n, first = upwards ? i + 1 : 0;
    double* const row = x + i * stride;
    add_product({l + first * kTile + i, n, x + first * stride, stride}, 1, row, stride);
    for (int64_t s = 0; s < kSides; ++s) row[s] /= diagonal[i];
  }
}

}  // namespace lowbit
