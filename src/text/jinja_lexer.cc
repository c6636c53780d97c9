#include "text/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/try.h"
#include "text/utf8.h"

namespace lowbit::jinja {
namespace {

constexpr std::size_t kMaxNameBytes = 256;  // names are compared at each look-up

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// \r\n and \r become \n, and one newline at the very end goes away.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

int hex_value(std::string_view digits) {
  int value = 0;
  for (const char c : digits) {
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return -1;
    value = value * 16 + (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
  }
  return value;
}

// Python's escapes. An unknown one stays as it is, backslash included.
std::string unescape(std::string_view s) {
  std::string out;
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '\\' || i + 1 == s.size()) {
      out += s[i];
      continue;
    }
    const char c = s[++i];
    constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    const std::size_t simple = kFrom.find(c);
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (simple != std::string_view::npos) {
      out += kTo[simple];
    } else if (c == '\n') {
      continue;  // a line that goes on
    } else if (c >= '0' && c <= '7') {
      int value = 0;
      std::size_t n = 0;
      for (; n < 3 && i + n < s.size() && s[i + n] >= '0' && s[i + n] <= '7'; ++n) value = value * 8 + (s[i + n] - '0');
      text::append_utf8(out, static_cast<char32_t>(value));
      i += n - 1;
    } else if (digits > 0 && i + digits < s.size()) {
      const int value = digits == 8 && s[i + 1] != '0' ? -1 : hex_value(s.substr(i + 1, digits));
      if (value < 0 || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
        out += '\\';
        out += c;
      } else {
        text::append_utf8(out, static_cast<char32_t>(value));
        i += digits;
      }
    } else {
      out += '\\';
      out += c;
    }
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) LOWBIT_TRY(text_and_tag());
    push(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void push(Token::Kind kind, std::string_view text) { tokens_.push_back({kind, std::string(text), line_}); }
  bool starts(std::string_view s) const { return std::string_view(source_).substr(at_).starts_with(s); }
  tl::unexpected<Error> bad(std::string got, std::string wanted = {}) const {
    return fail(ErrorCode::kInvalidArgument, place(line_), std::move(got), std::move(wanted));
  }

  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  std::size_t next_tag() const {
    for (std::size_t i = at_; (i = source_.find('{', i)) != std::string::npos; ++i)
      if (i + 1 < source_.size() && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) return i;
    return source_.size();
  }

  // The text before a tag, cut as the tag's sign or lstrip_blocks wants.
  void push_text(std::size_t end, char tag, char sign) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    } else if (sign != '+' && (tag == '%' || tag == '#')) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
      const bool at_line_start = start > 0 || line_starts_;
      if (at_line_start && std::all_of(text.begin() + static_cast<std::ptrdiff_t>(start), text.end(), is_space))
        text = text.substr(0, start);
    }
    if (!text.empty()) push(Token::Kind::kText, text);
    advance(end);
  }

  // The end of a tag stands at at_ + length; eats what its sign or trim_blocks says.
  void end_tag(std::size_t length, bool strip, bool trim) {
    std::size_t to = at_ + length;
    if (strip) {
      while (to < source_.size() && is_space(source_[to])) ++to;
    } else if (trim && to < source_.size() && source_[to] == '\n') {
      ++to;
    }
    line_starts_ = source_[to - 1] == '\n';
    advance(to);
  }

  Status text_and_tag() {
    const std::size_t tag_at = next_tag();
    if (tag_at == source_.size()) {
      push_text(tag_at, 0, '+');
      return {};
    }
    const char tag = source_[tag_at + 1];
    const char sign = tag_at + 2 < source_.size() ? source_[tag_at + 2] : ' ';
    push_text(tag_at, tag, sign);
    if (tag == '#') return comment();
    advance(at_ + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (tag == '%' && is_raw()) return raw();
    push(tag == '%' ? Token::Kind::kBlockBegin : Token::Kind::kOutputBegin, "");
    return inside(tag == '%');
  }

  Status comment() {
    const std::size_t end = source_.find("#}", at_ + 2);
    if (end == std::string::npos) return bad("a comment without an end", "#}");
    const bool strip = source_[end - 1] == '-' && end > at_ + 2;
    const bool keep = source_[end - 1] == '+' && end > at_ + 2;
    advance(end);
    end_tag(2, strip, !keep);
    return {};
  }

  std::size_t skip_space(std::size_t i) const {
    while (i < source_.size() && is_space(source_[i])) ++i;
    return i;
  }

  // Position behind `word` and the end of its block tag, or npos. sign: the character before %}.
  std::size_t match_bare_tag(std::size_t i, std::string_view word, char& sign) const {
    i = skip_space(i);
    if (!std::string_view(source_).substr(i).starts_with(word)) return std::string::npos;
    i = skip_space(i + word.size());
    sign = ' ';
    if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) sign = source_[i++];
    return std::string_view(source_).substr(i).starts_with("%}") ? i + 2 : std::string::npos;
  }

  bool is_raw() const {
    char sign = ' ';
    return match_bare_tag(at_, "raw", sign) != std::string::npos;
  }

  Status raw() {
    char sign = ' ';
    advance(match_bare_tag(at_, "raw", sign) - 2);
    end_tag(2, sign == '-', false);  // Jinja keeps the newline here, trim_blocks or not
    for (std::size_t i = at_; (i = source_.find("{%", i)) != std::string::npos; i += 2) {
      const char lead = i + 2 < source_.size() ? source_[i + 2] : ' ';
      const std::size_t end = match_bare_tag(i + 2 + (lead == '-' || lead == '+' ? 1 : 0), "endraw", sign);
      if (end == std::string::npos) continue;
      push_text(i, '%', lead);
      advance(end - 2);
      end_tag(2, sign == '-', sign != '+');
      return {};
    }
    return bad("raw without an end", "endraw");
  }

  Status inside(bool block) {
    brackets_.clear();
    const std::string_view close = block ? "%}" : "}}";
    while (true) {
      advance(skip_space(at_));
      if (at_ >= source_.size()) return bad("a tag without an end", std::string(close));
      if (brackets_.empty()) {
        const bool strip = starts(block ? "-%}" : "-}}"), keep = block && starts("+%}");
        if (strip || keep || starts(close)) {
          push(block ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd, "");
          end_tag(strip || keep ? 3 : 2, strip, block && !keep);
          return {};
        }
      }
      LOWBIT_TRY(token());
    }
  }

  Status token() {
    const char c = source_[at_];
    if (c == '"' || c == '\'') return string_token(c);
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      number_token();
      return {};
    }
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || static_cast<unsigned char>(c) >= 0x80) {
      std::size_t end = at_;
      while (end < source_.size() && (std::isalnum(static_cast<unsigned char>(source_[end])) != 0 ||
                                      source_[end] == '_' || static_cast<unsigned char>(source_[end]) >= 0x80))
        ++end;
      if (end - at_ > kMaxNameBytes)
        return fail(ErrorCode::kInvalidArgument, place(line_), fmt::format("a name of {} bytes", end - at_),
                    fmt::format("at most {}", kMaxNameBytes));
      push(Token::Kind::kName, std::string_view(source_).substr(at_, end - at_));
      at_ = end;
      return {};
    }
    return operator_token();
  }

  Status string_token(char mark) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != mark) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return bad("a string without an end", std::string(1, mark));
    push(Token::Kind::kString, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
    return {};
  }

  void number_token() {
    std::string text;
    bool is_float = false;
    const auto digits = [&] {
      while (at_ < source_.size() &&
             (std::isdigit(static_cast<unsigned char>(source_[at_])) != 0 || source_[at_] == '_')) {
        if (source_[at_] != '_') text += source_[at_];
        ++at_;
      }
    };
    const auto digit_at = [&](std::size_t i) {
      return i < source_.size() && std::isdigit(static_cast<unsigned char>(source_[i])) != 0;
    };
    digits();
    if (at_ < source_.size() && source_[at_] == '.' && digit_at(at_ + 1)) {
      is_float = true;
      text += source_[at_++];
      digits();
    }
    if (at_ < source_.size() && (source_[at_] | 32) == 'e') {
      const std::size_t sign = at_ + 1 < source_.size() && (source_[at_ + 1] == '-' || source_[at_ + 1] == '+') ? 1 : 0;
      if (digit_at(at_ + 1 + sign)) {
        is_float = true;
        text.append(source_, at_, 1 + sign);
        at_ += 1 + sign;
        digits();
      }
    }
    push(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, text);
  }

  Status operator_token() {
    constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
                                               ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ",", ".", ":", "|", ";"};
    for (const std::string_view op : kOperators) {
      if (!starts(op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{') brackets_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      if (c == ')' || c == ']' || c == '}') {
        if (brackets_.empty() || brackets_.back() != c)
          return bad(fmt::format("'{}'", c), brackets_.empty() ? "" : std::string(1, brackets_.back()));
        brackets_.pop_back();
      }
      push(Token::Kind::kOperator, op);
      at_ += op.size();
      return {};
    }
    return bad(fmt::format("the character '{}'", source_[at_]), "an expression");
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<char> brackets_;
  std::vector<Token> tokens_;
};

}  // namespace

std::string place(int line) { return fmt::format("chat template line {}", line); }

Result<std::vector<Token>> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace lowbit::jinja
