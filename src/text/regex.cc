#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include "text/utf8.h"

namespace lowbit::text {
namespace {

constexpr std::size_t kMaxPatternBytes = 64 * 1024;
constexpr std::uint32_t kMatchLimit = 1'000'000;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;
constexpr std::size_t kJitStackStart = 32 * 1024, kJitStackMax = 1024 * 1024;

// PCRE2's \s has U+180E, Oniguruma's has not: the set is spelled out.
constexpr const char* kSpaceSet =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string translate(std::string_view pattern) {
  std::string out;
  int class_depth = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += class_depth > 0 ? kSpaceSet : fmt::format("[{}]", kSpaceSet);
      } else if (next == 'S' && class_depth == 0) {
        out += fmt::format("[^{}]", kSpaceSet);
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (c == '[') class_depth = 1;  // PCRE2 has no nested classes: a second '[' is a literal
    if (c == ']') class_depth = 0;
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
    pcre2_set_match_limit(context, kMatchLimit);
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
};

Result<Regex> Regex::compile(std::string_view pattern, std::string where) {
  if (pattern.size() > kMaxPatternBytes)
    return fail(ErrorCode::kUnsupported, where, fmt::format("a pattern of {} bytes", pattern.size()),
                fmt::format("at most {}", kMaxPatternBytes));
  const std::string translated = translate(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto impl = std::make_shared<Impl>();
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                                 nullptr));
  if (impl->code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return fail(ErrorCode::kUnsupported, where,
                fmt::format("pattern {:.80}: {}", pattern, reinterpret_cast<const char*>(message)),
                "a regular expression that PCRE2 accepts");
  }
  pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);  // optional: matching works without
  impl->where = std::move(where);
  Regex regex;
  regex.impl_ = std::move(impl);
  return regex;
}

Status Regex::find_all(std::string_view text, RegexScratch& scratch, std::vector<Range>& matches) const {
  RegexScratch::Impl& s = *scratch.impl_;
  if (!s.usable()) return fail(ErrorCode::kOutOfMemory, impl_->where, "no memory for matching");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(s.data);
  for (std::size_t at = 0; at < text.size();) {
    const int rc = pcre2_match(impl_->code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, s.data, s.context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      PCRE2_UCHAR message[256] = {};
      pcre2_get_error_message(rc, message, sizeof message);
      return fail(
          ErrorCode::kInvalidArgument, impl_->where,
          fmt::format("{} at byte {} of a piece of {} bytes", reinterpret_cast<const char*>(message), at, text.size()),
          "a pattern that decides within the step limit");
    }
    if (span[1] > span[0] && span[0] >= at) {
      matches.push_back({span[0], span[1]});
      at = span[1];
    } else {  // an empty match: go on behind the next character
      at = std::max(at, span[0]);
      if (at < text.size()) at += decode_utf8(text, at).length;
    }
  }
  return {};
}

}  // namespace lowbit::text
