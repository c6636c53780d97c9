#pragma once
// Codes of a weight as the kernels of a device want them, made on the host when it is loaded.

#include <span>
#include <vector>

#include "base/threads.h"
#include "format/qtensor.h"
#include "lowbit/error.h"

namespace lowbit {

/// A weight of a table of integers with these as its codes. `pool` shares the work; null: the caller's thread does it.
/// Errors: kOutOfMemory.
Result<QTensor> with_integers_of_table(const QTensor& w, ThreadPool* pool);

/// Stored codes of a row that the meaning of the next one depends on: 0, but on a trellis.
int64_t codes_before(FormatId format);

/// Rows of stored codes with groups of `wide` columns in place of `group`, `columns` in all; the code 0 stands behind
/// those of a group, and at the end of its room, which has codes_before() columns more, what the next group's first
/// codes depend on. Errors: kOutOfMemory.
Result<Buffer> widen_groups(const QTensor& w, int64_t group, int64_t wide, int64_t columns, ThreadPool* pool);

/// Whether kernels look such entries up, integers of 8 bits, when they are sorted (kernels/cuda_lookup.h).
bool can_look_up_sorted(std::vector<float> entries);
/// Whether w's table has to be sorted for that: a trellis has an order of its own.
bool wants_sorted_table(const QTensor& w);
/// A weight of a table whose entries ascend. `pool`: as above. Errors: kOutOfMemory.
Result<QTensor> with_sorted_table(const QTensor& w, ThreadPool* pool);

/// Whether a code of fp8 row r that scale s belongs to is NaN.
bool holds_nan(const QTensor& w, int64_t r, int64_t s);

}  // namespace lowbit
