#pragma once
// The values of the template language. All but namespaces are immutable, so sharing is free and cycles cannot be made.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "lowbit/error.h"

namespace lowbit::jinja {

/// The budget of a rendering. Once it is used up everything stops soon: builtins return at once, and the evaluator,
/// which asks after every step, reports it.
class Meter {
 public:
  Meter(std::size_t steps, std::size_t bytes) : steps_(steps), bytes_(bytes), largest_(bytes / 8) {}
  bool spend_steps(std::size_t n = 1);
  /// Reading or copying that many bytes of text, which is nothing to be had for free: 64 bytes are a step.
  bool spend_text(std::size_t n) { return spend_steps(n / 64); }
  /// Also refuses a single value over an eighth of the whole: working on it takes a multiple of its size.
  bool spend_bytes(std::size_t n);
  bool exhausted() const { return exhausted_ != nullptr; }
  /// The resource that was used up: "steps" or "bytes of memory".
  const char* what() const { return exhausted_; }

 private:
  std::size_t steps_, bytes_, largest_;
  const char* exhausted_ = nullptr;
};

class Value;
struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

struct Undefined {
  std::shared_ptr<const std::string> name;
};
struct None {};

/// Lists and dictionaries may nest this deep; deeper ones are refused where they are made.
inline constexpr int kMaxValueDepth = 100;
/// Bytes that a list, a text and an entry of a dictionary take besides their contents.
inline constexpr std::size_t kListBytes = 96, kTextBytes = 96, kEntryBytes = 256;

class Value {
 public:
  struct TextData {
    std::string text;
    bool is_markup;
  };
  using Text = std::shared_ptr<const TextData>;
  Value() = default;
  explicit Value(None) : data_(None{}) {}
  explicit Value(bool b) : data_(b) {}
  explicit Value(std::int64_t i) : data_(i) {}
  explicit Value(double d) : data_(d) {}
  explicit Value(std::string s) : data_(std::make_shared<const TextData>(TextData{std::move(s), false})) {}
  explicit Value(std::shared_ptr<const List> l) : data_(std::move(l)) {}
  explicit Value(std::shared_ptr<const Dict> d) : data_(std::move(d)) {}
  explicit Value(std::shared_ptr<const Callable> c) : data_(std::move(c)) {}
  explicit Value(Namespace* n) : data_(n) {}
  explicit Value(const Loop* l) : data_(l) {}
  static Value undefined(std::string_view name);
  /// A text that counts as escaped (what the filters safe and escape give): what is added to it is escaped.
  static Value markup(std::string s);

  template <class T>
  const T* as() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  bool is_string() const { return as<Text>() != nullptr; }
  bool is_number() const;  // bool included, as in Python
  bool is_integer() const { return as<std::int64_t>() != nullptr || as<bool>() != nullptr; }
  const std::string& text() const { return (*as<Text>())->text; }  // is_string() only
  bool is_markup() const { return is_string() && (*as<Text>())->is_markup; }
  const List* list() const;
  const Dict* dict() const;
  Namespace* space() const;
  const Loop* loop() const;
  const Callable* callable() const;
  std::int64_t integer() const;  // is_integer() only
  double number() const;         // is_number() only

  bool truthy() const;
  /// Python's name of the type, for messages.
  const char* type_name() const;
  int depth() const;

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, Namespace*, const Loop*, std::shared_ptr<const Callable>>
      data_;
};

/// kGenerator: what filters such as map and select give in Python: true whatever comes of it, and without a length.
enum class ListKind : uint8_t { kList, kTuple, kGenerator };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  int depth = 1;
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // in the order of insertion
  int depth = 1;

  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;
  void set(Value key, Value value);

 private:
  std::unordered_map<std::string, std::size_t> index_;  // by key, see jinja_value.cc
};

struct Namespace {
  Dict attributes;
};

/// Makes a list or dictionary; kInvalidArgument if it nests too deep.
Result<Value> make_list(std::vector<Value> items, ListKind kind = ListKind::kList);
Result<Value> make_dict(Dict dict);

bool equal(const Value& a, const Value& b, Meter& meter);
/// Python's order: negative, 0, positive. kInvalidArgument for values that have none.
Result<int> compare(const Value& a, const Value& b, Meter& meter);
/// str(value) and repr(value).
std::string to_text(const Value& value, Meter& meter);
std::string repr(const Value& value, Meter& meter);

/// An Error without a place: the evaluator adds the line.
tl::unexpected<Error> complain(std::string got, std::string wanted = {});

}  // namespace lowbit::jinja
