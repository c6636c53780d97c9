#pragma once
// The loops of a factorization in tiles and of solutions by its factor, in f64. Same bits whatever vectors the machine
// has. Internal to src/quantize.

#include <cstdint>

namespace lowbit {

inline constexpr int64_t kTile = 128;  // rows and columns of a tile, at most
inline constexpr int64_t kSides = 32;  // right sides at a time

/// x[i * x_stride + s] += sum over p < depth of l[p * kTile + i] * y[p * y_stride + s] for i < rows and s < kSides, by
/// fused multiply-adds in the order of p.
void add_tile_product(const double* l, int64_t rows, int64_t depth, const double* y, int64_t y_stride, double* x,
                      int64_t x_stride);

/// The unknowns x[i * stride + s] of kSides triangular systems, in place of their right sides. l[p * kTile + i]: minus
/// the factor of unknown p in row i. Rows are solved first to last from those before them; `upwards`: the other way.
void solve_tile(const double* l, const double* diagonal, int64_t rows, bool upwards, double* x, int64_t stride);

}  // namespace lowbit
