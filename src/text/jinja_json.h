#pragma once
// JSON -> Value and Value -> JSON as Python's json.dumps writes it.

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja_value.h"

namespace lowbit::jinja {

/// Errors: kCorrupt (no JSON, nested over 90 deep); `where` names the text. Keys keep their order.
Result<Value> from_json(std::string_view json, std::string_view where);

struct JsonStyle {
  std::optional<int> indent;
  std::string item_separator = ", ", key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};
/// Errors: kInvalidArgument for what JSON has no form for (undefined, macros).
Result<std::string> to_json(const Value& value, const JsonStyle& style, Meter& meter);

}  // namespace lowbit::jinja
