#pragma once
// Codes of a weight as the kernels of a device want them, made on the host when it is loaded.

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

}  // namespace lowbit
