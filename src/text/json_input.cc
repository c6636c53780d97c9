#include "text/json_input.h"

#include <fmt/format.h>

namespace lowbit::text {
namespace {

int nesting(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// Builds nothing: only there to learn where a text that did not parse goes wrong.
struct ErrorPlace : nlohmann::json_sax<Json> {
  std::size_t byte = 0;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    byte = position;
    return false;
  }
};

tl::unexpected<Error> wrong_type(std::string_view where, const char* key, const Json& got, const char* wanted) {
  return fail(ErrorCode::kCorrupt, fmt::format("{} \"{}\"", where, key), got.type_name(), wanted);
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view where, std::size_t max_bytes, int max_depth) {
  if (text.size() > max_bytes)
    return fail(ErrorCode::kCorrupt, std::string(where), fmt::format("{} bytes", text.size()),
                fmt::format("at most {}", max_bytes));
  if (const int depth = nesting(text); depth > max_depth)
    return fail(ErrorCode::kCorrupt, std::string(where), fmt::format("JSON nested {} deep", depth),
                fmt::format("at most {}", max_depth));
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_discarded()) return json;
  ErrorPlace place;
  Json::sax_parse(text.begin(), text.end(), &place);
  return fail(ErrorCode::kCorrupt, std::string(where),
              fmt::format("text that is no JSON at byte {} of {}", std::min(place.byte, text.size()), text.size()),
              "JSON", "is the file complete?");
}

const Json& member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

Result<bool> bool_member(const Json& object, const char* key, bool fallback, std::string_view where) {
  const Json& value = member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) return wrong_type(where, key, value, "a boolean");
  return value.get<bool>();
}

Result<std::string> string_member(const Json& object, const char* key, std::string fallback, std::string_view where) {
  const Json& value = member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_string()) return wrong_type(where, key, value, "a string");
  return value.get<std::string>();
}

}  // namespace lowbit::text
