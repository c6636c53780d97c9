#include "text/jinja_value.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <charconv>
#include <cmath>

#include "base/try.h"
#include "text/jinja_ast.h"
#include "text/utf8.h"

namespace lowbit::jinja {
namespace {

constexpr std::size_t kMaxShownBytes = 300;  // of a template's texts in messages

// Where to cut s so that no character of it is cut.
std::size_t last_whole_character(std::string_view s, std::size_t limit) {
  while (limit > 0 && (static_cast<unsigned char>(s[limit]) & 0xC0) == 0x80) --limit;
  return limit;
}

std::string float_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[32];
  // Python: scientific from 1e16 and below 1e-4, always with the shortest digits that read back the same.
  const double size = std::fabs(d);
  const bool scientific = size != 0 && (size >= 1e16 || size < 1e-4);
  const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, format).ptr;
  std::string out(buffer, end);
  if (!scientific && out.find('.') == std::string::npos) out += ".0";
  return out;
}

bool is_printable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

std::string quote(std::string_view s) {
  const char mark = s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, mark);
  for (std::size_t at = 0; at < s.size();) {
    const text::CodePoint c = text::decode_utf8(s, at);
    const int length = std::max(c.length, 1);
    const char first = s[at];
    if (first == mark || first == '\\') {
      out += fmt::format("\\{}", first);
    } else if (first == '\n' || first == '\r' || first == '\t') {
      out += first == '\n' ? "\\n" : first == '\r' ? "\\r" : "\\t";
    } else if (c.length == 0 || is_printable(c.value)) {
      out.append(s, at, length);
    } else if (c.value < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c.value));
    } else if (c.value < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c.value));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<unsigned>(c.value));
    }
    at += length;
  }
  return out += mark;
}

void append_repr(const Value& value, Meter& meter, std::string& out);

void append_list(const List& list, Meter& meter, std::string& out) {
  const bool is_tuple = list.kind == ListKind::kTuple;
  out += is_tuple ? '(' : '[';
  for (std::size_t i = 0; i < list.items.size() && !meter.exhausted(); ++i) {
    if (i > 0) out += ", ";
    append_repr(list.items[i], meter, out);
  }
  if (is_tuple && list.items.size() == 1) out += ',';
  out += is_tuple ? ')' : ']';
}

void append_dict(const Dict& dict, Meter& meter, std::string& out) {
  out += '{';
  bool first = true;
  for (const auto& [key, item] : dict.entries) {
    if (meter.exhausted()) return;
    if (!first) out += ", ";
    first = false;
    append_repr(key, meter, out);
    out += ": ";
    append_repr(item, meter, out);
  }
  out += '}';
}

void append_repr(const Value& value, Meter& meter, std::string& out) {
  const std::size_t before = out.size();
  if (!meter.spend_steps()) return;
  if (value.is_string()) {
    out += quote(value.text());
    meter.spend_bytes(out.size() - before);
  } else if (value.list() != nullptr) {
    append_list(*value.list(), meter, out);
  } else if (value.dict() != nullptr) {
    append_dict(*value.dict(), meter, out);
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else {
    out += to_text(value, meter);
  }
}

template <class T>
int order(T a, T b) {
  return a < b ? -1 : (b < a ? 1 : 0);
}

}  // namespace

bool Meter::spend_steps(std::size_t n) {
  if (exhausted()) return false;
  if (n > steps_) {
    exhausted_ = "steps";
    return false;
  }
  steps_ -= n;
  return true;
}

bool Meter::spend_bytes(std::size_t n) {
  if (exhausted()) return false;
  if (n > bytes_ || n > largest_) {
    exhausted_ = "bytes of memory";
    return false;
  }
  bytes_ -= n;
  return true;
}

Value Value::undefined(std::string_view name) {
  Value v;
  v.data_ = Undefined{std::make_shared<const std::string>(name.substr(0, kMaxShownBytes))};
  return v;
}

Value Value::markup(std::string s) {
  Value v;
  v.data_ = std::make_shared<const TextData>(TextData{std::move(s), true});
  return v;
}

bool Value::is_number() const { return is_integer() || as<double>() != nullptr; }
const List* Value::list() const {
  const auto* p = as<std::shared_ptr<const List>>();
  return p ? p->get() : nullptr;
}
const Dict* Value::dict() const {
  const auto* p = as<std::shared_ptr<const Dict>>();
  return p ? p->get() : nullptr;
}
Namespace* Value::space() const {
  const auto* p = as<Namespace*>();
  return p ? *p : nullptr;
}
const Loop* Value::loop() const {
  const auto* p = as<const Loop*>();
  return p ? *p : nullptr;
}
const Callable* Value::callable() const {
  const auto* p = as<std::shared_ptr<const Callable>>();
  return p ? p->get() : nullptr;
}
std::int64_t Value::integer() const {
  if (const bool* b = as<bool>()) return *b ? 1 : 0;
  return *as<std::int64_t>();
}
double Value::number() const {
  if (const double* d = as<double>()) return *d;
  return static_cast<double>(integer());
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (is_string()) return !text().empty();
  if (list() != nullptr) return list()->kind == ListKind::kGenerator || !list()->items.empty();
  if (dict() != nullptr) return !dict()->entries.empty();
  return true;
}

const char* Value::type_name() const {
  constexpr const char* kNames[] = {"undefined", "None", "bool",      "int",  "float",   "str",
                                    "list",      "dict", "namespace", "loop", "callable"};
  if (list() != nullptr && list()->kind == ListKind::kTuple) return "tuple";
  if (list() != nullptr && list()->kind == ListKind::kGenerator) return "generator";
  return kNames[data_.index()];
}

int Value::depth() const {
  if (list() != nullptr) return list()->depth;
  return dict() != nullptr ? dict()->depth : 0;
}

namespace {

constexpr std::size_t kIndexFrom = 8;  // entries; fewer are searched one by one

// Keys that are equal have the same index key (1 and 1.0 and true, as in Python).
std::string index_key(const Value& key) {
  if (key.is_string()) return "s" + key.text();
  if (key.is_number()) return fmt::format("n{}", key.number());
  return key.type_name();
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  if (entries.size() > kIndexFrom) {
    const auto it = index_.find("s" + std::string(key));
    return it == index_.end() ? nullptr : &entries[it->second].second;
  }
  for (const auto& [k, v] : entries)
    if (k.is_string() && k.text() == key) return &v;
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.text()));
  const auto it = index_.find(index_key(key));
  return it == index_.end() ? nullptr : &entries[it->second].second;
}

void Dict::set(Value key, Value value) {
  depth = std::max(depth, value.depth() + 1);
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);  // an entry of this object, which is not const here
    return;
  }
  index_.emplace(index_key(key), entries.size());
  entries.emplace_back(std::move(key), std::move(value));
}

Result<Value> make_list(std::vector<Value> items, ListKind kind) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->depth = std::max(list->depth, item.depth() + 1);
  if (list->depth > kMaxValueDepth)
    return complain("a list nested too deep", fmt::format("at most {}", kMaxValueDepth));
  list->items = std::move(items);
  list->kind = kind;
  return Value(std::shared_ptr<const List>(std::move(list)));
}

Result<Value> make_dict(Dict dict) {
  if (dict.depth > kMaxValueDepth) return complain("a dict nested too deep", fmt::format("at most {}", kMaxValueDepth));
  return Value(std::shared_ptr<const Dict>(std::make_shared<Dict>(std::move(dict))));
}

bool equal(const Value& a, const Value& b, Meter& meter) {
  if (!meter.spend_steps()) return false;
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.is_string() && b.is_string()) {
    meter.spend_text(std::min(a.text().size(), b.text().size()));
    return a.text() == b.text();
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    const List &x = *a.list(), &y = *b.list();
    if (x.kind != y.kind || x.items.size() != y.items.size()) return false;
    for (std::size_t i = 0; i < x.items.size(); ++i)
      if (!equal(x.items[i], y.items[i], meter)) return false;
    return true;
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->entries.size() != b.dict()->entries.size()) return false;
    for (const auto& [key, value] : a.dict()->entries) {
      if (key.is_string()) meter.spend_text(key.text().size());
      const Value* other = b.dict()->find(key);
      if (other == nullptr || !equal(value, *other, meter)) return false;
    }
    return true;
  }
  if (a.space() != nullptr) return a.space() == b.space();
  if (a.loop() != nullptr) return a.loop() == b.loop();
  if (a.callable() != nullptr) return a.callable() == b.callable();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

Result<int> compare(const Value& a, const Value& b, Meter& meter) {
  if (a.is_integer() && b.is_integer()) return order(a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return order(a.number(), b.number());
  if (a.is_string() && b.is_string()) {
    meter.spend_text(std::min(a.text().size(), b.text().size()));
    return a.text().compare(b.text());
  }
  if (a.list() != nullptr && b.list() != nullptr && a.list()->kind == b.list()->kind) {
    const auto &x = a.list()->items, &y = b.list()->items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (meter.exhausted()) return 0;
      if (!equal(x[i], y[i], meter)) return compare(x[i], y[i], meter);
    }
    return order(x.size(), y.size());
  }
  return complain(fmt::format("{} and {}, which have no order", a.type_name(), b.type_name()));
}

std::string to_text(const Value& value, Meter& meter) {
  if (value.is_string()) {
    meter.spend_text(value.text().size());
    return value.text();
  }
  if (value.is_undefined()) return {};
  if (value.is_none()) return "None";
  if (const bool* b = value.as<bool>()) return *b ? "True" : "False";
  if (const auto* i = value.as<std::int64_t>()) return fmt::format("{}", *i);
  if (const double* d = value.as<double>()) return float_text(*d);
  if (value.list() != nullptr || value.dict() != nullptr) return repr(value, meter);
  return fmt::format("<{}>", value.type_name());
}

std::string repr(const Value& value, Meter& meter) {
  std::string out;
  append_repr(value, meter, out);
  return out;
}

tl::unexpected<Error> complain(std::string got, std::string wanted) {
  if (got.size() > kMaxShownBytes) got.resize(last_whole_character(got, kMaxShownBytes));
  return fail(ErrorCode::kInvalidArgument, "", std::move(got), std::move(wanted));
}

}  // namespace lowbit::jinja
