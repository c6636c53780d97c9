#include "format/registry.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/checked.h"
#include "format/formats.h"

namespace lowbit {
namespace {

constexpr int64_t unit_row_bytes(int64_t k, int unit_elems, int unit_bytes, int bits, bool dense_bits) {
  return dense_bits ? ceil_div(k * bits, 8) : ceil_div(k, unit_elems) * unit_bytes;
}

template <class F>
constexpr bool kDenseBits = F::Packing::kDenseBits;

/// Eight codes of B bits in the lowest 8 B bits, the first lowest, to the eight bytes of the result: halves are moved apart, then
/// quarters, then single codes.
template <int B>
constexpr uint64_t spread_codes(uint64_t v) {
  constexpr auto repeated = [](uint64_t low, int distance) {
    for (int d = distance; d < 64; d *= 2) low |= low << d;
    return low;
  };
  constexpr uint64_t kMask = (uint64_t{1} << B) - 1;
  v = (v | v << (32 - 4 * B)) & repeated((uint64_t{1} << 4 * B) - 1, 32);
  v = (v | v << (16 - 2 * B)) & repeated((uint64_t{1} << 2 * B) - 1, 16);
  return (v | v << (8 - B)) & repeated(kMask, 8);
}

template <class F>
void unpack_row(const uint8_t* row, int64_t first, int64_t n, uint8_t* codes) {
  constexpr int64_t kElems = F::kElems, kUnitBytes = F::kUnitBytes;
  int64_t k = first;
  const int64_t end = first + n;
  const auto one_unit = [&](int64_t take) {  // part of a unit: at the row's ends, or a truncated last unit
    uint8_t unit[kUnitBytes] = {};
    const int64_t u = k / kElems, last = (k % kElems + take) * F::kBits;
    const int64_t bytes = kDenseBits<F> ? std::min<int64_t>(ceil_div(last, 8), kUnitBytes) : kUnitBytes;
    std::memcpy(unit, row + u * kUnitBytes, static_cast<size_t>(bytes));
    uint8_t all[kElems];
    F::unpack(unit, all);
    std::copy_n(all + k % kElems, take, codes + (k - first));
    k += take;
  };
  if (k % kElems != 0) one_unit(std::min(kElems - k % kElems, end - k));
  if constexpr (kDenseBits<F> && std::endian::native == std::endian::little) {
    for (; k % 8 == 0 && k + 8 <= end; k += 8) {
      uint64_t v = 0;
      std::memcpy(&v, row + k / 8 * F::kBits, F::kBits);
      if constexpr (F::kBits < 8) v = spread_codes<F::kBits>(v);
      std::memcpy(codes + (k - first), &v, 8);
    }
  }
  for (; k + kElems <= end; k += kElems) F::unpack(row + k / kElems * kUnitBytes, codes + (k - first));
  if (k < end) one_unit(end - k);
}

template <class F>
void pack_row(const uint8_t* codes, int64_t n, uint8_t* row) {
  constexpr int64_t kElems = F::kElems, kUnitBytes = F::kUnitBytes;
  for (int64_t k = 0; k < n; k += kElems) {
    uint8_t unit[kUnitBytes] = {};
    const int64_t take = std::min(kElems, n - k);
    for (int64_t e = 0; e < take; ++e) F::put(unit, static_cast<int>(e), codes[k + e]);
    const int64_t bytes = kDenseBits<F> ? std::min<int64_t>(ceil_div(take * F::kBits, 8), kUnitBytes) : kUnitBytes;
    std::memcpy(row + k / kElems * kUnitBytes, unit, static_cast<size_t>(bytes));
  }
}

template <class F>
constexpr auto value_table() {
  std::array<float, size_t{1} << F::kBits> t{};
  for (size_t c = 0; c < t.size(); ++c) t[c] = static_cast<float>(F::Codec::value(static_cast<unsigned>(c)));
  return t;
}
template <class F>
constexpr auto kValues = value_table<F>();

template <class F>
struct OpsOf {
  static constexpr FormatOps value{&unpack_row<F>, &pack_row<F>, kValues<F>.data(), unsigned(F::Codec::kCodes)};
};

template <class F>
struct CodeOf {
  static uint8_t code(int v) {
    using Argument = decltype(F::Codec::value(0));
    return static_cast<uint8_t>(F::Codec::code(static_cast<Argument>(v)));
  }
  static constexpr auto value = &code;
};

template <class F>
struct InfoOf {
  static constexpr bool kIsCanonical = kDenseBits<F> || F::kId == FormatId::kTernaryPacked;
  static constexpr ValueKind kKind = F::Codec::kKind == CodecKind::kInteger ? ValueKind::kInteger
                                     : F::Codec::kKind == CodecKind::kFloat ? ValueKind::kFloat
                                                                            : ValueKind::kTable;
  static constexpr FormatInfo value{F::kId,   F::kName,  F::kAlphabet,  kKind,          kIsCanonical,
                                    F::kBits, F::kElems, F::kUnitBytes, F::Codec::kMin, F::Codec::kMax};
};

template <class F>
struct DenseBitsOf {
  static constexpr bool value = kDenseBits<F>;
};

constexpr auto kOps = make_table<OpsOf>(FormatList{});
constexpr auto kHasDenseBits = make_table<DenseBitsOf>(FormatList{});
constexpr auto kCodeOf = make_table<CodeOf>(FormatList{});

constexpr auto all_infos() {
  constexpr auto packed = make_table<InfoOf>(FormatList{});
  std::array<FormatInfo, kDenseFormats + packed.size()> rows{{
      {FormatId::kF32, "f32", "IEEE binary32", ValueKind::kDense, true, 32, 1, 4, 0, 0},
      {FormatId::kF16, "f16", "IEEE binary16", ValueKind::kDense, true, 16, 1, 2, 0, 0},
      {FormatId::kBf16, "bf16", "bfloat16", ValueKind::kDense, true, 16, 1, 2, 0, 0},
  }};
  for (size_t i = 0; i < packed.size(); ++i) rows[kDenseFormats + i] = packed[i];
  return rows;
}
constexpr auto kInfos = all_infos();

constexpr bool ids_follow_the_list() {
  for (size_t i = 0; i < kInfos.size(); ++i)
    if (static_cast<size_t>(kInfos[i].id) != i) return false;
  return true;
}
static_assert(ids_follow_the_list(), "FormatId and FormatList must have the same order");

size_t packed_index(FormatId id) {
  LOWBIT_DCHECK(static_cast<int>(id) >= kDenseFormats);
  return static_cast<size_t>(id) - kDenseFormats;
}

}  // namespace

std::span<const FormatInfo> formats() { return kInfos; }
const FormatInfo& format_info(FormatId id) { return kInfos[static_cast<size_t>(id)]; }

Result<FormatId> parse_format(std::string_view name) {
  std::string known;
  for (const auto& info : kInfos) {
    if (name == info.name) return info.id;
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  }
  return fail(ErrorCode::kInvalidArgument, "format", "'" + std::string(name) + "'", "one of " + known);
}

const FormatOps& format_ops(FormatId id) { return kOps[packed_index(id)]; }
uint8_t code_of(FormatId id, int value) { return kCodeOf[packed_index(id)](value); }

int64_t row_bytes(FormatId id, int64_t k) {
  const FormatInfo& info = format_info(id);
  const bool dense_bits = is_dense(id) || kHasDenseBits[packed_index(id)];
  return unit_row_bytes(k, info.unit_elems, info.unit_bytes, info.code_bits, dense_bits);
}

}  // namespace lowbit
