// A configuration as JSON.

#include "base/try.h"
#include "gru/cell.h"
#include "gru/config_json.h"
#include "gru/names.h"
#include "io/mapped_file.h"

namespace lowbit {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr std::array<const char*, 3> kGranularities = {"tensor", "gate", "row"};
constexpr std::array<const char*, 3> kModes = {"fused", "seed", "direct"};
constexpr std::array<const char*, 2> kRoundings = {"nearest", "feedback"};

template <class E, size_t N>
std::optional<E> parse_name(const std::array<const char*, N>& names, const std::string& name) {
  for (size_t i = 0; i < N; ++i)
    if (name == names[i]) return static_cast<E>(i);
  return std::nullopt;
}

tl::unexpected<Error> bad(const std::string& where, const std::string& key, const Json& got,
                          const std::string& wanted) {
  return fail(ErrorCode::kInvalidArgument, where + ": '" + key.substr(0, 64) + "'", json_dump(got).substr(0, 64),
              wanted);
}

/// {"bits": 8, "unsigned": false, "symmetric": true, "saturate": 1}
Status read_format(const Json& json, const std::string& where, const std::string& key, GruFormat& f) {
  if (!json.is_object()) return bad(where, key, json, "an object with bits, unsigned, symmetric or saturate");
  for (const auto& [name, value] : json.items()) {
    const auto integer = json_int(json, name.c_str());
    const auto flag = json_bool(json, name.c_str());
    if (name == "bits" && integer && *integer >= 1 && *integer <= 32) {
      f.bits = static_cast<int>(*integer);
    } else if (name == "unsigned" && flag) {
      f.is_unsigned = *flag;
    } else if (name == "symmetric" && flag) {
      f.symmetric = *flag;
    } else if (name == "saturate" && integer && (*integer == 0 || *integer == 1)) {
      f.saturate = static_cast<int>(*integer);
    } else {
      return bad(where, key + "." + name, value, "bits 1..16 (biases 2..32), unsigned, symmetric, saturate 0 or 1");
    }
  }
  return {};
}

Status read_table(const Json& json, const std::string& where, GruConfig& c) {
  if (!json.is_object()) return bad(where, "table", json, "an object with mode and segments");
  for (const auto& [name, value] : json.items()) {
    const auto mode = name == "mode" && value.is_string() ? parse_table_mode(value.get<std::string>()) : std::nullopt;
    const auto segments = name == "segments" ? json_int(json, "segments") : std::nullopt;
    if (mode) {
      c.table = *mode;
    } else if (segments && *segments >= 0 && *segments <= kMaxSegments) {
      c.segments = static_cast<int>(*segments);
    } else {
      return bad(where, "table." + name, value, "mode fused, seed or direct; segments 4 to 1024, 0 to choose");
    }
  }
  return {};
}

GruFormat* format_of(GruConfig& c, const std::string& name) {
  if (name == "weight.W") return &c.w;
  if (name == "weight.R") return &c.r;
  if (name == "weight.bw") return &c.bw;
  if (name == "weight.br") return &c.br;
  const auto tensor = parse_gru_tensor(name);
  return tensor ? &c[*tensor] : nullptr;
}

Status read_choice(const std::string& key, const Json& value, const std::string& where, GruConfig& c) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  const auto granularity = parse_granularity(text);
  const auto rounding = parse_rounding(text);
  if (key == "granularity" && granularity) {
    c.granularity = *granularity;
  } else if (key == "rounding" && rounding) {
    c.rounding = *rounding;
  } else if (key == "bias" && (text == "product" || text == "own")) {
    c.bias_at_product_scale = text == "product";
  } else if (key == "gate_ranges" && (text == "fixed" || text == "observed")) {
    c.fixed_gate_ranges = text == "fixed";
  } else {
    return bad(where, key, value,
               "a tensor's name such as output.h, or granularity (tensor, gate, row), bias (product, own), table, "
               "gate_ranges (fixed, observed), rounding (nearest, feedback), preset");
  }
  return {};
}

Json format_json(const GruFormat& f) {
  return {{"bits", f.bits}, {"unsigned", f.is_unsigned}, {"symmetric", f.symmetric}, {"saturate", f.saturate}};
}

}  // namespace

const char* granularity_name(GruGranularity g) { return kGranularities[static_cast<size_t>(g)]; }
const char* table_mode_name(GruTableMode m) { return kModes[static_cast<size_t>(m)]; }
const char* rounding_name(GruRounding r) { return kRoundings[static_cast<size_t>(r)]; }
std::optional<GruGranularity> parse_granularity(const std::string& name) {
  return parse_name<GruGranularity>(kGranularities, name);
}
std::optional<GruTableMode> parse_table_mode(const std::string& name) { return parse_name<GruTableMode>(kModes, name); }
std::optional<GruRounding> parse_rounding(const std::string& name) { return parse_name<GruRounding>(kRoundings, name); }
std::optional<GruTensor> parse_gru_tensor(const std::string& name) {
  for (int i = 0; i < kGruTensors; ++i)
    if (name == gru_tensor_name(static_cast<GruTensor>(i))) return static_cast<GruTensor>(i);
  return std::nullopt;
}

Result<GruConfig> parse_gru_config(const Json& json, const std::string& where, const GruConfig& base) {
  GruConfig c = base;
  if (const auto preset = json_string(json, "preset")) {
    LOWBIT_TRY_ASSIGN(c, gru_preset(*preset));
  }
  for (const auto& [key, value] : json.items()) {
    if (key == "preset" && value.is_string()) continue;
    if (key == "table") {
      LOWBIT_TRY(read_table(value, where, c));
    } else if (GruFormat* f = format_of(c, key)) {
      LOWBIT_TRY(read_format(value, where, key, *f));
    } else {
      LOWBIT_TRY(read_choice(key, value, where, c));
    }
  }
  LOWBIT_TRY(check_gru_config(c));
  return c;
}

Result<GruConfig> read_gru_config(const std::string& path, const GruConfig& base) {
  LOWBIT_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxConfigBytes));
  LOWBIT_TRY_ASSIGN(const Json json, parse_json_object(text, path));
  return parse_gru_config(json, path, base);
}

std::string gru_config_json(const GruConfig& c) {
  Json json = {{"weight.W", format_json(c.w)},
               {"weight.R", format_json(c.r)},
               {"weight.bw", format_json(c.bw)},
               {"weight.br", format_json(c.br)},
               {"granularity", granularity_name(c.granularity)},
               {"bias", c.bias_at_product_scale ? "product" : "own"},
               {"table", {{"mode", table_mode_name(c.table)}, {"segments", c.segments}}},
               {"gate_ranges", c.fixed_gate_ranges ? "fixed" : "observed"},
               {"rounding", rounding_name(c.rounding)}};
  for (int i = 0; i < kGruTensors; ++i) {
    const auto tensor = static_cast<GruTensor>(i);
    json[gru_tensor_name(tensor)] = format_json(c[tensor]);
  }
  return json_dump(json, 1);
}

}  // namespace lowbit
