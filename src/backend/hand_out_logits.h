#pragma once

#include "backend/step.h"
#include "base/threads.h"

namespace lowbit {

/// Rows [first, first + rows) of all that a batch wants go where they belong: a copy, or a call of a sink; nowhere with
/// a choice. Shapes: logits [rows, vocab].
void hand_out_logits(std::span<const WantedRows> wanted, int64_t first, int64_t rows, float* logits, int64_t vocab,
                     ThreadPool& pool);

}  // namespace lowbit
