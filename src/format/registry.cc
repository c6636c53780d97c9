#include "format/registry.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/checked.h"
#include "format/formats.h"

namespace lowbit {
namespace {

constexpr int64_t packed_row_bytes(int64_t k, int pack_elems, int pack_bytes, bool dense_bits) {
  return dense_bits ? ceil_div(k * pack_bytes, pack_elems) : ceil_div(k, pack_elems) * pack_bytes;
}

template <class F>
constexpr bool kDenseBits = F::Packing::kDenseBits;

/// `bits` ones in every `distance` bits.
constexpr uint64_t repeated_ones(int bits, int distance) {
  uint64_t ones = (uint64_t{1} << bits) - 1;
  for (int d = distance; d < 64; d *= 2) ones |= ones << d;
  return ones;
}

/// Eight codes of B bits in the lowest 8 B bits, the first lowest, to the eight bytes of the result: halves are moved
/// apart, then quarters, then single codes.
template <int B>
constexpr uint64_t spread_codes(uint64_t v) {
  v = (v | v << (32 - 4 * B)) & repeated_ones(4 * B, 32);
  v = (v | v << (16 - 2 * B)) & repeated_ones(2 * B, 16);
  return (v | v << (8 - B)) & repeated_ones(B, 8);
}

/// And back.
template <int B>
constexpr uint64_t gather_codes(uint64_t v) {
  v = (v | v >> (8 - B)) & repeated_ones(2 * B, 16);
  v = (v | v >> (16 - 2 * B)) & repeated_ones(4 * B, 32);
  return (v | v >> (32 - 4 * B)) & repeated_ones(8 * B, 64);
}
static_assert(gather_codes<3>(spread_codes<3>(0xfedcba)) == 0xfedcba);

template <class F>
requires(!OnTrellis<F>) void unpack_row(const uint8_t* row, int64_t first, int64_t n, uint8_t* codes) {
  constexpr int64_t kElems = F::kElems, kPackBytes = F::kPackBytes;
  int64_t k = first;
  const int64_t end = first + n;
  const auto part_of_pack = [&](int64_t take) {  // part of a pack: at the row's ends, or a truncated last pack
    uint8_t pack[kPackBytes] = {};
    const int64_t u = k / kElems, last = (k % kElems + take) * F::kBits;
    const int64_t bytes = kDenseBits<F> ? std::min<int64_t>(ceil_div(last, 8), kPackBytes) : kPackBytes;
    std::memcpy(pack, row + u * kPackBytes, static_cast<size_t>(bytes));
    uint8_t all[kElems];
    F::unpack(pack, all);
    std::copy_n(all + k % kElems, take, codes + (k - first));
    k += take;
  };
  if (k % kElems != 0) part_of_pack(std::min(kElems - k % kElems, end - k));
  if constexpr (kDenseBits<F> && std::endian::native == std::endian::little) {
    for (; k % 8 == 0 && k + 8 <= end; k += 8) {
      uint64_t v = 0;
      std::memcpy(&v, row + k / 8 * F::kBits, F::kBits);
      if constexpr (F::kBits < 8) v = spread_codes<F::kBits>(v);
      std::memcpy(codes + (k - first), &v, 8);
    }
  }
  for (; k + kElems <= end; k += kElems) F::unpack(row + k / kElems * kPackBytes, codes + (k - first));
  if (k < end) part_of_pack(end - k);
}

/// The stored codes of a row are those of a format with as many bits.
template <OnTrellis F>
using StoredFormat = Format<Unsigned<F::Packing::kStoredBits>, Linear<F::Packing::kStoredBits>>;

template <OnTrellis F>
void unpack_row(const uint8_t* row, int64_t first, int64_t n, uint8_t* codes) {
  using T = typename F::Packing;
  uint8_t before[T::kMemory];
  const int64_t remembered = std::min<int64_t>(first, T::kMemory);
  unpack_row<StoredFormat<F>>(row, first - remembered, remembered, before);
  unpack_row<StoredFormat<F>>(row, first, n, codes);
  unsigned window = 0;
  for (int64_t i = 0; i < remembered; ++i) window = T::next(window, before[i]);
  for (int64_t i = 0; i < n; ++i) {
    window = T::next(window, codes[i]);
    codes[i] = kTrellisCodes<T::kStoredBits>[window];
  }
}

/// Codes to what is stored for them, one after the other; false where that cannot be.
template <class F>
struct Storing {
  using Stored = F;
  bool operator()(uint8_t& code) const { return code < F::Codec::kCodes; }
};
template <OnTrellis F>
struct Storing<F> {
  using Stored = StoredFormat<F>;
  unsigned window = 0;
  bool operator()(uint8_t& code) {
    using T = typename F::Packing;
    if (code >= F::Codec::kCodes) return false;
    code = kTrellisStored<T::kStoredBits>[window % T::kStates][code];
    window = T::next(window, code);
    return code != kOffTrellis;
  }
};

template <class F>
int64_t pack_row(const uint8_t* codes, int64_t n, uint8_t* row) {
  constexpr int64_t kElems = F::kElems, kPackBytes = F::kPackBytes;
  using Stored = typename Storing<F>::Stored;
  Storing<F> storing;
  int64_t k = 0;
  if constexpr (kDenseBits<F> && std::endian::native == std::endian::little) {
    for (; k + 8 <= n; k += 8) {
      uint64_t v = 0;
      std::memcpy(&v, codes + k, 8);
      // Eight at once where every code of these bits is one.
      if (OnTrellis<F> || F::Codec::kCodes < 1 << F::kBits || (v & ~(repeated_ones(F::kBits, 8))) != 0) {
        uint8_t eight[8];
        for (int e = 0; e < 8; ++e) {
          eight[e] = codes[k + e];
          if (!storing(eight[e])) return k + e;
        }
        std::memcpy(&v, eight, 8);
      }
      if constexpr (Stored::kBits < 8) v = gather_codes<Stored::kBits>(v);
      std::memcpy(row + k / 8 * Stored::kBits, &v, Stored::kBits);
    }
  }
  while (k < n) {  // in packs: what is left of a row of dense bits goes into the next bytes, wherever its pack began
    uint8_t pack[kPackBytes] = {};
    const int64_t take = std::min(kElems, n - k);
    for (int64_t e = 0; e < take; ++e) {
      uint8_t code = codes[k + e];
      if (!storing(code)) return k + e;
      Stored::put(pack, static_cast<int>(e), code);
    }
    const int64_t bytes = kDenseBits<F> ? ceil_div(take * kPackBytes, kElems) : kPackBytes;
    std::memcpy(row + k * kPackBytes / kElems, pack, static_cast<size_t>(bytes));
    k += take;
  }
  return n;
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
  static constexpr FormatId kExpanded = OnTrellis<F> ? FormatId::kCodebook4 : F::kId;
  static constexpr FormatInfo value{F::kId,    F::kName,      F::kAlphabet,   kKind,          kIsCanonical, F::kBits,
                                    F::kElems, F::kPackBytes, F::Codec::kMin, F::Codec::kMax, kExpanded};
};

template <class F>
struct TrellisOf {
  static constexpr TrellisInfo value{};
};
template <OnTrellis F>
struct TrellisOf<F> {
  static constexpr int kStored = F::Packing::kStoredBits;
  static constexpr TrellisInfo value{kStored, F::Packing::kStates, kTrellisCodes<kStored>.data(),
                                     kTrellisStored<kStored>[0].data()};
};

template <class F>
struct DenseBitsOf {
  static constexpr bool value = kDenseBits<F>;
};

constexpr auto kOps = make_table<OpsOf>(FormatList{});
constexpr auto kTrellises = make_table<TrellisOf>(FormatList{});
constexpr auto kHasDenseBits = make_table<DenseBitsOf>(FormatList{});
constexpr auto kCodeOf = make_table<CodeOf>(FormatList{});

constexpr auto all_infos() {
  constexpr auto packed = make_table<InfoOf>(FormatList{});
  std::array<FormatInfo, kDenseFormats + packed.size()> rows{{
      {FormatId::kF32, "f32", "IEEE binary32", ValueKind::kDense, true, 32, 1, 4, 0, 0, FormatId::kF32},
      {FormatId::kF16, "f16", "IEEE binary16", ValueKind::kDense, true, 16, 1, 2, 0, 0, FormatId::kF16},
      {FormatId::kBf16, "bf16", "bfloat16", ValueKind::kDense, true, 16, 1, 2, 0, 0, FormatId::kBf16},
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

const TrellisInfo* trellis_of(FormatId id) {
  if (static_cast<int>(id) < kDenseFormats) return nullptr;
  const TrellisInfo& trellis = kTrellises[packed_index(id)];
  return trellis.states > 0 ? &trellis : nullptr;
}

void make_storable(FormatId id, uint8_t* codes, int64_t n) {
  const TrellisInfo* const trellis = trellis_of(id);
  if (trellis == nullptr) return;
  unsigned state = 0;
  for (int64_t i = 0; i < n; ++i) {
    const unsigned first = state << trellis->stored_bits, behind = first + (1u << trellis->stored_bits);
    unsigned nearest = first;
    for (unsigned window = first; window < behind; ++window)
      if (std::abs(trellis->codes[window] - codes[i]) < std::abs(trellis->codes[nearest] - codes[i])) nearest = window;
    codes[i] = trellis->codes[nearest];
    state = nearest % trellis->states;
  }
}

uint8_t code_of(FormatId id, int value) { return kCodeOf[packed_index(id)](value); }

int64_t row_bytes(FormatId id, int64_t k) {
  const FormatInfo& info = format_info(id);
  const bool dense_bits = is_dense(id) || kHasDenseBits[packed_index(id)];
  return packed_row_bytes(k, info.pack_elems, info.pack_bytes, dense_bits);
}

}  // namespace lowbit
