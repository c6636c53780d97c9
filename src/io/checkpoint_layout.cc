#include "io/checkpoint_layout.h"

#include <xxhash.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/checked.h"
#include "base/try.h"
#include "format/registry.h"
#include "io/json_text.h"

namespace lowbit {
namespace {

using nlohmann::json;

constexpr int64_t kMaxExtent = int64_t{1} << 40;

DType scale_dtype(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::kF32:
      return DType::kF32;
    case ScaleKind::kF16:
      return DType::kF16;
    case ScaleKind::kBf16:
      return DType::kBf16;
    case ScaleKind::kPow2:
    case ScaleKind::kDouble:
      return DType::kI8;
  }
  return DType::kF32;
}

DType zero_dtype(const Scaling& scaling) {
  return zero_bytes(scaling) == 1 ? DType::kI8 : zero_bytes(scaling) == 2 ? DType::kF16 : DType::kF32;
}

std::string regex_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

/// "model.layers.3.mlp.up_proj" as a pattern for all layer numbers.
std::string number_pattern(const std::string& layer) {
  std::string out;
  for (size_t i = 0; i < layer.size();) {
    const size_t end = std::min(layer.find('.', i), layer.size());
    const std::string_view part(layer.data() + i, end - i);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    out += (i > 0 ? "\\." : "") + (number ? std::string("\\d+") : regex_escaped(part));
    i = end + 1;
  }
  return out;
}

/// A layer's format as text: an object of config_groups without its targets.
std::string describe_group(const LayerFormat& f) {
  const Scaling& s = f.scaling;
  json g;
  const JsonEnd end(g);
  g["format"] = format_info(f.format).name;
  g["group_size"] = s.k_block == Scaling::kAll ? -1 : s.k_block;  // -1: the whole row
  g["row_block"] = s.n_block == Scaling::kAll         ? json(-1)
                   : s.n_block == Scaling::kRowRanges ? json("ranges")
                                                      : json(s.n_block);
  g["scale_dtype"] = scale_kind_name(s.scale);
  g["zero_point"] = s.zero != ZeroKind::kNone;
  if (s.zero != ZeroKind::kNone) g["zero_dtype"] = zero_kind_name(s.zero);
  return g.dump();
}

Result<int64_t> parse_block(const json& group, const char* key, const std::string& where) {
  const auto v = json_int(group, key);
  if (!v || (*v != -1 && (*v < 1 || *v > kMaxExtent)))
    return fail(ErrorCode::kCorrupt, where + "." + key,
                group.contains(key) ? json_dump(group[key]).substr(0, 64) : "nothing", "-1 or a positive number");
  return *v == -1 ? Scaling::kAll : *v;
}

Result<LayerFormat> parse_group(const json& group, const std::string& where) {
  if (!group.is_object()) return fail(ErrorCode::kCorrupt, where, group.type_name(), "an object");
  LayerFormat f;
  const auto name = json_string(group, "format");
  if (!name) return fail(ErrorCode::kCorrupt, where + ".format", "nothing", "a format's name");
  const auto id = parse_format(*name);
  if (!id || !format_info(*id).canonical || is_dense(*id))
    return fail(ErrorCode::kUnsupported, where + ".format", "'" + name->substr(0, 64) + "'",
                "a storage format that this version of lowbit knows", "the file may come from a newer lowbit");
  f.format = *id;
  LOWBIT_TRY_ASSIGN(f.scaling.k_block, parse_block(group, "group_size", where));
  f.scaling.n_block = 1;
  if (json_string(group, "row_block") == "ranges") {
    f.scaling.n_block = Scaling::kRowRanges;
  } else if (group.contains("row_block")) {
    LOWBIT_TRY_ASSIGN(f.scaling.n_block, parse_block(group, "row_block", where));
  }
  const auto scale = parse_scale_kind(json_string(group, "scale_dtype").value_or(""));
  if (!scale) return fail(ErrorCode::kUnsupported, where + ".scale_dtype", scale.error().got, scale.error().wanted);
  f.scaling.scale = *scale;
  const bool has_zero = json_bool(group, "zero_point").value_or(false);
  const auto zero = parse_zero_kind(has_zero ? json_string(group, "zero_dtype").value_or("") : "none");
  if (!zero) return fail(ErrorCode::kUnsupported, where + ".zero_dtype", zero.error().got, zero.error().wanted);
  f.scaling.zero = *zero;
  return f;
}

}  // namespace

DType dense_dtype(FormatId format) {
  return format == FormatId::kF32 ? DType::kF32 : format == FormatId::kF16 ? DType::kF16 : DType::kBf16;
}

std::optional<FormatId> dense_format(DType dtype) {
  if (dtype == DType::kF32) return FormatId::kF32;
  if (dtype == DType::kF16) return FormatId::kF16;
  if (dtype == DType::kBf16) return FormatId::kBf16;
  return std::nullopt;
}

std::optional<std::vector<WeightPart>> weight_parts(FormatId format, const Scaling& scaling, int64_t n, int64_t k,
                                                    int64_t ranges) {
  if (n < 0 || k < 0 || n > kMaxExtent || k > kMaxExtent || ranges > n) return std::nullopt;
  const auto count = checked_mul(static_cast<uint64_t>(n), static_cast<uint64_t>(k));
  if (!count || *count > uint64_t{1} << 56) return std::nullopt;
  QTensor w;  // only for the arithmetic of scale_rows and scale_cols
  w.n = n;
  w.k = k;
  w.scaling = scaling;
  w.row_ends.resize(static_cast<size_t>(std::max<int64_t>(ranges, 0)));
  const int64_t rows = w.scale_rows(), cols = w.scale_cols();
  const FormatInfo& info = format_info(format);
  std::vector<WeightPart> parts = {{".codes", DType::kU8, {n, row_bytes(format, k)}},
                                   {".scales", scale_dtype(scaling.scale), {rows, cols}},
                                   {".shape", DType::kI64, {2}}};
  if (scaling.zero != ZeroKind::kNone) parts.push_back({".zeros", zero_dtype(scaling), {rows, cols}});
  if (info.kind == ValueKind::kTable) parts.push_back({".codebook", DType::kF32, {int64_t{1} << info.code_bits}});
  if (scaling.scale == ScaleKind::kDouble)
    parts.push_back({".super_scales", DType::kF16, {rows, ceil_div(cols, kSuperGroup)}});
  if (scaling.n_block == Scaling::kRowRanges) parts.push_back({".row_ends", DType::kI64, {ranges}});
  return parts;
}

json describe_layers(const std::vector<LayerFormat>& quantized, const std::vector<std::string>& dense) {
  std::map<std::string, std::vector<std::string>> groups;   // by description
  std::map<std::string, std::set<std::string>> pattern_of;  // pattern -> descriptions it would match
  std::vector<std::string> order;
  for (const auto& f : quantized) {
    const std::string key = describe_group(f);
    if (!groups.contains(key)) order.push_back(key);
    groups[key].push_back(f.layer);
    pattern_of[number_pattern(f.layer)].insert(key);
  }
  for (const auto& layer : dense) pattern_of[number_pattern(layer)].insert("");
  json out = json::object();
  JsonEnd end_out(out);
  out["config_groups"] = json::object();
  out["layers"] = json::object();
  out["ignore"] = dense;
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string name = "group_" + std::to_string(i);
    json group = json::parse(order[i], nullptr, false);
    const JsonEnd end_group(group);
    std::set<std::string> targets;
    for (const auto& layer : groups[order[i]]) {
      const std::string pattern = number_pattern(layer);
      const bool exact = pattern_of[pattern].size() > 1 || pattern == regex_escaped(layer);
      targets.insert(exact ? layer : "re:" + pattern);
      out["layers"][layer] = name;
    }
    group["targets"] = targets;
    out["config_groups"][name] = std::move(group);
  }
  return end_out.take();
}

Result<std::vector<LayerFormat>> parse_layers(const json& config, const std::string& where) {
  const json *groups = json_object(config, "config_groups"), *layers = json_object(config, "layers");
  if (groups == nullptr || layers == nullptr)
    return fail(ErrorCode::kCorrupt, where, groups == nullptr ? "no config_groups" : "no layers",
                "both, as lowbit writes them");
  std::map<std::string, LayerFormat> by_name;
  for (const auto& [name, group] : groups->items()) {
    LOWBIT_TRY_ASSIGN(by_name[name], parse_group(group, where + ".config_groups." + name));
  }
  std::vector<LayerFormat> out;
  for (const auto& [layer, group] : layers->items()) {
    const auto it = group.is_string() ? by_name.find(group.get<std::string>()) : by_name.end();
    if (it == by_name.end())
      return fail(ErrorCode::kCorrupt, where + ".layers." + layer, json_dump(group).substr(0, 64),
                  "the name of a config group");
    out.push_back(it->second);
    out.back().layer = layer;
  }
  return out;
}

std::string xxh3_hex(std::span<const std::byte> bytes) {
  XXH64_hash_t hash = XXH3_64bits(bytes.data(), bytes.size());
  std::string out(16, '0');
  for (size_t i = 16; i-- > 0; hash >>= 4) out[i] = "0123456789abcdef"[hash & 15];
  return out;
}

std::string format_key(std::string_view weight) { return "format." + std::string(weight); }

std::string format_text(FormatId format, const Scaling& s) {
  return std::string(format_info(format).name) + " " + scaling_name(s) + " " + scale_kind_name(s.scale) + " " +
         zero_kind_name(s.zero);
}

std::string checksum_key(std::string_view tensor) { return "xxh3." + std::string(tensor); }

}  // namespace lowbit
