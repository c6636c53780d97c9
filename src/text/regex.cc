#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>

#include "base/try.h"
#include "text/utf8.h"

namespace lowbit::text {
namespace {

constexpr std::size_t kMaxPatternBytes = 16 * 1024;
// PCRE2 counts a match's steps anew at each place of the text, and what a step reads is the whole rest at worst. So one
// call tries few places with few steps; only a place that needs more gets more, four times as many at a time, while the
// budget has time for it.
constexpr std::uint32_t kFirstMatchLimit = 64, kMatchLimit = 1'000'000, kLimitFactor = 4;
constexpr std::size_t kCallWork = std::size_t{1} << 20, kMinPositions = 4, kMaxPositions = 4096;
constexpr std::size_t kMinCalls = 16, kMaxCalls = 64;  // between two looks at the clock, which cost as much as a call
constexpr std::size_t kRegexMatchBytes = 48;           // in a list that grows
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;
constexpr std::size_t kJitStackStart = 32 * 1024, kJitStackMax = 1024 * 1024;

// PCRE2's \s has U+180E, Oniguruma's has not; PCRE2's \w has other numbers and no marks: both sets are
// spelled out. Oniguruma counts the numbers of Latin-1 as \w, and letters in circles and squares (the
// last four ranges).
constexpr const char* kSpaceSet =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr const char* kWordSet =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

// A class escape in Oniguruma's meaning; empty for those that PCRE2 reads the same way.
std::string translate_escape(char letter, bool in_class) {
  const char* set = (letter | 32) == 's' ? kSpaceSet : (letter | 32) == 'w' ? kWordSet : nullptr;
  const bool negated = letter == 'S' || letter == 'W';
  if (set == nullptr || (negated && in_class)) return {};
  return in_class ? set : fmt::format("[{}{}]", negated ? "^" : "", set);
}

std::string translate(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      const std::string set = translate_escape(next, in_class);
      out += set.empty() ? std::string{c, next} : set;
      continue;
    }
    if (c == '[') in_class = true;  // PCRE2 has no nested classes: a second '[' is a literal
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

struct CodeFree {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};

}  // namespace

struct RegexScratch::Impl {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);

  Impl() {
    if (!usable()) return;
    pcre2_set_heap_limit(context, kHeapLimitKib);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Impl() {
    pcre2_jit_stack_free(stack);
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  bool usable() const { return context != nullptr && data != nullptr && stack != nullptr; }
};

RegexScratch::RegexScratch() : impl_(std::make_unique<Impl>()) {}
RegexScratch::~RegexScratch() = default;

struct Regex::Impl {
  std::unique_ptr<pcre2_code, CodeFree> code;
  std::string where;
  bool linear = false;
};

Result<Regex> Regex::compile(std::string_view pattern, std::string where, Budget& budget, bool linear) {
  if (pattern.size() > kMaxPatternBytes)
    return fail(ErrorCode::kUnsupported, where, fmt::format("a pattern of {} bytes", pattern.size()),
                fmt::format("at most {}", kMaxPatternBytes));
  const std::string translated = translate(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto impl = std::make_shared<Impl>();
  impl->code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &error,
                    &offset, nullptr));
  if (impl->code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return fail(ErrorCode::kUnsupported, where,
                fmt::format("pattern {:.80}: {}", pattern, reinterpret_cast<const char*>(message)),
                "a regular expression that PCRE2 accepts");
  }
  pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);  // optional: matching works without
  std::size_t size = 0, jit_size = 0;
  pcre2_pattern_info(impl->code.get(), PCRE2_INFO_SIZE, &size);
  pcre2_pattern_info(impl->code.get(), PCRE2_INFO_JITSIZE, &jit_size);
  if (!budget.spend_bytes(size + jit_size) || !budget.has_time()) LOWBIT_TRY(budget.status(where.c_str()));
  impl->where = std::move(where);
  impl->linear = linear;
  Regex regex;
  regex.impl_ = std::move(impl);
  return regex;
}

// One search through a text, a few places at a time.
struct Regex::Search {
  const Impl& regex;
  RegexScratch::Impl& s;
  Budget& budget;
  std::string_view text;
  std::size_t step_work = (text.size() + 1) * kFirstMatchLimit;
  std::size_t places = regex.linear ? text.size() : std::clamp(kCallWork / step_work, kMinPositions, kMaxPositions);
  std::size_t calls_per_clock = std::clamp(kMaxCalls * kCallWork / (step_work * places + 1), kMinCalls, kMaxCalls);
  std::size_t calls = 0;

  int call(std::size_t at, std::size_t last_place, std::uint32_t limit) {
    pcre2_set_match_limit(s.context, limit);
    pcre2_set_offset_limit(s.context, last_place);
    return pcre2_match(regex.code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK,
                       s.data, s.context);
  }

  /// The first match that starts at `at` or behind it and up to `last_place`, which is set to what was searched.
  int next(std::size_t at, std::size_t& last_place) {
    last_place = std::min(at + places, text.size());
    if (++calls % calls_per_clock == 0 && !budget.has_time()) return PCRE2_ERROR_MATCHLIMIT;
    int rc = call(at, last_place, kFirstMatchLimit);
    if (rc != PCRE2_ERROR_MATCHLIMIT) return rc;
    last_place = at;  // one place may need many steps, not each of a thousand
    double last_s = 0;
    for (std::uint32_t limit = kFirstMatchLimit; rc == PCRE2_ERROR_MATCHLIMIT && limit < kMatchLimit;) {
      if (!budget.has_time(last_s * kLimitFactor)) break;
      limit = std::min(limit * kLimitFactor, kMatchLimit);
      const double start_s = thread_seconds();
      rc = call(at, last_place, limit);
      last_s = thread_seconds() - start_s;
    }
    return rc;
  }

  Status error(int rc, std::size_t at) const {
    if (budget.exhausted()) return budget.status(regex.where.c_str());
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(rc, message, sizeof message);
    return fail(
        ErrorCode::kInvalidArgument, regex.where,
        fmt::format("{} at byte {} of a piece of {} bytes", reinterpret_cast<const char*>(message), at, text.size()),
        "a pattern that decides within the step limit");
  }
};

Status Regex::find_all(std::string_view text, RegexScratch& scratch, Budget& budget,
                       std::vector<Range>& matches) const {
  LOWBIT_TRY(for_each_match(text, scratch, budget, [&](Range match) {
    if (!budget.spend_bytes(kRegexMatchBytes)) return false;
    matches.push_back(match);
    return true;
  }));
  return budget.status(impl_->where.c_str());
}

Status Regex::for_each_match(std::string_view text, RegexScratch& scratch, Budget& budget, const UseRange& use) const {
  RegexScratch::Impl& s = *scratch.impl_;
  if (!s.usable()) return fail(ErrorCode::kOutOfMemory, impl_->where, "no memory for matching");
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(s.data);
  Search search{*impl_, s, budget, text};
  const auto behind = [&](std::size_t at) {
    return at < text.size() ? at + std::max(decode_utf8(text, at).length, 1) : at;
  };
  for (std::size_t at = 0; at < text.size();) {
    std::size_t last_place = 0;
    const int rc = search.next(at, last_place);
    if (rc == PCRE2_ERROR_NOMATCH) {
      at = behind(last_place);
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
      continue;
    }
    if (rc < 0) return search.error(rc, at);
    const Range match{span[0], span[1]};  // a search of `use` changes the span
    if (match.end > match.begin && match.begin >= at) {
      if (!use(match)) return {};
      at = match.end;
    } else {  // an empty match: go on behind the next character
      at = behind(std::max(at, match.begin));
    }
  }
  return {};
}

}  // namespace lowbit::text
