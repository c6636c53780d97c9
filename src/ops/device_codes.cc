#include "ops/device_codes.h"

#include <algorithm>
#include <vector>

#include "base/try.h"
#include "format/registry.h"

namespace lowbit {
namespace {

/// fn(row) for each row, by all threads of `pool` if there is one.
template <class Fn>
void for_each_row(int64_t rows, ThreadPool* pool, const Fn& fn) {
  const auto some = [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) fn(r);
  };
  if (pool != nullptr)
    pool->parallel_for(rows, 16, some);
  else
    some(0, rows, 0);
}

}  // namespace

Result<QTensor> with_integers_of_table(const QTensor& w, ThreadPool* pool) {
  QTensor out = w;
  out.format = FormatId::kInt8;
  out.codebook.clear();
  LOWBIT_TRY_ASSIGN(out.codes, Buffer::allocate(w.n * w.k, "weight codes"));
  for_each_row(w.n, pool, [&](int64_t r) {
    uint8_t* const codes = out.codes.as<uint8_t>() + r * w.k;
    format_ops(w.format).unpack(w.row(r), 0, w.k, codes);
    for (int64_t i = 0; i < w.k; ++i) codes[i] = static_cast<uint8_t>(static_cast<int8_t>(w.codebook[codes[i]]));
  });
  return out;
}

Result<Buffer> widen_groups(const QTensor& w, int64_t group, int64_t wide, int64_t columns, ThreadPool* pool) {
  const int64_t stride = row_bytes(w.format, columns);
  LOWBIT_TRY_ASSIGN(Buffer out, Buffer::allocate(w.n * stride, "weight codes"));
  for_each_row(w.n, pool, [&](int64_t r) {
    std::vector<uint8_t> codes(static_cast<size_t>(w.k)), apart(static_cast<size_t>(columns));
    format_ops(w.format).unpack(w.row(r), 0, w.k, codes.data());
    for (int64_t k = 0; k < w.k; k += group)
      std::copy_n(codes.begin() + k, std::min(group, w.k - k), apart.begin() + k / group * wide);
    format_ops(w.format).pack(apart.data(), columns, out.as<uint8_t>() + r * stride);
  });
  return out;
}

bool holds_nan(const QTensor& w, int64_t r, int64_t s) {
  const int64_t group = std::min(w.group(), w.k), end = std::min(w.k, (s + 1) * group);
  uint8_t nan = 0;
  for (int64_t k = s * group; k < end; ++k) nan |= uint8_t((w.row(r)[k] & 0x7f) == 0x7f);
  return nan != 0;
}

}  // namespace lowbit
