#include "text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lowbit::cli {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr size_t kMaxPipeBytes = size_t{256} << 20;  // growing takes twice as much

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd > STDERR_FILENO) ::close(fd);
  }
};

// A pipe's first bytes, without waiting for somebody to open its other end; what is written behind them is waited for.
ssize_t read_first(int fd, char* to, size_t size) {
  ssize_t n = ::read(fd, to, size);
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) n = ::read(fd, to, size);
  return n;
}

}  // namespace

Result<std::string> read_text(const std::string& path) {
  const bool is_stdin = path == "-";
  const Descriptor file{is_stdin ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0)
    return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, path, std::strerror(errno), "a text file");
  // A terminal and /dev/null end; /dev/zero and its like never do.
  struct stat info = {}, null = {};
  const bool device = fstat(file.fd, &info) == 0 && (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode));
  const bool is_null = stat("/dev/null", &null) == 0 && null.st_rdev == info.st_rdev;
  if (device && !is_null && isatty(file.fd) == 0)
    return fail(ErrorCode::kInvalidArgument, path, "a device", "a text file or a pipe");
  const bool sized = S_ISREG(info.st_mode);
  const size_t most = sized ? kMaxBytes : kMaxPipeBytes;
  std::string text;
  if (sized) text.reserve(std::min(most, static_cast<size_t>(info.st_size)) + 1);
  char chunk[1 << 16];
  for (bool first = !is_stdin;; first = false) {
    const ssize_t n = first ? read_first(file.fd, chunk, sizeof chunk) : ::read(file.fd, chunk, sizeof chunk);
    if (n == 0 && first && S_ISFIFO(info.st_mode))
      return fail(ErrorCode::kInvalidArgument, path, "a pipe that nobody writes to",
                  "a text file or a pipe with a text", "start its writer first, or use --file - for stdin");
    if (n == 0) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(ErrorCode::kIo, path, std::strerror(errno), "a text file");
    if (text.size() + static_cast<size_t>(n) > most)
      return fail(ErrorCode::kInvalidArgument, path, "more than " + std::to_string(most >> 20) + " MiB of text",
                  sized ? "less" : "less, or a file");
    text.append(chunk, static_cast<size_t>(n));
  }
}

}  // namespace lowbit::cli
