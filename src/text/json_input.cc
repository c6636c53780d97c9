#include "text/json_input.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"

namespace lowbit::text {
namespace {

// Bytes that a value and a member take: lists grow by half of what they hold, members are nodes of a map.
constexpr std::size_t kValueBytes = 48, kContainerBytes = 64, kMemberBytes = 96;

tl::unexpected<Error> wrong_type(std::string_view where, const char* key, const Json& got, const char* wanted) {
  return fail(ErrorCode::kCorrupt, fmt::format("{} \"{}\"", where, key), got.type_name(), wanted);
}

}  // namespace

Status JsonTree::parse(std::string_view text) {
  if (Json::sax_parse(text.begin(), text.end(), this)) return {};
  if (error_) return tl::unexpected<Error>(std::move(*error_));
  return fail(ErrorCode::kCorrupt, std::string(where_),
              fmt::format("text that is no JSON at byte {} of {}", std::min(error_byte_, text.size()), text.size()),
              "JSON", "is the file complete?");
}

bool JsonTree::stop(Error error) {
  error_ = std::move(error);
  return false;
}

bool JsonTree::spend(std::size_t bytes) {
  if (budget_.spend_bytes(bytes)) return true;
  return stop(budget_.status(std::string(where_).c_str()).error());
}

Json* JsonTree::place(Json value) {
  if (!spend(kValueBytes)) return nullptr;
  if (open_.empty()) return &(root = std::move(value));
  Json& parent = *open_.back();
  if (parent.is_array()) return &parent.emplace_back(std::move(value));
  return &(*member_ = std::move(value));
}

bool JsonTree::string(string_t& s) { return spend(s.size() + kContainerBytes) && put(std::move(s)); }

bool JsonTree::open(Json container) {
  if (static_cast<int>(open_.size()) >= max_depth_)
    return stop({ErrorCode::kCorrupt,
                 std::string(where_),
                 fmt::format("JSON nested over {} deep", max_depth_),
                 fmt::format("at most {}", max_depth_),
                 {}});
  Json* placed = spend(kContainerBytes) ? place(std::move(container)) : nullptr;
  if (placed != nullptr) open_.push_back(placed);
  return placed != nullptr;
}

bool JsonTree::close() {
  open_.pop_back();
  return true;
}

bool JsonTree::key(string_t& k) {
  if (!spend(k.size() + kMemberBytes)) return false;
  member_ = &(*open_.back())[std::move(k)];
  return true;
}

bool JsonTree::parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
  error_byte_ = position;
  return false;
}

Result<Json> parse_json(std::string_view text, std::string_view where, std::size_t max_bytes, int max_depth) {
  if (text.size() > max_bytes)
    return fail(ErrorCode::kCorrupt, std::string(where), fmt::format("{} bytes", text.size()),
                fmt::format("at most {}", max_bytes));
  Budget budget = Budget::of_file(text.size());
  JsonTree tree(where, max_depth, budget);
  LOWBIT_TRY(tree.parse(text));
  return std::move(tree.root);
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
