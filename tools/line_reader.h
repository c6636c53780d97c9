#pragma once

#include <string>

namespace lowbit::cli {

/// Lines from stdin, in a way that Ctrl-C can interrupt.
class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kInterrupted };
  /// The next line without its newline.
  Outcome next(std::string& line);

 private:
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace lowbit::cli
