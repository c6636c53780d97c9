#include "quantize/column_strips.h"

namespace lowbit {

void add_products(const ColumnStrips& m, std::span<const SparseVector> v, int64_t first, int64_t last, int64_t skipped,
                  std::span<float* const> y) {
  int64_t low = m.k(), high = 0;
  for (const SparseVector& x : v)
    if (!x.index.empty()) {
      low = std::min<int64_t>(low, x.index.front());
      high = std::max<int64_t>(high, x.index.back() + 1);
    }
  std::vector<size_t> done(v.size());
  for (int64_t strip = first; strip < last; ++strip) {
    if (strip == skipped) continue;
    std::fill(done.begin(), done.end(), size_t{0});
    const float* rows = m.row(strip, 0);
    for (int64_t end = low / kStripWidth * kStripWidth + kStripWidth; low < high; end += kStripWidth) {
      for (size_t r = 0; r < v.size(); ++r) {
        const std::vector<int32_t>& index = v[r].index;
        const size_t begin = done[r];
        while (done[r] < index.size() && index[done[r]] < end) ++done[r];
        if (done[r] > begin)
          add_scaled_rows(v[r].a.data() + begin, index.data() + begin, static_cast<int64_t>(done[r] - begin), rows,
                          y[r] + strip * kStripWidth);
      }
      if (end >= high) break;
    }
  }
}

}  // namespace lowbit
