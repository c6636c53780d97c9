#pragma once
// JSON from users: parsed without exceptions, with limits on size, depth and memory, and with the place of an error.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lowbit/error.h"
#include "text/budget.h"

namespace lowbit::text {

using Json = nlohmann::json;

/// Builds a tree as the parser goes and stops where the limits are, not behind them.
class JsonTree : public nlohmann::json_sax<Json> {
 public:
  JsonTree(std::string_view where, int max_depth, Budget& budget)
      : where_(where), max_depth_(max_depth), budget_(budget) {}

  /// Errors: kCorrupt: not JSON, nested too deep, or the budget is exhausted.
  Status parse(std::string_view text);
  /// The value that parse() built.
  Json root;

  bool null() override { return put(nullptr); }
  bool boolean(bool b) override { return put(b); }
  bool number_integer(number_integer_t i) override { return put(i); }
  bool number_unsigned(number_unsigned_t u) override { return put(u); }
  bool number_float(number_float_t d, const string_t&) override { return put(d); }
  bool string(string_t& s) override;
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool key(string_t& k) override;
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override;

 protected:
  /// Ends the parse with this error.
  bool stop(Error error);
  bool spend(std::size_t bytes);
  /// How many objects and arrays are open.
  std::size_t depth() const { return open_.size(); }

  std::string_view where_;

 private:
  bool put(Json value) { return place(std::move(value)) != nullptr; }
  Json* place(Json value);
  bool open(Json container);
  bool close();

  int max_depth_;
  Budget& budget_;
  std::vector<Json*> open_;
  Json* member_ = nullptr;  // of the innermost object: where its next value goes
  std::size_t error_byte_ = 0;
  std::optional<Error> error_;
};

/// Errors: kCorrupt: not JSON, over max_bytes, nested deeper than max_depth, or a tree that takes too much memory for
/// the size of the text; `where` names the text.
Result<Json> parse_json(std::string_view text, std::string_view where, std::size_t max_bytes, int max_depth);

/// The member `key` of an object, or null.
const Json& member(const Json& object, const char* key);

/// Members with a type; a missing or null one gives the fallback, one of another type kCorrupt.
Result<bool> bool_member(const Json& object, const char* key, bool fallback, std::string_view where);
Result<std::string> string_member(const Json& object, const char* key, std::string fallback, std::string_view where);

}  // namespace lowbit::text
