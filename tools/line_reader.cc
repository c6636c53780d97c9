#include "line_reader.h"

#include <unistd.h>

#include <cerrno>

namespace lowbit::cli {

LineReader::Outcome LineReader::next(std::string& line) {
  while (true) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos || (ended_ && !buffer_.empty())) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end == std::string::npos ? end : end + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return Outcome::kLine;
    }
    if (ended_) return Outcome::kEnd;
    char chunk[4096];
    const ssize_t n = ::read(STDIN_FILENO, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) return Outcome::kInterrupted;
    if (n <= 0)
      ended_ = true;
    else
      buffer_.append(chunk, static_cast<size_t>(n));
  }
}

}  // namespace lowbit::cli
