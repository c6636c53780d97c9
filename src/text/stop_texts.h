#pragma once
// Texts that end a generation, found in a stream.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lowbit/error.h"

namespace lowbit {

/// Looks for texts in what is pushed, across the borders of its pieces: the result does not depend on how the text is
/// cut. The first text that is complete ends the stream; of those that end at the same byte, the longest.
class StopTexts {
 public:
  /// Errors: kInvalidArgument (an empty text, one that is not UTF-8, more than 64 texts, or more than 64 KiB of them).
  static Result<StopTexts> make(std::vector<std::string> texts);

  /// The text that may be shown now: all that is certain not to begin a stop text. Nothing once one was found. Whole
  /// characters where pieces are.
  std::string push(std::string_view piece);
  /// The end of the stream: the text that was not shown yet.
  std::string flush();
  /// Which text was found; null while none was.
  const std::string* found() const { return found_ ? &texts_[*found_].text : nullptr; }

 private:
  struct Text {
    std::string text;
    std::vector<size_t> borders;  // of text[0, i]: the longest proper suffix that is a prefix
    size_t matched = 0;           // bytes of `text` that the stream ends with
    void advance(char c);
  };
  std::vector<Text> texts_;
  std::string held_;
  std::optional<size_t> found_;
};

}  // namespace lowbit
