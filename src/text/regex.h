#pragma once
// PCRE2 under limits, with the meaning that Hugging Face's regular expressions (Oniguruma) have.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lowbit/error.h"
#include "text/budget.h"

namespace lowbit::text {

struct Range {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};

/// False: no more, please.
using UseRange = std::function<bool(Range)>;

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
  /// `where` names the pattern's place in messages. The compiled pattern's memory is charged. `linear`: known to take
  /// time in proportion to the text, as a single character class does; the search is faster then.
  static Result<Regex> compile(std::string_view pattern, std::string where, Budget& budget, bool linear = false);

  /// Calls `use` with the matches in text (valid UTF-8) from left to right, empty ones left out. `use` may search
  /// with the same scratch, and ends the search without an error where it returns false.
  /// Errors: kInvalidArgument when one match needs more steps, or all of a text together more time than allowed.
  Status for_each_match(std::string_view text, RegexScratch& scratch, Budget& budget, const UseRange& use) const;
  /// Appends them to `matches`, whose memory is charged.
  Status find_all(std::string_view text, RegexScratch& scratch, Budget& budget, std::vector<Range>& matches) const;

 private:
  struct Impl;
  struct Search;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace lowbit::text
