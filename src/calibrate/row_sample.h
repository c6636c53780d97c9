#pragma once
// Some rows of a layer in place of all: what candidates are compared on.

#include <cstdint>

#include "format/qtensor.h"
#include "lowbit/error.h"

namespace lowbit {

/// One row of sixteen, at least 64 where there are as many, evenly spread, as f32. Rows are fitted on their own, so a
/// share of them costs that share. Errors: kOutOfMemory.
Result<QTensor> sample_rows(const QTensor& w);

/// Bytes of n rows, given some of them quantized: a table is there once.
int64_t bytes_of_rows(const QTensor& some, int64_t n);

}  // namespace lowbit
