#pragma once
// From real matrices to quantized ones: the fitters, over any format, scaling and block shape.

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "format/qtensor.h"
#include "lowbit/error.h"

namespace lowbit {

enum class FitMethod : uint8_t {
  kAuto,     // kAbsmax for float alphabets (fp8), kLsq for all others
  kAbsmax,   // the largest magnitude of a block maps to the grid's reach; min and max with zeros
  kAbsmean,  // scale = mean |w|: BitNet's ternary rule, binary's mean. No zeros
  kMse,      // the best of 80 shrunken ranges
  kLsq,      // closed-form least squares; up to 4 values without zeros: the global optimum
};
const char* fit_method_name(FitMethod method);  // "auto", "absmax", "absmean", "mse", "lsq"
Result<FitMethod> parse_fit_method(std::string_view name);

enum class TableMethod : uint8_t {
  kKmeans,    // one table per tensor, fitted to a sample of its groups
  kLloydMax,  // the normal distribution's best table
  kGiven,     // FitOptions::codebook
};

struct FitOptions {
  FormatId format = FormatId::kInt8;
  Scaling scaling;
  FitMethod method = FitMethod::kAuto;
  TableMethod table = TableMethod::kKmeans;  // codebook formats only
  std::vector<float> codebook;               // TableMethod::kGiven: 2^code_bits entries
  uint64_t seed = 0;                         // which groups the k-means sample holds
  std::vector<int64_t> row_ends;             // Scaling::kRowRanges only
};

struct FitReport {
  double rel_error = 0;       // sum (w - q)^2 / sum w^2 with q as stored; 0 for a zero matrix
  double weighted_error = 0;  // the same sums with importance; rel_error when there is none
  int64_t zero_scales = 0;    // blocks whose scale is 0
};

/// Quantizes w [n, k] row-major f32.
/// importance: [k] weights >= 0 of the columns' squared errors (diag(H), mean x^2), or null.
/// Scales and zeros are rounded to their storage kind first, codes chosen for the rounded ones.
/// A block whose best storable scale is worse than none, an all-zero block among them, gets scale
/// 0 and the codes of the value nearest to 0 (power-of-two scales have no 0: the smallest one).
/// Scales are never infinite or NaN; {-2..1}-like grids may get negative ones (not kPow2).
/// A block of more than 2^17 elements is searched on evenly spaced rows of it; absmax, absmean and
/// the codes use all of it. Same bits for any thread count.
/// Errors: kInvalidArgument for NaN or infinite weights (names row and column) or importance, for
/// options that contradict each other; kUnsupported for dense formats, and on a trellis for zeros, scales of several
/// rows and other methods than kLsq; kOutOfMemory.
Result<ValueTensor> fit(const float* w, int64_t n, int64_t k, const FitOptions& options, const float* importance,
                        ThreadPool& pool, FitReport* report = nullptr);

/// out[0 .. count * k) = rows [first, first + count) of the matrix as f32. Called from several
/// threads at once, also twice for the same rows; must give the same numbers each time.
using RowReader = std::function<Status(int64_t first, int64_t count, float* out)>;

/// pack(fit(...)) with the same bits, without the whole matrix in memory: rows are read, fitted
/// and packed a few at a time, except where a scale spans all rows or row ranges. Errors: as fit;
/// the reader's own.
Result<QTensor> fit_and_pack(const RowReader& rows, int64_t n, int64_t k, const FitOptions& options,
                             const float* importance, ThreadPool& pool, FitReport* report = nullptr);

}  // namespace lowbit
