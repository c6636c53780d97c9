#pragma once
// Which bits of a trellis's codes the kernels store, and which entry of its table they look up then.
//
// The table's order is free: any four bits that tell the format's index serve as one. And a code's two bits may be
// stored as any two that tell it. Those here take the fewest exclusive ors: see trellis_decode.cuh.

#include <array>
#include <cstdint>

#include "format/trellis.h"
#include "kernels/cuda/gemm/weight_order/fragment_order.h"
#include "kernels/cuda_lookup.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Bit 0: the exclusive or of both bits of a stored code; bit 1: its high bit.
constexpr LOWBIT_HD unsigned trellis_planes(unsigned stored) { return stored ^ stored >> 1; }

/// Which bits of a window of trellis_planes() make bit `a` of what is looked up.
constexpr LOWBIT_HD unsigned trellis_plane_mask(int a) {
  constexpr unsigned kMasks[4] = {0x04, 0x43, 0x28, 0x8a};
  return kMasks[a];
}

/// The format's index of each.
inline constexpr auto kTrellisEntries = [] {
  std::array<uint8_t, 16> entries{};
  entries.fill(kOffTrellis);
  for (unsigned window = 0; window < Trellis<2>::kWindows; ++window) {
    unsigned planes = 0, at = 0;
    for (int i = 0; i < 8; i += 2) planes |= trellis_planes(window >> i & 3u) << i;
    for (int a = 0; a < 4; ++a)
      for (unsigned bits = planes & trellis_plane_mask(a); bits != 0; bits &= bits - 1) at ^= 1u << a;
    const uint8_t entry = kTrellisCodes<2>[window];
    entries[at] = entries[at] == kOffTrellis || entries[at] == entry ? entry : uint8_t{0xfe};
  }
  return entries;
}();
static_assert([] {
  for (const uint8_t entry : kTrellisEntries)
    if (entry >= 16) return false;
  return true;
}());

/// A table as decode_int8() looks up in it for these stored bits.
constexpr cuda::ByteTable table_in_order(int bits, const cuda::ByteTable& table) {
  if (bits != kTrellis) return cuda::stored_order(table);
  cuda::ByteTable out{};
  for (int i = 0; i < 16; ++i) cuda::put_entry(out, i, cuda::entry_at(table, kTrellisEntries[size_t(i)]));
  return out;
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
