#include "ops/device_codes.h"

#include <algorithm>
#include <bit>
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

int64_t codes_before(FormatId format) {
  const TrellisInfo* const trellis = trellis_of(format);
  return trellis == nullptr ? 0 : (std::bit_width(trellis->states) - 1) / trellis->stored_bits;
}

Result<Buffer> widen_groups(const QTensor& w, int64_t group, int64_t wide, int64_t columns, ThreadPool* pool) {
  const int64_t stride = row_bytes(w.format, columns), before = codes_before(w.format);
  const TrellisInfo* const trellis = trellis_of(w.format);
  // Codes on a trellis are packed as a codebook's of as many bits.
  const FormatOps& ops = format_ops(trellis == nullptr          ? w.format
                                    : trellis->stored_bits == 2 ? FormatId::kCodebook2
                                                                : FormatId::kCodebook3);
  LOWBIT_TRY_ASSIGN(Buffer out, Buffer::allocate(w.n * stride, "weight codes"));
  for_each_row(w.n, pool, [&](int64_t r) {
    std::vector<uint8_t> codes(static_cast<size_t>(w.k)), apart(static_cast<size_t>(columns));
    ops.unpack(w.row(r), 0, w.k, codes.data());
    for (int64_t k = 0; k < w.k; k += group) {
      std::copy_n(codes.begin() + k, std::min(group, w.k - k), apart.begin() + k / group * wide);
      const int64_t depends = std::min(before, k);
      std::copy_n(codes.begin() + k - depends, depends, apart.begin() + k / group * wide - depends);
    }
    ops.pack(apart.data(), columns, out.as<uint8_t>() + r * stride);
  });
  return out;
}

}  // namespace lowbit
