#include "ops/kv_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/checked.h"
#include "kernels/packed_kv.h"

namespace lowbit {
namespace {

constexpr int64_t kMostPositions = int64_t{1} << 30;

bool packs_to(char digit) { return digit == '2' || digit == '3' || digit == '4' || digit == '8'; }

}  // namespace

Result<KvFormat> parse_kv_format(const std::string& name, int64_t residual) {
  constexpr const char* kNames = "f16, fp8, int8, int4, int3, int2, or kXvY with X and Y of 2, 3, 4 and 8";
  if (residual < 0 || residual > kMostPositions)
    return fail(ErrorCode::kInvalidArgument, "--kv-residual", fmt::format("{}", residual),
                fmt::format("0 to {} positions", kMostPositions));
  if (name == "f16" || name.empty()) return KvFormat{};
  KvFormat format{.key_bits = 0, .value_bits = 0, .residual = round_up(residual, kKvPage)};
  if (name == "fp8") {
    format.key_bits = format.value_bits = 8;
    format.fp8 = true;
    return format;
  }
  if (name.size() == 4 && name.starts_with("int") && packs_to(name[3])) {
    format.key_bits = format.value_bits = name[3] - '0';
    return format;
  }
  if (name.size() == 4 && name[0] == 'k' && name[2] == 'v' && packs_to(name[1]) && packs_to(name[3])) {
    format.key_bits = name[1] - '0';
    format.value_bits = name[3] - '0';
    return format;
  }
  return fail(ErrorCode::kInvalidArgument, "--kv", "'" + name + "'", kNames);
}

std::string kv_format_name(const KvFormat& format) {
  if (!format.packed()) return "f16";
  if (format.fp8) return "fp8";
  if (format.key_bits == format.value_bits) return fmt::format("int{}", format.key_bits);
  return fmt::format("k{}v{}", format.key_bits, format.value_bits);
}

Status set_kv_upkeep(int64_t refresh, const std::string& demote, KvFormat& format) {
  if (refresh == 0 && demote.empty()) return {};
  const auto refuse = [](const char* option, const std::string& got, const std::string& wanted) {
    return fail(ErrorCode::kInvalidArgument, option, got, wanted);
  };
  if (!format.packed())
    return refuse(refresh != 0 ? "--kv-refresh" : "--kv-demote", "f16 pages", "a quantized cache (--kv int4, ...)");
  if (refresh != 0) {
    // With fewer positions none reads another one packed, so that nothing would change.
    const int64_t least = format.residual + kKvPage + 1;
    if (refresh < least || refresh > kMostPositions)
      return refuse("--kv-refresh", std::to_string(refresh),
                    fmt::format("{} to {} positions, with this --kv-residual", least, kMostPositions));
    format.refresh = round_up(refresh, kKvPage);
  }
  if (demote.empty()) return {};
  int64_t after = 0;
  const size_t colon = std::min(demote.find(':'), demote.size());
  const auto [end, error] = std::from_chars(demote.data(), demote.data() + colon, after);
  const auto old = parse_kv_format(colon < demote.size() ? demote.substr(colon + 1) : "none", 0);
  if (error != std::errc() || end != demote.data() + colon || !old || !old->packed() || old->fp8)
    return refuse("--kv-demote", "'" + demote + "'", "LENGTH:FORMAT, as 4096:int2");
  if (old->key_bits > format.key_bits || old->value_bits > format.value_bits)
    return refuse("--kv-demote", kv_format_name(*old), "no more bits than --kv " + kv_format_name(format));
  const int64_t least = std::max(format.residual + 1, format.refresh);
  if (after < least || after > kMostPositions)
    return refuse("--kv-demote", fmt::format("{} positions", after),
                  fmt::format("{} to {}: more than --kv-residual, and at least --kv-refresh", least, kMostPositions));
  format.demote_after = round_up(after, kKvPage);
  format.old_key_bits = old->key_bits;
  format.old_value_bits = old->value_bits;
  return {};
}

std::string kv_demote_name(const KvFormat& format) {
  if (format.demote_after == 0) return "";
  return fmt::format("{}:{}", format.demote_after, kv_format_name(format.demoted()));
}

Result<std::vector<int>> parse_kv_keep(const std::string& names, int64_t layers) {
  std::vector<int> kept;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    const std::string name = names.substr(at, end - at);
    int layer = name == "first" ? 0 : name == "last" ? int(layers - 1) : -1;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
    const bool is_number = error == std::errc() && rest == name.data() + name.size();
    if ((!is_number && name != "first" && name != "last") || layer < 0 || layer >= layers || end + 1 == names.size())
      return fail(ErrorCode::kInvalidArgument, "--kv-keep", "'" + names + "'",
                  fmt::format("first, last, or layers 0 to {}, with commas between them", layers - 1));
    kept.push_back(layer);
    at = end + 1;
  }
  std::ranges::sort(kept);
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  return kept;
}

PackedHeadBytes packed_head_bytes(const KvFormat& format, int64_t head_dim) {
  if (format.fp8) return {head_dim * kKvPage, kKvPage * head_dim, head_dim, kKvPage};
  const PackedShape keys = {format.key_bits, head_dim, kKvPage};
  PackedHeadBytes bytes{keys.code_bytes(), 0, keys.side_bytes(), 0};
  const int64_t width = value_columns(format.value_bits);
  for (int64_t first = 0; first < head_dim; first += width) {
    const PackedShape values = {format.value_bits, kKvPage, std::min(width, head_dim - first)};
    bytes.value_codes += values.code_bytes();
    bytes.value_side += values.side_bytes();
  }
  return bytes;
}

PackedHead packed_head(const PackedHeadBytes& bytes, int64_t index, int64_t heads) {
  const int64_t codes = index * bytes.codes(), sides = heads * bytes.codes() + index * bytes.sides();
  return {codes, codes + bytes.key_codes, sides, sides + bytes.key_side};
}

}  // namespace lowbit
