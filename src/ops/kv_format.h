#pragma once
// How the pages of keys and values are stored.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/api.h"
#include "lowbit/error.h"

namespace lowbit {

/// Bits of keys and of values: 16 each (f16), or 2, 3, 4 or 8 each, packed, or fp8. Of a packed cache the first page
/// and the newest positions stay f16; a query at position p reads page g packed if g >= 1 and p / 64 >= g + 1 +
/// residual / 64, and demoted, that is packed once more to the bits of old pages, if that holds for demote_after in
/// place of residual.
struct KvFormat {
  int key_bits = 16, value_bits = 16;
  int64_t residual = 0;  // a multiple of kKvPage
  bool fp8 = false;  // E4M3 with a power of two for each row: read as f16 pages with those values (kernels/fp8_rows.h)

  int64_t demote_after = 0;  // a multiple of kKvPage above residual and not below refresh; 0: no page is demoted
  int old_key_bits = 16, old_value_bits = 16;
  int64_t refresh = 0;  // every so many positions, a multiple of kKvPage, those are computed again (KvCache); 0: never

  bool packed() const { return key_bits < 16; }
  /// The format of demoted pages; f16 where none are.
  KvFormat demoted() const {
    return {.key_bits = old_key_bits, .value_bits = old_value_bits, .residual = demote_after};
  }
  /// Whether what a sequence holds depends on more than its last positions, so that it cannot be cut back at will.
  bool forgets() const { return demote_after > 0 || refresh > 0; }
  /// How many pages, from page 1 on, a query at `position` reads packed.
  int64_t packed_pages(int64_t position) const {
    const int64_t pages = position / kKvPage - 1 - residual / kKvPage;
    return packed() && pages > 0 ? pages : 0;
  }
  /// How many of those, from page 1 on, it reads demoted.
  int64_t demoted_pages(int64_t position) const { return demoted().packed_pages(position); }
  bool operator==(const KvFormat&) const = default;
};

inline constexpr int64_t kDefaultResidual = 128;

/// "f16", "fp8", "int8", "int4", "int3", "int2", or "kXvY" with X and Y of 2, 3, 4 and 8. A residual is rounded up to
/// whole pages. Error: kInvalidArgument.
Result<KvFormat> parse_kv_format(const std::string& name, int64_t residual);
std::string kv_format_name(const KvFormat& format);
/// Both for packed formats alone. refresh: positions, in whole pages, two or more above the residual; 0: none.
/// demote: "LENGTH:FORMAT", positions like refresh, not below it, and a packed format (not fp8) of no more bits, or "".
/// Error: kInvalidArgument.
Status set_kv_upkeep(int64_t refresh, const std::string& demote, KvFormat& format);
/// "LENGTH:FORMAT", or "" where no page is demoted.
std::string kv_demote_name(const KvFormat& format);
/// Layers that keep f16, ascending: "first", "last" and numbers from 0 on, with commas between them; "": none. Error:
/// kInvalidArgument.
Result<std::vector<int>> parse_kv_keep(const std::string& names, int64_t layers);

/// Where a head's keys and values lie in a packed page: codes of all heads first, then what stands beside them.
struct PackedHead {
  int64_t key_codes = 0, value_codes = 0, key_side = 0, value_side = 0;  // bytes from the page's beginning
};
/// Bytes of codes and of sides of one head of one layer, and of both in all.
struct PackedHeadBytes {
  int64_t key_codes = 0, value_codes = 0, key_side = 0, value_side = 0;
  int64_t codes() const { return key_codes + value_codes; }
  int64_t sides() const { return key_side + value_side; }
};
PackedHeadBytes packed_head_bytes(const KvFormat& format, int64_t head_dim);
/// The layout of head number `index` of `heads`, counted over all layers of a page.
PackedHead packed_head(const PackedHeadBytes& bytes, int64_t index, int64_t heads);

}  // namespace lowbit
