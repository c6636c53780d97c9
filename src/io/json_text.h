#pragma once
// JSON from files that nobody vouches for: bounded depth, bounded strings, no duplicate keys, no exceptions.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lowbit/error.h"

namespace lowbit {

struct JsonLimits {
  int depth = 64;
  size_t string_bytes = size_t{1} << 20;
  size_t text_bytes = size_t{4} << 20;
  size_t elements = size_t{1} << 19;  // values and keys of a tree: each takes up to 200 bytes where its text takes two
};

/// One pass over the raw text before any parser sees it; does not count elements. Errors: kCorrupt, kUnsupported (a
/// limit).
Status check_json_limits(std::string_view text, const std::string& where, const JsonLimits& limits);

/// A JSON object as a tree. Errors: kCorrupt (not JSON, not an object, a key twice), kUnsupported (a limit).
Result<nlohmann::json> parse_json_object(std::string_view text, const std::string& where,
                                         const JsonLimits& limits = {});

/// Empties a tree. What nlohmann::json does itself at a tree's end takes memory, and ends the process where there is
/// none.
void end_json(nlohmann::json& tree) noexcept;

/// Does so at the end of a scope. Declared right behind the tree, which may have been moved from by then. A function
/// whose value is the tree returns take(). Nested initializer lists consist of trees that end unseen: members are set
/// one by one instead.
class JsonEnd {
 public:
  explicit JsonEnd(nlohmann::json& tree) : tree_(tree) {}
  ~JsonEnd() { end_json(tree_); }
  nlohmann::json take() { return std::move(tree_); }
  JsonEnd(const JsonEnd&) = delete;
  JsonEnd& operator=(const JsonEnd&) = delete;

 private:
  nlohmann::json& tree_;
};

// Typed look-ups that never throw: nullopt when the key is absent or of another type or out of range.
std::optional<int64_t> json_int(const nlohmann::json& object, const char* key);
std::optional<double> json_number(const nlohmann::json& object, const char* key);
std::optional<std::string> json_string(const nlohmann::json& object, const char* key);
std::optional<bool> json_bool(const nlohmann::json& object, const char* key);

/// The member `key` when it is an object, else null.
const nlohmann::json* json_object(const nlohmann::json& object, const char* key);

/// Text of a JSON value; bytes that are not UTF-8 become U+FFFD instead of an exception.
std::string json_dump(const nlohmann::json& value, int indent = -1);

}  // namespace lowbit
