#pragma once
// Products of integers with few bits that stand alone, as seeds 002 and 003 have them: docs/operators.md.

#include <cstdint>
#include <span>

#include "base/threads.h"
#include "lowbit/error.h"

namespace lowbit {

/// Rows of x as int8: s = stored(127 / max(max |x|, 1e-5)), code = round half to even(x * s), to -128..127. A row that
/// holds a NaN or an infinity has s = NaN and codes 0. `stored`: what a scale's storage type makes of it; null:
/// nothing.
void quantize_activations_int8(const float* x, int64_t m, int64_t k, int64_t ldx, int8_t* codes, int64_t ldq, float* s,
                               float (*stored)(float) = nullptr);

/// How 2-bit codes, value + 2, lie in memory.
enum class Int2Order {
  kRows,   // rows of four codes a byte, the least significant bits first
  kTiles,  // Tile16x32 of Transposed4x4, as seed 002's kernel reads them: n % 16 == 0, k % 32 == 0
};

/// Bytes of a row, or of a sixteenth of a row of tiles.
constexpr int64_t int2_row_bytes(int64_t k) { return (k + 3) / 4; }

/// Codes [n, k] from one order to the other. kRows begin `stride` bytes apart, and bits behind a row's end are 0.
/// Error: kShapeMismatch (n or k that tiles do not take).
Status int2_to_tiles(const uint8_t* rows, int64_t stride, int64_t n, int64_t k, uint8_t* tiles);
Status int2_from_tiles(const uint8_t* tiles, int64_t n, int64_t k, uint8_t* rows, int64_t stride);

/// y[i, j] = float(sum_p x[i, p] * value(w[j, p])) / s[i] * ws[range of j]: the sum is exact, each operation behind it
/// f32. With `multiplies` it is * s[i] * ws in place of / s[i] * ws.
struct Bitlinear {
  int64_t m = 0, n = 0, k = 0;  // k at most 2^22, so that sums are int32
  const int8_t* x = nullptr;    // [m, k], rows ldx apart
  int64_t ldx = 0;
  const float* s = nullptr;         // [m]
  const uint8_t* weight = nullptr;  // [n, k] in `order`
  int64_t weight_stride = 0;        // bytes, of kRows
  Int2Order order = Int2Order::kRows;
  std::span<const float> ws = {};          // one per range
  std::span<const int32_t> row_ends = {};  // of the ranges, ascending, the last is n; empty: one range
  bool multiplies = false;
  float* y = nullptr;  // [m, n], rows ldy apart
  int64_t ldy = 0;
};
/// Checks the arguments, wherever the operands lie. Errors: kInvalidArgument, kShapeMismatch.
Status check_int2_product(int64_t m, int64_t n, int64_t k, Int2Order order);
/// Errors: kInvalidArgument, kShapeMismatch, kOutOfMemory.
Status bitlinear_int8xint2(const Bitlinear& call, ThreadPool& pool);

/// Bit k of a row, the least significant of a byte first: x >= 0 or NaN. scale: the mean of |x|, summed as
/// docs/numerics.md#bits-times-bits says. `bits`: rows `stride` bytes apart; bits behind a row's end in its last byte
/// are 0.
void binarize_activations(const float* x, int64_t m, int64_t k, int64_t ldx, uint8_t* bits, int64_t stride,
                          float* scales);

/// y[i, j] = fma(float(S) * w_scales[j], x_scales[i], bias[j] or 0), S = sum_p of +-1 times +-1, exact.
struct BinaryProduct {
  int64_t m = 0, n = 0, k = 0;
  const uint8_t* x = nullptr;  // [m, ceil(k / 8)], rows x_stride bytes apart; bits behind a row's end do not count
  int64_t x_stride = 0;
  const float* x_scales = nullptr;  // [m] or null: 1
  const uint8_t* weight = nullptr;  // [n, ceil(k / 8)], in the same way
  int64_t weight_stride = 0;
  const float* w_scales = nullptr;  // [n] or null: 1
  const float* bias = nullptr;      // [n] or null
  float* y = nullptr;
  int64_t ldy = 0;
};
void binary_matmul(const BinaryProduct& call, ThreadPool& pool);

}  // namespace lowbit
