#include "text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lowbit::cli {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd > STDERR_FILENO) ::close(fd);
  }
};

}  // namespace

Result<std::string> read_text(const std::string& path) {
  const Descriptor file{path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0)
    return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, path, std::strerror(errno), "a text file");
  std::string text;
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = ::read(file.fd, chunk, sizeof chunk);
    if (n == 0) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(ErrorCode::kIo, path, std::strerror(errno), "a text file");
    text.append(chunk, static_cast<size_t>(n));
    if (text.size() > kMaxBytes)
      return fail(ErrorCode::kInvalidArgument, path, "more than 1 GiB of text", "at most 1 GiB");
  }
}

}  // namespace lowbit::cli
