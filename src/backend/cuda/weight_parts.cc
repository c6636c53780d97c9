#include "backend/cuda/weight_parts.h"

#include <algorithm>

#include "base/checked.h"
#include "base/try.h"

namespace lowbit {

Result<WeightParts> split_weight(const QTensor& w, ThreadPool& pool) {
  WeightParts parts;
  QTensor plain = w;  // with one scale, 1
  if (!is_dense(w.format)) {
    plain.scaling = {Scaling::kAll, Scaling::kAll, ScaleKind::kF32, ZeroKind::kNone};
    LOWBIT_TRY_ASSIGN(plain.scales, Buffer::allocate(int64_t{sizeof(float)}, "a scale"));
    *plain.scales.as<float>() = 1.0f;
    plain.super_scales = plain.zeros = {};
    plain.row_ends.clear();
  }
  parts.values.resize(static_cast<size_t>(w.n * w.k));
  pool.parallel_for(w.n, 16, [&](int64_t begin, int64_t end, int) {
    dequantize_rows(plain, begin, end - begin, parts.values.data() + begin * w.k);
  });
  parts.group = std::max<int64_t>(1, is_dense(w.format) ? w.k : std::min(w.group(), w.k));
  if (is_dense(w.format)) return parts;
  const auto fill = [&](std::vector<float>& to, auto factor) {
    to.resize(static_cast<size_t>(ceil_div(w.k, parts.group) * w.n));
    pool.parallel_for(ceil_div(w.k, parts.group), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t g = begin; g < end; ++g)
        for (int64_t r = 0; r < w.n; ++r) to[static_cast<size_t>(g * w.n + r)] = factor(r, g);
    });
  };
  fill(parts.scales, [&](int64_t r, int64_t g) { return w.scale(r, g); });
  if (w.scaling.zero != ZeroKind::kNone) fill(parts.offsets, [&](int64_t r, int64_t g) { return w.offset(r, g); });
  return parts;
}

}  // namespace lowbit
