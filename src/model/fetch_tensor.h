#pragma once

#include <cstdint>
#include <string>

#include "base/threads.h"
#include "format/qtensor.h"
#include "model/source.h"

namespace lowbit {

/// The tensor `name` of a model, [n, k] as its configuration asks for, with finite contents. Errors, each with the
/// name: kNotFound, kShapeMismatch, kCorrupt (NaN or infinity in weights, scales, zeros or codebook), what load() says.
Result<QTensor> fetch_tensor(const WeightSource& source, const std::string& name, int64_t n, int64_t k,
                             ThreadPool& pool);

/// Checks that `w` is [n, k] with finite contents.
Status check_tensor(const QTensor& w, const std::string& name, int64_t n, int64_t k, ThreadPool& pool);

/// No NaN and no infinity in anything that makes a weight. Errors: kCorrupt.
Status check_finite(const QTensor& w, const std::string& name, ThreadPool& pool);

}  // namespace lowbit
