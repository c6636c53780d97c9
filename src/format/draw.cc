#include <fmt/format.h>

#include <string>
#include <vector>

#include "format/registry.h"
#include "lowbit/format.h"

namespace lowbit {
namespace {

/// owner[bit of the pack] = (element, bit of its code), found by storing one-bit codes and looking
/// where they land.
struct Owner {
  int element = -1, bit = 0;
};

std::vector<Owner> find_owners(const FormatInfo& info) {
  const FormatOps& ops = format_ops(info.id);
  std::vector<Owner> owners(static_cast<size_t>(8 * info.pack_bytes));
  for (int e = 0; e < info.pack_elems; ++e)
    for (int b = 0; b < info.code_bits; ++b) {
      std::vector<uint8_t> codes(static_cast<size_t>(info.pack_elems)), pack(static_cast<size_t>(info.pack_bytes));
      codes[static_cast<size_t>(e)] = static_cast<uint8_t>(1u << b);
      ops.pack(codes.data(), info.pack_elems, pack.data());
      for (size_t bit = 0; bit < owners.size(); ++bit)
        if (pack[bit / 8] >> (bit % 8) & 1u) owners[bit] = {e, b};
    }
  return owners;
}

std::string draw_bits(const FormatInfo& info) {
  const auto owners = find_owners(info);
  std::string out = "byte  bit 7 ... bit 0   (element.bit of its code)\n";
  for (int byte = 0; byte < info.pack_bytes; ++byte) {
    out += fmt::format("{:>4}  ", byte);
    for (int bit = 7; bit >= 0; --bit) {
      const Owner o = owners[static_cast<size_t>(8 * byte + bit)];
      out += fmt::format("{:>6}", fmt::format("{}.{}", o.element, o.bit));
    }
    out += '\n';
  }
  return out;
}

std::string draw_values(const FormatInfo& info) {
  const FormatOps& ops = format_ops(info.id);
  const unsigned shown = ops.codes > 16 ? 8 : ops.codes;
  std::string out = info.kind == ValueKind::kTable ? "code -> table entry: " : "code -> value: ";
  for (unsigned c = 0; c < shown; ++c) out += fmt::format("{}{} -> {:g}", c ? ", " : "", c, ops.values[c]);
  if (shown < ops.codes) out += fmt::format(", ... {} -> {:g}", ops.codes - 1, ops.values[ops.codes - 1]);
  return out + "\n";
}

/// Each bit of a code is linear in the window's: what a window of one set bit gives.
std::string draw_trellis(const TrellisInfo& trellis) {
  const auto stored = static_cast<unsigned>(trellis.stored_bits);
  std::string out = fmt::format(
      "stored: {} bits for a code, as {} stores them; c[i] for column i, 0 in front of the row\n"
      "code -> table entry: bit by bit the parity of\n",
      stored, stored == 2 ? "codebook2" : "codebook3");
  for (unsigned a = 0; a < 4; ++a) {
    std::string bits;
    for (unsigned b = 0; 1u << b < trellis.states << stored; ++b)
      if (trellis.codes[1u << b] >> a & 1u)
        bits += fmt::format("{}c[{}].{}", bits.empty() ? "" : " ", b < stored ? "i" : fmt::format("i-{}", b / stored),
                            b % stored);
    out += fmt::format("  bit {}: {}\n", a, bits);
  }
  return out;
}

}  // namespace

std::string draw_layout(FormatId id) {
  const FormatInfo& info = format_info(id);
  std::string out = fmt::format("{}: {}, {:g} bits per code, {} in {} byte{}{}\n", info.name, info.alphabet,
                                info.bits_per_code(), info.pack_elems, info.pack_bytes, info.pack_bytes == 1 ? "" : "s",
                                info.canonical ? "" : " (derived by kernels, never in a file)");
  if (info.kind == ValueKind::kDense) return out + "one little-endian float per element, no scales\n";
  if (id == FormatId::kTernaryPacked)
    return out + draw_values(info) +
           "byte = ceil(number * 256 / 243), number = the five codes as base-3 digits, element 0 "
           "first\n";
  if (const TrellisInfo* trellis = trellis_of(id)) return out + draw_trellis(*trellis);
  return out + draw_values(info) + draw_bits(info);
}

}  // namespace lowbit
