#include "text/stop_texts.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace lowbit {
namespace {

constexpr size_t kMostTexts = 64, kMostBytes = 64 << 10;

}  // namespace

Result<StopTexts> StopTexts::make(std::vector<std::string> texts) {
  if (texts.size() > kMostTexts)
    return fail(ErrorCode::kInvalidArgument, "stop texts", std::to_string(texts.size()),
                "at most " + std::to_string(kMostTexts));
  StopTexts stops;
  size_t bytes = 0;
  for (std::string& text : texts) {
    if (text.empty()) return fail(ErrorCode::kInvalidArgument, "stop text", "nothing", "a text");
    if (text::valid_prefix(text) != text.size())
      return fail(ErrorCode::kInvalidArgument, "stop text", "bytes that are no UTF-8", "UTF-8",
                  "generated text is always UTF-8");
    bytes += text.size();
    std::vector<size_t> borders(text.size(), 0);
    for (size_t i = 1, k = 0; i < text.size(); ++i) {
      while (k > 0 && text[i] != text[k]) k = borders[k - 1];
      if (text[i] == text[k]) ++k;
      borders[i] = k;
    }
    stops.texts_.push_back({std::move(text), std::move(borders), 0});
  }
  if (bytes > kMostBytes)
    return fail(ErrorCode::kInvalidArgument, "stop texts", std::to_string(bytes) + " bytes",
                "at most " + std::to_string(kMostBytes));
  // So that the longest of those that end together is found first.
  std::stable_sort(stops.texts_.begin(), stops.texts_.end(),
                   [](const Text& a, const Text& b) { return a.text.size() > b.text.size(); });
  return stops;
}

/// Knuth, Morris and Pratt. `matched` is below the text's length: a whole one has ended the stream.
void StopTexts::Text::advance(char c) {
  while (matched > 0 && text[matched] != c) matched = borders[matched - 1];
  if (text[matched] == c) ++matched;
}

std::string StopTexts::push(std::string_view piece) {
  if (found_) return {};
  for (const char c : piece) {
    held_ += c;
    for (Text& each : texts_) each.advance(c);
    for (size_t i = 0; i < texts_.size(); ++i) {
      const size_t size = texts_[i].text.size();
      if (texts_[i].matched < size) continue;
      found_ = i;
      held_.resize(held_.size() - size);
      return std::exchange(held_, {});
    }
  }
  size_t kept = 0;
  for (const Text& each : texts_) kept = std::max(kept, each.matched);
  std::string out = held_.substr(0, held_.size() - kept);
  held_.erase(0, out.size());
  return out;
}

std::string StopTexts::flush() {
  for (Text& each : texts_) each.matched = 0;
  return std::exchange(held_, {});
}

}  // namespace lowbit
