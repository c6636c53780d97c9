#include "text/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <unordered_set>

#include "text/search.h"
#include "text/utf8.h"

namespace lowbit::jinja {
namespace {

template <class Map>
std::string map_characters(std::string_view s, Map map) {
  std::string out;
  out.reserve(s.size());
  for (std::size_t at = 0; at < s.size();) {
    const text::CodePoint c = text::decode_utf8(s, at);
    if (c.length == 0) {
      out += s[at++];
      continue;
    }
    map(c.value, out);
    at += c.length;
  }
  return out;
}

void append_upper(char32_t c, std::string& out) {
  if (c == 0xDF) {
    out += "SS";  // the one letter of everyday text whose upper case is two
  } else {
    text::append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_lower(char32_t c, std::string& out) {
  text::append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace

bool is_python_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F);
  return text::is_white_space(c);
}

bool is_cased(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

std::size_t count_characters(std::string_view s) {
  std::size_t n = 0;
  for (std::size_t at = 0; at < s.size(); at += std::max(text::decode_utf8(s, at).length, 1)) ++n;
  return n;
}

std::size_t character_offset(std::string_view s, std::size_t n) {
  std::size_t at = 0;
  for (; n > 0 && at < s.size(); --n) at += static_cast<std::size_t>(std::max(text::decode_utf8(s, at).length, 1));
  return at;
}

std::vector<std::size_t> character_offsets(std::string_view s) {
  std::vector<std::size_t> out;
  for (std::size_t at = 0; at < s.size(); at += std::max(text::decode_utf8(s, at).length, 1)) out.push_back(at);
  out.push_back(s.size());
  return out;
}

std::vector<std::string_view> lines_of(std::string_view s, bool keepends, Meter& meter) {
  const auto ends_line = [](char32_t c) {
    return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  std::vector<std::string_view> lines;
  std::size_t begin = 0, at = 0;
  while (at < s.size()) {
    const text::CodePoint c = text::decode_utf8(s, at);
    const std::size_t end = at;
    at += static_cast<std::size_t>(std::max(c.length, 1));
    if (c.length == 0 || !ends_line(c.value)) continue;
    if (!meter.spend_bytes(sizeof(std::string_view))) return lines;
    if (c.value == '\r' && at < s.size() && s[at] == '\n') ++at;
    lines.push_back(s.substr(begin, (keepends ? at : end) - begin));
    begin = at;
  }
  if (begin < s.size()) lines.push_back(s.substr(begin));
  return lines;
}

std::string strip_text(std::string_view s, std::string_view characters, bool left, bool right) {
  std::unordered_set<std::string_view> set;
  for (std::size_t at = 0; at < characters.size();) {
    const auto length = static_cast<std::size_t>(std::max(text::decode_utf8(characters, at).length, 1));
    set.insert(characters.substr(at, length));
    at += length;
  }
  const auto drops = [&](std::string_view c) {
    if (!characters.empty()) return set.contains(c);
    const text::CodePoint point = text::decode_utf8(c, 0);
    return point.length > 0 && is_python_space(point.value);
  };
  if (characters.empty()) {  // most texts are ASCII, where a byte is a character
    const auto ascii_space = [](char c) { return (c & 0x80) == 0 && is_python_space(char32_t(c)); };
    while (left && !s.empty() && ascii_space(s.front())) s.remove_prefix(1);
    while (right && !s.empty() && ascii_space(s.back())) s.remove_suffix(1);
  }
  while (left && !s.empty()) {
    const std::string_view c = s.substr(0, std::max(text::decode_utf8(s, 0).length, 1));
    if (!drops(c)) break;
    s.remove_prefix(c.size());
  }
  while (right && !s.empty()) {
    const std::string_view c = s.substr(text::last_character(s));
    if (!drops(c)) break;
    s.remove_suffix(c.size());
  }
  return std::string(s);
}

std::string replace_text(Interpreter& in, std::string_view s, std::string_view from, std::string_view to,
                         std::int64_t count) {
  if (count == 0) return std::string(s);
  const auto limit = count < 0 ? ~std::size_t{0} : static_cast<std::size_t>(count);
  // Without `from` a place is before each character and at the end.
  const auto next = [&](std::size_t at) {
    return from.empty() ? character_offset(s.substr(at), 1) + at : text::find_text(s, from, at);
  };
  std::size_t hits = 0;
  if (from.empty()) {
    hits = std::min(limit, count_characters(s) + 1);
  } else {
    for (std::size_t at = 0; hits < limit && (at = text::find_text(s, from, at)) != std::string_view::npos; ++hits)
      at += from.size();
  }
  std::size_t grown = 0;
  if (__builtin_mul_overflow(hits, to.size(), &grown) || !in.meter().spend_bytes(grown + s.size() + kTextBytes) ||
      !in.meter().spend_text(grown + 2 * s.size() + from.size() + kTextBytes * hits)) {  // each is searched for twice
    in.meter().spend_bytes(~std::size_t{0});
    return {};
  }
  std::string out;
  std::size_t at = 0, hit = from.empty() ? 0 : next(0);
  for (; hits > 0; --hits) {
    out.append(s, at, hit - at).append(to);
    at = hit + from.size();
    if (hits > 1) hit = next(at);
  }
  return out.append(s, at);
}

std::string escape_text(Interpreter& in, std::string_view s) {
  constexpr std::pair<std::string_view, std::string_view> kEscapes[] = {
      {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&#34;"}, {"'", "&#39;"}};
  std::string out(s);
  for (const auto& [from, to] : kEscapes) out = replace_text(in, out, from, to, -1);
  return out;
}

std::string upper_text(std::string_view s) { return map_characters(s, append_upper); }
std::string lower_text(std::string_view s) { return map_characters(s, append_lower); }

std::string fold_case_text(std::string_view s) {
  return map_characters(s, [](char32_t c, std::string& out) {
    utf8proc_int32_t folded[8];
    int boundary = 0;
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 8, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < n && n <= 8; ++i) text::append_utf8(out, static_cast<char32_t>(folded[i]));
  });
}

std::string swap_case_text(std::string_view s) {
  return map_characters(s, [](char32_t c, std::string& out) {
    utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LU ? append_lower(c, out)
                                                                                : append_upper(c, out);
  });
}

std::string title_text(std::string_view s) {
  bool in_word = false;
  return map_characters(s, [&](char32_t c, std::string& out) {
    in_word ? append_lower(c, out) : append_upper(c, out);
    in_word = is_cased(c);
  });
}

std::string capitalize_text(std::string_view s) {
  bool first = true;
  return map_characters(s, [&](char32_t c, std::string& out) {
    first ? append_upper(c, out) : append_lower(c, out);
    first = false;
  });
}

}  // namespace lowbit::jinja
