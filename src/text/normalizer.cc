#include "text/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/try.h"
#include "text/search.h"
#include "text/utf8.h"

namespace lowbit::text {
namespace {

using NormalizerKind = NormalizerStep::Kind;

constexpr std::size_t kReplaceSteps = 16;
constexpr std::size_t kUnicodeSteps = 32, kUnicodeBytes = 8, kLowercaseSteps = 8;  // per byte

// Whether a character is moved, or is made of characters that are moved, when marks are put in canonical order.
bool is_mark(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class != 0 || c == 0xF73 || c == 0xF75 ||
         c == 0xF81;
}

// utf8proc sorts the marks of a character by exchanging neighbours: the square of their number.
std::size_t sorting_steps(std::string_view text) {
  std::size_t steps = 0, run = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    at += static_cast<std::size_t>(std::max(c.length, 1));
    run = is_mark(c.value) ? run + 2 : 0;  // one may become two
    steps += run;
  }
  return steps;
}

bool is_ascii(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
}

// Memory of utf8proc_map: four bytes for each character of the decomposed text, in which a character may be 18 for
// compatibility and otherwise takes twice the bytes that it had.
Result<std::size_t> unicode_bytes(std::string_view text, int options) {
  if ((options & UTF8PROC_COMPAT) == 0) return text.size() * kUnicodeBytes;
  const utf8proc_ssize_t characters = utf8proc_decompose(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                                         static_cast<utf8proc_ssize_t>(text.size()), nullptr, 0,
                                                         static_cast<utf8proc_option_t>(options));
  if (characters < 0) return fail(ErrorCode::kInvalidArgument, "normalizer", utf8proc_errmsg(characters), "UTF-8 text");
  return (static_cast<std::size_t>(characters) + 1) * sizeof(utf8proc_int32_t);
}

Result<std::string> unicode_form(std::string_view text, NormalizerKind kind, Budget& budget) {
  if (is_ascii(text)) return std::string(text);
  if (!budget.spend_steps(text.size(), kUnicodeSteps) || !budget.spend_steps(sorting_steps(text), 4))
    LOWBIT_TRY(budget.status("tokenizer normalizer"));
  int options = UTF8PROC_STABLE;
  options |= (kind == NormalizerKind::kNfc || kind == NormalizerKind::kNfkc) ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (kind == NormalizerKind::kNfkc || kind == NormalizerKind::kNfkd) options |= UTF8PROC_COMPAT;
  LOWBIT_TRY_ASSIGN(const std::size_t bytes, unicode_bytes(text, options));
  if (!budget.spend_bytes(bytes)) LOWBIT_TRY(budget.status("tokenizer normalizer"));
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &raw, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
  budget.give_back(bytes);
  if (length < 0) return fail(ErrorCode::kInvalidArgument, "normalizer", utf8proc_errmsg(length), "UTF-8 text");
  return std::string(reinterpret_cast<const char*>(raw), static_cast<std::size_t>(length));
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    if (c.value == 0x130) {
      out += "i\xCC\x87";  // the one character whose lower case is two
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))));
    }
    at += c.length;
  }
  return out;
}

std::string_view strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const CodePoint c = decode_utf8(text, 0);
    if (!is_white_space(c.value)) break;
    text.remove_prefix(c.length);
  }
  while (right && !text.empty()) {
    std::size_t at = text.size() - 1;
    while (at > 0 && decode_utf8(text, at).length == 0) --at;
    if (!is_white_space(decode_utf8(text, at).value)) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

// A copy of a text in which ranges are replaced, made from left to right. Charges what it makes.
class Replaced {
 public:
  Replaced(std::string_view text, std::string_view content, Budget& budget)
      : text_(text), content_(content), budget_(budget) {}

  /// False when the budget is exhausted.
  bool replace(Range range) {
    const std::string_view before = text_.substr(at_, range.begin - at_);
    at_ = range.end;
    const std::size_t made = before.size() + content_.size();
    if (!budget_.spend_bytes(made) || !budget_.spend_steps(made + kReplaceSteps)) return false;
    out_.append(before).append(content_);
    return true;
  }

  /// "" when the budget is exhausted.
  std::string rest() {
    const std::string_view behind = text_.substr(at_);
    if (!budget_.spend_bytes(behind.size()) || !budget_.spend_steps(behind.size())) return {};
    return std::move(out_.append(behind));
  }

 private:
  std::string_view text_, content_;
  Budget& budget_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

void for_each_literal(std::string_view text, std::string_view pattern, Budget& budget, const UseRange& use) {
  if (!budget.spend_steps(text.size() + pattern.size())) return;
  for (std::size_t at = 0; (at = find_text(text, pattern, at)) != std::string_view::npos; at += pattern.size())
    if (!use({at, at + pattern.size()})) return;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to, Budget& budget) {
  Replaced out(text, to, budget);
  for_each_literal(text, from, budget, [&](Range match) { return out.replace(match); });
  return out.rest();
}

Result<Normalizer> Normalizer::build(const std::vector<NormalizerStep>& steps, Budget& budget) {
  Normalizer normalizer;
  for (const NormalizerStep& step : steps) {
    Compiled compiled{step, std::nullopt};
    if (step.kind == NormalizerKind::kReplace) {
      if (step.pattern.empty())
        return fail(ErrorCode::kCorrupt, "tokenizer normalizer Replace", "an empty pattern", "a text");
      if (step.is_regex) {
        LOWBIT_TRY_ASSIGN(compiled.regex, Regex::compile(step.pattern, "tokenizer normalizer Replace", budget));
      }
    }
    normalizer.steps_.push_back(std::move(compiled));
  }
  return normalizer;
}

Result<std::string> Normalizer::replace(const Compiled& compiled, std::string_view text, RegexScratch& scratch,
                                        Budget& budget) {
  Replaced out(text, compiled.step.content, budget);
  const UseRange use = [&](Range match) { return out.replace(match); };
  if (compiled.regex) {
    LOWBIT_TRY(compiled.regex->for_each_match(text, scratch, budget, use));
  } else {
    for_each_literal(text, compiled.step.pattern, budget, use);
  }
  std::string replaced = out.rest();
  LOWBIT_TRY(budget.status("tokenizer normalizer Replace"));
  return replaced;
}

Result<std::string> Normalizer::apply(std::string_view text, bool with_prefix, RegexScratch& scratch,
                                      Budget& budget) const {
  std::string out(text);
  budget.spend_bytes(out.size());
  for (const Compiled& compiled : steps_) {
    const NormalizerStep& step = compiled.step;
    const std::size_t before = out.size(), room = before + step.content.size();
    if (!budget.spend_bytes(room) ||
        !budget.spend_steps(out.size(), step.kind == NormalizerKind::kLowercase ? kLowercaseSteps : 1))
      LOWBIT_TRY(budget.status("tokenizer normalizer"));
    switch (step.kind) {
      case NormalizerKind::kNfc:
      case NormalizerKind::kNfd:
      case NormalizerKind::kNfkc:
      case NormalizerKind::kNfkd: {
        LOWBIT_TRY_ASSIGN(out, unicode_form(out, step.kind, budget));
        break;
      }
      case NormalizerKind::kLowercase:
        out = lowercase(out);
        break;
      case NormalizerKind::kPrepend:
        if (with_prefix && !out.empty()) out.insert(0, step.content);
        break;
      case NormalizerKind::kStrip:
        out = std::string(strip(out, step.left, step.right));
        break;
      case NormalizerKind::kReplace: {
        LOWBIT_TRY_ASSIGN(out, replace(compiled, out, scratch, budget));
        budget.give_back(out.size());  // which is charged below as well
        break;
      }
    }
    if (!budget.spend_bytes(out.size())) LOWBIT_TRY(budget.status("tokenizer normalizer"));
    budget.give_back(before + room);
  }
  return out;
}

}  // namespace lowbit::text
