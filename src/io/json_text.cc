#include "io/json_text.h"

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "base/try.h"

namespace lowbit {
namespace {

using nlohmann::json;

/// Refuses a key that an open object has already had.
class DuplicateKeys {
 public:
  bool operator()(int /*depth*/, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      if (!open_.empty()) open_.pop_back();
    } else if (event == json::parse_event_t::key && !open_.empty()) {
      if (const auto* key = value.get_ptr<const std::string*>(); key != nullptr)
        if (!open_.back().insert(*key).second && duplicate.empty()) duplicate = "'" + *key + "'";
    }
    return true;
  }
  std::string duplicate;

 private:
  std::vector<std::set<std::string>> open_;
};

/// Before the tree is built: commas, colons and brackets outside of strings are as many as its values and keys.
Status check_json_elements(std::string_view text, const std::string& where, size_t limit) {
  size_t elements = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == ',' || c == ':' || c == '{' || c == '[')) {
      ++elements;
    }
  }
  if (elements > limit)
    return fail(ErrorCode::kUnsupported, where, std::to_string(elements) + " values in JSON",
                "at most " + std::to_string(limit), "is it the file that the model came with?");
  return {};
}

}  // namespace

Status check_json_limits(std::string_view text, const std::string& where, const JsonLimits& limits) {
  if (text.size() > limits.text_bytes)
    return fail(ErrorCode::kUnsupported, where, std::to_string(text.size()) + " bytes of JSON",
                "at most " + std::to_string(limits.text_bytes));
  int depth = 0;
  bool in_string = false;
  size_t string_start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      if (i - string_start > limits.string_bytes)
        return fail(ErrorCode::kUnsupported, where, "a JSON string longer than " + std::to_string(limits.string_bytes),
                    "shorter strings");
    } else if (c == '"') {
      in_string = true;
      string_start = i;
    } else if (c == '{' || c == '[') {
      if (++depth > limits.depth)
        return fail(ErrorCode::kUnsupported, where, "JSON nested deeper than " + std::to_string(limits.depth));
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return {};
}

Result<json> parse_json_object(std::string_view text, const std::string& where, const JsonLimits& limits) {
  LOWBIT_TRY(check_json_limits(text, where, limits));
  LOWBIT_TRY(check_json_elements(text, where, limits.elements));
  DuplicateKeys check;
  json value = json::parse(
      text.begin(), text.end(), [&check](int d, json::parse_event_t e, json& v) { return check(d, e, v); }, false);
  if (value.is_discarded())
    return fail(ErrorCode::kCorrupt, where, "text that is not JSON", "a JSON object", "is the file complete?");
  if (!value.is_object())
    return fail(ErrorCode::kCorrupt, where, std::string("a JSON ") + value.type_name(), "a JSON object");
  if (!check.duplicate.empty())
    return fail(ErrorCode::kCorrupt, where, "the key " + check.duplicate + " twice", "each key once");
  return value;
}

void end_json(json& tree) noexcept {  // recursive: readers bound the depth
  const bool unfinished = (tree.is_object() && tree.get_ptr<json::object_t*>() == nullptr) ||
                          (tree.is_array() && tree.get_ptr<json::array_t*>() == nullptr);
  if (unfinished) {  // its first member found no memory: a type without a value, which its destructor would follow
    static_assert(static_cast<int>(json::value_t::null) == 0);
    std::memset(static_cast<void*>(&tree), 0, sizeof tree);  // null: a constructor might throw
  } else if (auto* object = tree.get_ptr<json::object_t*>()) {
    for (auto& [key, value] : *object) end_json(value);
    object->clear();
  } else if (auto* array = tree.get_ptr<json::array_t*>()) {
    for (json& value : *array) end_json(value);
    array->clear();
  }
}

std::optional<int64_t> json_int(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return std::nullopt;
  if (it->is_number_unsigned()) {
    const auto v = it->get<uint64_t>();
    if (v > uint64_t{INT64_MAX}) return std::nullopt;
    return static_cast<int64_t>(v);
  }
  if (it->is_number_integer()) return it->get<int64_t>();
  return std::nullopt;
}

std::optional<double> json_number(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number()) return std::nullopt;
  return it->get<double>();
}

std::optional<std::string> json_string(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) return std::nullopt;
  return it->get<std::string>();
}

std::optional<bool> json_bool(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_boolean()) return std::nullopt;
  return it->get<bool>();
}

const json* json_object(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || !it->is_object() ? nullptr : &*it;
}

std::string json_dump(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

}  // namespace lowbit
