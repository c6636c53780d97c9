#include "backend/hand_out_logits.h"

#include <algorithm>

namespace lowbit {

void hand_out_logits(std::span<const WantedRows> wanted, int64_t first, int64_t rows, float* logits, int64_t vocab,
                     ThreadPool& pool) {
  pool.parallel_for(rows, 1, [&](int64_t begin, int64_t end, int) {
    int64_t row = first + begin;  // of its part
    const WantedRows* part = wanted.data();
    for (int64_t i = begin; i < end; ++i, ++row) {
      for (; row >= part->rows; ++part) row -= part->rows;
      float* const from = logits + i * vocab;
      if (part->sink != nullptr)
        (*part->sink)(part->sink_row + row, {from, size_t(vocab)});
      else if (part->logits != nullptr)
        std::copy_n(from, vocab, part->logits + row * vocab);
    }
  });
}

}  // namespace lowbit
