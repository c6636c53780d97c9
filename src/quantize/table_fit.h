#pragma once
// Tables for the codebook formats: one per tensor.

#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "lowbit/format.h"
#include "quantize/group_fit.h"

namespace lowbit {

/// `count` values x_i with P(X < x_i) = (i + 1/2) / count for a standard normal X, ascending.
std::vector<float> normal_quantiles(int count);

/// Rounds to integers with the largest magnitude 127.
void to_integers(std::vector<double>& table);

/// Lloyd-Max quantizer of the standard normal distribution: `entries` values, ascending, as
/// integers with the largest magnitude 127, so that int8 kernels can use the table without error.
std::vector<float> lloyd_max_table(int entries);

/// Lloyd's iteration on sample groups, each with a least-squares scale (and offset) of its own:
/// codes, scales and table entries improve in turn, from the Lloyd-Max table and from quantiles of
/// the sample; the better end wins. Integers as above.
/// Groups in the caller's order; the result does not depend on anything else.
std::vector<float> kmeans_table(FormatId format, std::span<const Group> sample, OffsetRule rule, ThreadPool& pool);

}  // namespace lowbit
