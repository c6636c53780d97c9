#pragma once
// JSON from users: parsed without exceptions, with a limit on size and depth, and with the place of an error.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lowbit/error.h"

namespace lowbit::text {

using Json = nlohmann::json;

/// Errors: kCorrupt: not JSON, over max_bytes, or nested deeper than max_depth; `where` names the text.
Result<Json> parse_json(std::string_view text, std::string_view where, std::size_t max_bytes, int max_depth);

/// The member `key` of an object, or null.
const Json& member(const Json& object, const char* key);

/// Members with a type; a missing or null one gives the fallback, one of another type kCorrupt.
Result<bool> bool_member(const Json& object, const char* key, bool fallback, std::string_view where);
Result<std::string> string_member(const Json& object, const char* key, std::string fallback, std::string_view where);

}  // namespace lowbit::text
