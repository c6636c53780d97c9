#pragma once
// PCRE2 under limits, with the meaning that Hugging Face's regular expressions (Oniguruma) have.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lowbit/error.h"

namespace lowbit::text {

struct Range {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};

/// Working memory of a match; one per thread and call, used for any number of patterns.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A compiled pattern; immutable, thread safe.
class Regex {
 public:
  /// `where` names the pattern's place in messages.
  static Result<Regex> compile(std::string_view pattern, std::string where);

  /// Appends the matches in text (valid UTF-8) from left to right; empty matches are left out.
  /// Errors: kInvalidArgument when the pattern needs more steps than allowed.
  Status find_all(std::string_view text, RegexScratch& scratch, std::vector<Range>& matches) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace lowbit::text
