#include "text/added_tokens.h"

#include "base/try.h"
#include "text/utf8.h"

namespace lowbit::text {
namespace {

constexpr std::size_t kEdgeBytes = 80;  // an entry of the map, its bucket and a node
constexpr std::size_t kEdgeSteps = 16;

bool ends_with_word(std::string_view s) {
  return !s.empty() && is_word_character(decode_utf8(s, last_character(s)).value);
}

bool starts_with_word(std::string_view s) { return !s.empty() && is_word_character(decode_utf8(s, 0).value); }

std::size_t space_before(std::string_view s) {
  std::size_t length = s.size();
  while (length > 0) {
    const std::size_t at = last_character(s.substr(0, length));
    const CodePoint c = decode_utf8(s, at);
    if (c.length == 0 || !is_white_space(c.value)) break;
    length = at;
  }
  return s.size() - length;
}

std::size_t space_after(std::string_view s) {
  std::size_t at = 0;
  while (at < s.size()) {
    const CodePoint c = decode_utf8(s, at);
    if (c.length == 0 || !is_white_space(c.value)) break;
    at += c.length;
  }
  return at;
}

}  // namespace

void AddedTokenMatcher::add(std::string_view content, std::int32_t index, Budget& budget) {
  if (content.empty() || !budget.spend_steps(content.size(), kEdgeSteps)) return;
  std::uint32_t node = 0;
  for (const char c : content) {
    const auto [edge, created] = edges_.try_emplace((std::uint64_t{node} << 8) | static_cast<unsigned char>(c),
                                                    static_cast<std::uint32_t>(nodes_.size()));
    if (created) {
      nodes_.emplace_back();
      if (!budget.spend_bytes(kEdgeBytes)) return;
    }
    node = edge->second;
  }
  nodes_[node].index = index;
  starts_[static_cast<unsigned char>(content[0])] = true;
}

std::pair<AddedTokenMatcher::Match, std::size_t> AddedTokenMatcher::longest_at(std::string_view text,
                                                                               std::size_t at) const {
  Match best;
  std::uint32_t node = 0;
  std::size_t i = at;
  for (; i < text.size(); ++i) {
    const auto edge = edges_.find((std::uint64_t{node} << 8) | static_cast<unsigned char>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (nodes_[node].index >= 0) best = {{at, i + 1}, nodes_[node].index};
  }
  return {best, i - at + 1};
}

Status AddedTokenMatcher::for_each_match(std::string_view text, const std::vector<AddedToken>& tokens, Budget& budget,
                                         const UseMatch& use) const {
  if (empty()) return {};
  std::size_t taken = 0;  // everything before belongs to a match
  for (std::size_t at = 0; at < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    auto [match, looked_at] = longest_at(text, at);
    if (!budget.spend_steps(looked_at, kEdgeSteps)) return budget.status("tokenizer added tokens");
    if (match.index < 0) {
      ++at;
      continue;
    }
    at = match.range.end;
    const AddedToken& token = tokens[match.index];
    if (token.single_word &&
        (ends_with_word(text.substr(0, match.range.begin)) || starts_with_word(text.substr(match.range.end))))
      continue;
    if (token.lstrip) match.range.begin -= space_before(text.substr(taken, match.range.begin - taken));
    if (token.rstrip) at = match.range.end += space_after(text.substr(match.range.end));
    taken = match.range.end;
    LOWBIT_TRY(use(match));
  }
  return {};
}

}  // namespace lowbit::text
