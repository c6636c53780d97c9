#pragma once
// The scales of a row at once: QTensor::scale() looks at the kind of scale each time.

#include "format/qtensor.h"

namespace lowbit {

/// out [w.scale_cols()]: w.scale(row, 0), w.scale(row, 1), ...
void scales_of_row(const QTensor& w, int64_t row, float* out);

}  // namespace lowbit
