#include "text/jinja_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/try.h"
#include "text/utf8.h"

namespace lowbit::jinja {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kContainerBytes = 192;
constexpr std::size_t kMaxJsonDepth = 90;
constexpr std::size_t kMaxJsonBytes = std::size_t{128} << 20;  // of the values

// Builds values as the parser goes: keeps the order of keys and never recurses.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Value result;
  std::size_t error_byte = 0;
  bool too_deep = false, too_large = false;

  bool null() override { return put(Value(None{})); }
  bool boolean(bool b) override { return put(Value(b)); }
  bool number_integer(number_integer_t i) override { return put(Value(std::int64_t{i})); }
  bool number_unsigned(number_unsigned_t u) override {
    if (u > static_cast<number_unsigned_t>(INT64_MAX)) return put(Value(static_cast<double>(u)));
    return put(Value(static_cast<std::int64_t>(u)));
  }
  bool number_float(number_float_t d, const string_t&) override { return put(Value(double{d})); }
  bool string(string_t& s) override { return spend(s.size() + kTextBytes) && put(Value(std::move(s))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool key(string_t& k) override {
    if (!spend(kEntryBytes + 2 * k.size())) return false;
    stack_.back().key = std::move(k);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    error_byte = position;
    return false;
  }

 private:
  struct Open {
    bool is_object;
    Dict dict;
    std::vector<Value> items;
    std::string key;
  };

  bool spend(std::size_t n) {
    too_large = n > bytes_;
    bytes_ -= too_large ? 0 : n;
    return !too_large;
  }
  bool put(Value value) {
    if (!spend(2 * sizeof(Value))) return false;
    if (stack_.empty()) {
      result = std::move(value);
    } else if (stack_.back().is_object) {
      stack_.back().dict.set(Value(std::move(stack_.back().key)), std::move(value));
    } else {
      stack_.back().items.push_back(std::move(value));
    }
    return true;
  }
  bool open(bool is_object) {
    if (!spend(kContainerBytes)) return false;
    too_deep = stack_.size() >= kMaxJsonDepth;
    if (!too_deep) stack_.push_back({is_object, {}, {}, {}});
    return !too_deep;
  }
  bool close() {
    Open top = std::move(stack_.back());
    stack_.pop_back();
    Result<Value> value = top.is_object ? make_dict(std::move(top.dict)) : make_list(std::move(top.items));
    return value && put(std::move(*value));
  }

  std::vector<Open> stack_;
  std::size_t bytes_ = kMaxJsonBytes;
};

void append_string(std::string_view s, bool ensure_ascii, std::string& out) {
  out += '"';
  for (std::size_t at = 0; at < s.size();) {
    const text::CodePoint c = text::decode_utf8(s, at);
    const int length = std::max(c.length, 1);
    const auto byte = static_cast<unsigned char>(s[at]);
    constexpr std::string_view kPlain = "\"\\\n\r\t\b\f", kEscaped = "\"\\nrtbf";
    if (const std::size_t i = kPlain.find(s[at]); i != std::string_view::npos) {
      out += '\\';
      out += kEscaped[i];
    } else if (byte < 0x20) {
      out += fmt::format("\\u{:04x}", byte);
    } else if (ensure_ascii && c.value >= 0x10000) {
      const unsigned v = static_cast<unsigned>(c.value) - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (v >> 10), 0xDC00 + (v & 0x3FF));
    } else if (ensure_ascii && c.value >= 0x80) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c.value));
    } else {
      out.append(s, at, length);
    }
    at += length;
  }
  out += '"';
}

class Writer {
 public:
  Writer(const JsonStyle& style, Meter& meter) : style_(style), meter_(meter) {}

  Status write(const Value& value, int level) {
    if (!meter_.spend_steps()) return {};
    const std::size_t before = out.size();
    if (value.is_string()) {
      if (!meter_.spend_text(4 * value.text().size())) return {};
      append_string(value.text(), style_.ensure_ascii, out);
    } else if (value.is_none()) {
      out += "null";
    } else if (const bool* b = value.as<bool>()) {
      out += *b ? "true" : "false";
    } else if (value.is_number()) {
      write_number(value);
    } else if (const List* list = value.list()) {
      return write_list(*list, level);
    } else if (const Dict* dict = value.dict()) {
      return write_dict(*dict, level);
    } else {
      return complain(fmt::format("{} in tojson", value.type_name()), "a text, number, list or dict");
    }
    meter_.spend_bytes(out.size() - before);
    return {};
  }

  std::string out;

 private:
  void write_number(const Value& value) {
    const double d = value.number();
    if (!value.is_integer() && std::isnan(d)) {
      out += "NaN";
    } else if (!value.is_integer() && std::isinf(d)) {
      out += d < 0 ? "-Infinity" : "Infinity";
    } else {
      out += to_text(value, meter_);
    }
  }

  void new_line(int level) {
    if (!style_.indent) return;
    const auto width = static_cast<std::size_t>(*style_.indent) * static_cast<std::size_t>(level);
    if (!meter_.spend_bytes(width + 1)) return;
    out += '\n';
    out.append(width, ' ');
  }

  Status write_list(const List& list, int level) {
    out += '[';
    for (std::size_t i = 0; i < list.items.size() && !meter_.exhausted(); ++i) {
      if (i > 0) out += style_.item_separator;
      new_line(level + 1);
      LOWBIT_TRY(write(list.items[i], level + 1));
    }
    if (!list.items.empty()) new_line(level);
    out += ']';
    return {};
  }

  Status write_key(const Value& key) {
    if (key.is_string()) {
      append_string(key.text(), style_.ensure_ascii, out);
      return {};
    }
    out += '"';
    LOWBIT_TRY(write(key, 0));
    out += '"';
    return {};
  }

  Status write_dict(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        return compare(a->first, b->first, meter_).value_or(0) < 0;
      });
    out += '{';
    bool first = true;
    for (const auto* entry : entries) {
      if (meter_.exhausted()) return {};
      if (!first) out += style_.item_separator;
      first = false;
      new_line(level + 1);
      LOWBIT_TRY(write_key(entry->first));
      out += style_.key_separator;
      LOWBIT_TRY(write(entry->second, level + 1));
    }
    if (!entries.empty()) new_line(level);
    out += '}';
    return {};
  }

  const JsonStyle& style_;
  Meter& meter_;
};

}  // namespace

Result<Value> from_json(std::string_view json, std::string_view where) {
  Builder builder;
  if (Json::sax_parse(json.begin(), json.end(), &builder)) return std::move(builder.result);
  if (builder.too_large)
    return fail(ErrorCode::kInvalidArgument, std::string(where), fmt::format("{} bytes of JSON", json.size()),
                fmt::format("values of at most {} bytes in memory", kMaxJsonBytes));
  if (builder.too_deep)
    return fail(ErrorCode::kCorrupt, std::string(where), "JSON nested too deep",
                fmt::format("at most {}", kMaxJsonDepth));
  return fail(ErrorCode::kCorrupt, std::string(where),
              fmt::format("text that is no JSON at byte {} of {}", builder.error_byte, json.size()), "JSON");
}

Result<std::string> to_json(const Value& value, const JsonStyle& style, Meter& meter) {
  Writer writer(style, meter);
  LOWBIT_TRY(writer.write(value, 0));
  return std::move(writer.out);
}

}  // namespace lowbit::jinja
