#include "arch/config_reader.h"

#include <fmt/format.h>

#include "base/try.h"
#include "io/json_text.h"

namespace lowbit {
namespace {

using Json = nlohmann::json;

}  // namespace

std::string ConfigReader::where(const char* key) { return fmt::format("config.json \"{}\"", key); }

std::string ConfigReader::shown(const Json& value) {
  std::string text = json_dump(value);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

const Json* ConfigReader::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

Result<std::optional<ConfigReader>> ConfigReader::object(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<ConfigReader>();
  if (!value->is_object()) return fail(ErrorCode::kInvalidArgument, where(key), shown(*value), "an object or null");
  return std::optional<ConfigReader>(ConfigReader(*value));
}

Result<int64_t> ConfigReader::integer(const char* key, int64_t low, int64_t high,
                                      std::optional<int64_t> fallback) const {
  const Json* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return fail(ErrorCode::kInvalidArgument, where(key), "nothing", fmt::format("an integer in {}..{}", low, high));
  }
  const auto number = json_int(object_, key);
  if (!number || *number < low || *number > high)
    return fail(ErrorCode::kInvalidArgument, where(key), shown(*value), fmt::format("an integer in {}..{}", low, high));
  return *number;
}

Result<double> ConfigReader::number(const char* key, double low, double high, std::optional<double> fallback) const {
  const Json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  const auto number = json_number(object_, key);
  if (!number || !(*number >= low && *number <= high))
    return fail(ErrorCode::kInvalidArgument, where(key), value ? shown(*value) : "nothing",
                fmt::format("a number in {:g}..{:g}", low, high));
  return *number;
}

Result<bool> ConfigReader::flag(const char* key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return fail(ErrorCode::kInvalidArgument, where(key), shown(*value), "true or false");
  return value->get<bool>();
}

Result<std::string> ConfigReader::text(const char* key, std::optional<std::string> fallback) const {
  const Json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr || !value->is_string())
    return fail(ErrorCode::kInvalidArgument, where(key), value ? shown(*value) : "nothing", "a string");
  return value->get<std::string>();
}

Result<std::vector<std::string>> ConfigReader::texts(const char* key) const {
  std::vector<std::string> all;
  const Json* value = find(key);
  if (value == nullptr) return all;
  const auto bad = [&] { return fail(ErrorCode::kInvalidArgument, where(key), shown(*value), "a list of strings"); };
  if (!value->is_array()) return bad();
  for (const Json& word : *value) {
    if (!word.is_string()) return bad();
    all.push_back(word.get<std::string>());
  }
  return all;
}

Result<std::vector<int32_t>> ConfigReader::token_ids(const char* key, int64_t vocab_size) const {
  std::vector<int32_t> ids;
  const Json* value = find(key);
  if (value == nullptr) return ids;
  const auto bad = [&] {
    return fail(ErrorCode::kInvalidArgument, where(key), shown(*value),
                fmt::format("a token id below {} or a list of them", vocab_size));
  };
  const auto append = [&](const Json& id) {
    if (!id.is_number_integer()) return false;
    if (id.is_number_unsigned() && id.get<uint64_t>() >= uint64_t(vocab_size)) return false;
    const int64_t number = id.get<int64_t>();
    if (number < 0 || number >= vocab_size) return false;
    ids.push_back(int32_t(number));
    return true;
  };
  if (!value->is_array()) {
    if (!append(*value)) return bad();
    return ids;
  }
  if (value->size() > 1024) return bad();
  for (const Json& id : *value)
    if (!append(id)) return bad();
  return ids;
}

}  // namespace lowbit
