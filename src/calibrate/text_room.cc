#include "calibrate/text_room.h"

#include <algorithm>

namespace lowbit {

int64_t bytes_at_16_bits(const WeightSource& source) {
  int64_t bytes = 0;
  for (const SourceTensor& t : source.tensors()) {
    int64_t weights = 1;
    for (const int64_t extent : t.shape) weights *= extent;
    bytes += 2 * weights;
  }
  return bytes;
}

int64_t room_for_text(const WeightSource& source, int64_t taken) {
  const int64_t bytes = bytes_at_16_bits(source);
  return std::max<int64_t>(0, bytes + bytes / 5 - taken);
}

}  // namespace lowbit
