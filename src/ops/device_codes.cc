#include "ops/device_codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <vector>

#include "base/try.h"
#include "format/registry.h"
#include "kernels/cuda_lookup.h"

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

namespace {
bool can_look_up(std::span<const float> entries) { return cuda::split_table(cuda::byte_table(entries)).has_value(); }
}  // namespace
bool can_look_up_sorted(std::vector<float> entries) {
  std::ranges::sort(entries);
  return can_look_up(entries);
}
bool wants_sorted_table(const QTensor& w) {
  return format_info(w.format).kind == ValueKind::kTable && trellis_of(w.format) == nullptr && !can_look_up(w.codebook);
}

Result<QTensor> with_sorted_table(const QTensor& w, ThreadPool* pool) {
  std::array<uint8_t, 16> order, place = {};  // the entry that comes to a place; where an entry goes
  std::iota(order.begin(), order.end(), uint8_t{0});
  const auto count = static_cast<ptrdiff_t>(w.codebook.size());
  std::stable_sort(order.begin(), order.begin() + count,
                   [&w](uint8_t a, uint8_t b) { return w.codebook[a] < w.codebook[b]; });
  QTensor out = w;
  for (size_t i = 0; i < w.codebook.size(); ++i) {
    out.codebook[i] = w.codebook[order[i]];
    place[order[i]] = static_cast<uint8_t>(i);
  }
  LOWBIT_TRY_ASSIGN(out.codes, Buffer::allocate(w.n * row_bytes(w.format, w.k), "weight codes"));
  for_each_row(w.n, pool, [&](int64_t r) {
    std::vector<uint8_t> codes(static_cast<size_t>(w.k));
    format_ops(w.format).unpack(w.row(r), 0, w.k, codes.data());
    for (uint8_t& code : codes) code = place[code];
    format_ops(w.format).pack(codes.data(), w.k, out.codes.as<uint8_t>() + r * row_bytes(w.format, w.k));
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
