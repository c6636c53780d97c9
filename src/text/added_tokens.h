#pragma once
// Finds added tokens in a text: the leftmost match, of those the longest, as Hugging Face's tokenizers does.

#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lowbit/tokenizer.h"
#include "text/budget.h"
#include "text/regex.h"

namespace lowbit::text {

class AddedTokenMatcher {
 public:
  /// `index` is what matches are reported as. Adds nothing once the budget is exhausted.
  void add(std::string_view content, std::int32_t index, Budget& budget);
  bool empty() const { return nodes_.size() == 1; }

  struct Match {
    Range range;
    std::int32_t index = -1;
  };

  using UseMatch = std::function<Status(const Match&)>;
  /// Calls `use` with the matches in text from left to right, which do not overlap; its first error ends the search.
  /// `tokens` gives the flags (lstrip, rstrip, single_word) by index.
  /// Errors: kInvalidArgument: the budget is exhausted.
  Status for_each_match(std::string_view text, const std::vector<AddedToken>& tokens, Budget& budget,
                        const UseMatch& use) const;

 private:
  struct Node {
    std::int32_t index = -1;
  };
  /// The longest match at `at`, and how many bytes were looked at.
  std::pair<Match, std::size_t> longest_at(std::string_view text, std::size_t at) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;  // node << 8 | byte -> node
  bool starts_[256] = {};
};

}  // namespace lowbit::text
