#include <optional>
#include <utility>

#include "calibrate/sensitivity.h"

namespace lowbit {
namespace {

const nlohmann::json* array_of(const nlohmann::json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return it != object.end() && it->is_array() ? &*it : nullptr;
}

nlohmann::json size_json(const PartChoice::Size& size) { return {size.format, size.bits_per_weight, size.divergence}; }

std::optional<PartChoice::Size> parse_size_json(const nlohmann::json& part, const char* key) {
  const nlohmann::json* const size = array_of(part, key);
  if (size == nullptr || size->size() != 3 || !(*size)[0].is_string() || !(*size)[1].is_number() ||
      !(*size)[2].is_number())
    return {};
  return PartChoice::Size{(*size)[0].get<std::string>(), (*size)[1].get<double>(), (*size)[2].get<double>()};
}

std::optional<QuantizeSpec> parse_spec_json(const nlohmann::json& json) {
  if (!json.is_array() || json.size() != 5 || !json[0].is_string() || !json[1].is_number_integer() ||
      !json[2].is_number_integer() || !json[3].is_boolean() || !json[4].is_string())
    return {};
  const auto format = parse_format(json[0].get<std::string>());
  if (!format) return {};
  QuantizeSpec spec;
  spec.format = *format;
  spec.group = json[1].get<int64_t>();
  spec.scale = static_cast<ScaleKind>(json[2].get<int>());
  spec.zero = json[3].get<bool>();
  spec.fit = json[4].get<std::string>();
  return spec;
}

}  // namespace

nlohmann::json allocation_json(const Allocation& allocation) {
  nlohmann::json json = nlohmann::json::array();
  const auto add = [&](const PartChoice& part, bool is_embedding_or_head) {
    nlohmann::json entry = {{"layers", part.layers}, {"chosen", size_json(part.chosen)}};
    if (part.smaller) entry["smaller"] = size_json(*part.smaller);
    if (part.larger) entry["larger"] = size_json(*part.larger);
    nlohmann::json specs = nlohmann::json::array();
    for (const std::string& layer : part.layers) {
      const QuantizeSpec& s = allocation.specs.at(layer);
      specs.push_back({format_info(s.format).name, s.group, static_cast<int>(s.scale), s.zero, s.fit});
    }
    entry["specs"] = specs;
    entry["end"] = is_embedding_or_head;
    json.push_back(entry);
  };
  for (const PartChoice& part : allocation.choices) add(part, false);
  for (const PartChoice& part : allocation.embedding_head) add(part, true);
  return json;
}

Allocation parse_allocation_json(const nlohmann::json& json) {
  Allocation out;
  if (!json.is_array()) return {};
  for (const nlohmann::json& entry : json) {
    const nlohmann::json* const layers = array_of(entry, "layers");
    const nlohmann::json* const specs = array_of(entry, "specs");
    auto chosen = parse_size_json(entry, "chosen");
    if (layers == nullptr || specs == nullptr || layers->size() != specs->size() || !chosen) return {};
    PartChoice part;
    part.chosen = std::move(*chosen);
    part.smaller = parse_size_json(entry, "smaller");
    part.larger = parse_size_json(entry, "larger");
    for (size_t i = 0; i < layers->size(); ++i) {
      auto spec = parse_spec_json((*specs)[i]);
      if (!(*layers)[i].is_string() || !spec) return {};
      part.layers.push_back((*layers)[i].get<std::string>());
      out.specs[part.layers.back()] = std::move(*spec);
    }
    const auto is_embedding_or_head = entry.find("end");
    if (is_embedding_or_head == entry.end() || !is_embedding_or_head->is_boolean()) return {};
    (is_embedding_or_head->get<bool>() ? out.embedding_head : out.choices).push_back(std::move(part));
  }
  return out;
}

}  // namespace lowbit
