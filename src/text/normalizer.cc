#include "text/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/try.h"
#include "text/utf8.h"

namespace lowbit::text {
namespace {

using Kind = NormalizerStep::Kind;

constexpr std::size_t kMaxGrowth = 64, kMaxExtra = 1 << 20;

bool is_ascii(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
}

Result<std::string> unicode_form(std::string_view text, Kind kind) {
  if (is_ascii(text)) return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= (kind == Kind::kNfc || kind == Kind::kNfkc) ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (kind == Kind::kNfkc || kind == Kind::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &raw, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
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

std::string replace_ranges(std::string_view text, const std::vector<Range>& ranges, std::string_view content) {
  std::string out;
  std::size_t at = 0;
  for (const Range& r : ranges) {
    out.append(text, at, r.begin - at).append(content);
    at = r.end;
  }
  return out.append(text, at);
}

}  // namespace

void find_literal(std::string_view text, std::string_view pattern, std::vector<Range>& matches) {
  for (std::size_t at = 0; (at = text.find(pattern, at)) != std::string_view::npos; at += pattern.size())
    matches.push_back({at, at + pattern.size()});
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::vector<Range> matches;
  find_literal(text, from, matches);
  return replace_ranges(text, matches, to);
}

Result<Normalizer> Normalizer::build(const std::vector<NormalizerStep>& steps) {
  Normalizer normalizer;
  for (const NormalizerStep& step : steps) {
    Compiled compiled{step, std::nullopt};
    if (step.kind == Kind::kReplace) {
      if (step.pattern.empty())
        return fail(ErrorCode::kCorrupt, "tokenizer normalizer Replace", "an empty pattern", "a text");
      if (step.is_regex) {
        LOWBIT_TRY_ASSIGN(compiled.regex, Regex::compile(step.pattern, "tokenizer normalizer Replace"));
      }
    }
    normalizer.steps_.push_back(std::move(compiled));
  }
  return normalizer;
}

Result<std::string> Normalizer::apply(std::string_view text, bool with_prefix, RegexScratch& scratch) const {
  std::string out(text);
  for (const auto& [step, regex] : steps_) {
    switch (step.kind) {
      case Kind::kNfc:
      case Kind::kNfd:
      case Kind::kNfkc:
      case Kind::kNfkd: {
        LOWBIT_TRY_ASSIGN(out, unicode_form(out, step.kind));
        break;
      }
      case Kind::kLowercase:
        out = lowercase(out);
        break;
      case Kind::kPrepend:
        if (with_prefix && !out.empty()) out.insert(0, step.content);
        break;
      case Kind::kStrip:
        out = std::string(strip(out, step.left, step.right));
        break;
      case Kind::kReplace: {
        std::vector<Range> matches;
        if (regex) {
          LOWBIT_TRY(regex->find_all(out, scratch, matches));
        } else {
          find_literal(out, step.pattern, matches);
        }
        // A chain of steps that each lengthen the text would otherwise grow it without bound.
        if (out.size() + matches.size() * step.content.size() > kMaxGrowth * text.size() + kMaxExtra)
          return fail(ErrorCode::kInvalidArgument, "tokenizer normalizer Replace",
                      fmt::format("a text of {} bytes that grows over {} times", text.size(), kMaxGrowth),
                      "a normalizer that keeps the text's length roughly");
        out = replace_ranges(out, matches, step.content);
        break;
      }
    }
  }
  return out;
}

}  // namespace lowbit::text
